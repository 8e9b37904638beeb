"""edgert: answers from GGUF language models on the computer in front of you.

    import edgert
    with edgert.load("smollm2-135m") as model:
        print(model.generate("The capital of France is", max_tokens=8, temperature=0).text)

Names are imported when first used, so that importing edgert costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import registry
    from .beam import Beam
    from .chat import ChatCompletion
    from .chat_events import ContentDelta, ReasoningDelta, ToolCall, ToolCallDelta, ToolCallEnd, ToolCallStart
    from .chat_messages import ChatError
    from .chat_request import ChatRequest, ChatStream
    from .errors import ContextLengthError, DownloadError, EdgertError, EngineBusy, ModelNotFoundError
    from .formats.errors import FormatError
    from .generation import Completion, Timings, Usage
    from .grammars import ConstraintError
    from .info import ModelInfo, bench_kernels, inspect, memory_bandwidth, system_info, verify
    from .logprobs import TokenLogprob
    from .model import Model
    from .request import Request
    from .runtime import Progress
    from .sampling import Settings
    from .scheduler import Stats
    from .session import SessionError
    from .vocabulary import Vocabulary, load_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "beam": ("Beam",),
    "chat": ("ChatCompletion",),
    "chat_events": ("ContentDelta", "ReasoningDelta", "ToolCall", "ToolCallDelta", "ToolCallEnd", "ToolCallStart"),
    "chat_messages": ("ChatError",),
    "chat_request": ("ChatRequest", "ChatStream"),
    "errors": ("ContextLengthError", "DownloadError", "EdgertError", "EngineBusy", "ModelNotFoundError"),
    "formats.errors": ("FormatError",),
    "generation": ("Completion", "Timings", "Usage"),
    "grammars": ("ConstraintError",),
    "info": ("ModelInfo", "bench_kernels", "inspect", "memory_bandwidth", "system_info", "verify"),
    "logprobs": ("TokenLogprob",),
    "model": ("Model",),
    "request": ("Request",),
    "runtime": ("Progress",),
    "sampling": ("Settings",),
    "scheduler": ("Stats",),
    "session": ("SessionError",),
    "vocabulary": ("Vocabulary", "load_tokenizer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Beam", "ChatCompletion", "ChatError", "ChatRequest", "ChatStream", "Completion", "ConstraintError",
    "ContentDelta", "ContextLengthError", "DownloadError", "EdgertError", "EngineBusy", "FormatError", "Model",
    "ModelInfo", "ModelNotFoundError", "Progress", "ReasoningDelta", "Request", "SessionError", "Settings", "Stats",
    "Timings", "TokenLogprob", "ToolCall", "ToolCallDelta", "ToolCallEnd", "ToolCallStart", "Usage", "Vocabulary",
    "bench_kernels", "inspect", "load", "load_tokenizer", "memory_bandwidth", "registry", "system_info", "verify",
]  # fmt: skip


def load(
    model: str | os.PathLike[str],
    *,
    threads: int | None = None,
    n_ctx: int | None = None,
    precision: str = "fast",
    kv_type: str = "f16",
    cache_tokens: int | None = None,
    preempt: str = "recompute",
    max_waiting: int = 256,
    prefix_cache: str | os.PathLike[str] | None = None,
    prefix_cache_bytes: int = 4 << 30,
    progress: Progress | None = None,
) -> Model:
    """Open a model: a name from `models.toml`, a path, or `hf:owner/repo/file.gguf` (downloaded if need be).

    threads    default: processors this process may use, CPU quota, or physical cores, whichever is least
    n_ctx      context in tokens; default: the model's own, if its KV cache fits in a quarter of the memory
    precision  "fast", or "exact": everything in float32
    kv_type    of keys and values: "f16", "bf16", "f32", or in blocks of 32 "q8_0" (half the memory) and "q4_0"
    cache_tokens  that the KV cache holds for all requests together, at least one context; default: by the memory
    preempt    what happens to an answer when the cache is full and others go first: its tokens are computed again
               later ("recompute"), or wait in a temporary file ("swap")
    max_waiting  requests that may wait before EngineBusy is raised
    prefix_cache  a folder in which prompts' keys and values are kept, for later runs and other processes; its files
               take at most `prefix_cache_bytes`
    progress   called with (what, done, total) while downloading and compiling
    """
    from pathlib import Path

    from .errors import EdgertError
    from .kernels_cpu.layout import KV_TYPES
    from .model import Model
    from .registry import resolve

    if precision not in ("fast", "exact"):
        raise EdgertError(f"precision {precision!r} is neither 'fast' nor 'exact'")
    if kv_type not in KV_TYPES:
        raise EdgertError(f"kv_type {kv_type!r} is not one of {', '.join(KV_TYPES)}")
    if preempt not in ("recompute", "swap"):
        raise EdgertError(f"preempt {preempt!r} is neither 'recompute' nor 'swap'")
    counts = {"threads": threads, "n_ctx": n_ctx, "cache_tokens": cache_tokens, "max_waiting": max_waiting,
              "prefix_cache_bytes": prefix_cache_bytes}  # fmt: skip
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise EdgertError(f"{name}: {value!r} is not a positive whole number")
    path = resolve(model, progress)
    return Model(path, threads=threads, n_ctx=n_ctx, precision=precision, kv_type=kv_type, cache_tokens=cache_tokens,
                 preempt=preempt, max_waiting=max_waiting,
                 prefix_cache=Path(prefix_cache) if prefix_cache is not None else None,
                 prefix_cache_bytes=prefix_cache_bytes, progress=progress)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "registry":
        return importlib.import_module(".registry", __name__)
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
