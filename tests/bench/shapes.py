"""Shapes of real models: hyper-parameters and the tensors that llama.cpp expects of them, in file order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Shape:
    """One model. `vocabulary` names a file in tests/data/vocab; "" stands for a made-up SentencePiece vocabulary."""

    arch: str
    layers: int
    n_embd: int
    n_ff: int  # of one expert where there are experts
    heads: int
    heads_kv: int
    head: int  # values of a head
    n_vocab: int
    context: int
    vocabulary: str
    rope_base: float = 1e6
    eps: float = 1e-6
    tied: bool = True
    experts: int = 0
    experts_used: int = 0


SHAPES = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, "llama-bpe", 5e5, 1e-5),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, "qwen2"),
    "qwen3-4b": Shape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 40960, "qwen2"),
    # Four of 48 layers: the whole model has 18 GB. --layers 48 makes all of it.
    "qwen3-30b-a3b": Shape("qwen3moe", 4, 2048, 768, 32, 4, 128, 151936, 40960, "qwen2", tied=False, experts=128,
                           experts_used=8),
    "gemma-3-1b": Shape("gemma3", 26, 1152, 6912, 4, 1, 256, 262144, 32768, ""),
}  # fmt: skip
SLIDING_WINDOW = 512  # of gemma3


def metadata(s: Shape) -> dict[str, Any]:
    """GGUF keys but those of the tokenizer."""
    keys: dict[str, Any] = {
        "block_count": s.layers,
        "context_length": s.context,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff * max(1, s.experts_used),
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.heads_kv,
        "attention.key_length": s.head,
        "attention.value_length": s.head,
        "attention.layer_norm_rms_epsilon": s.eps,
        "rope.freq_base": s.rope_base,
        "rope.dimension_count": s.head,
        "vocab_size": s.n_vocab,
    }
    if s.experts:
        keys |= {"expert_count": s.experts, "expert_used_count": s.experts_used, "expert_feed_forward_length": s.n_ff}
    if s.arch == "gemma3":
        keys["attention.sliding_window"] = SLIDING_WINDOW
    return {"general.quantization_version": 2} | {f"{s.arch}.{key}": value for key, value in keys.items()}


def tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape in GGUF order) of every tensor; the shape's first number is the contiguous dimension."""
    yield "token_embd.weight", (s.n_embd, s.n_vocab)
    if s.arch == "llama":
        yield "rope_freqs.weight", (s.head // 2,)
    for layer in range(s.layers):
        for name, shape in _layer(s):
            yield f"blk.{layer}.{name}.weight", shape
    yield "output_norm.weight", (s.n_embd,)
    if not s.tied:
        yield "output.weight", (s.n_embd, s.n_vocab)


def _layer(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attn_norm", (s.n_embd,)
    yield "attn_q", (s.n_embd, s.heads * s.head)
    yield "attn_k", (s.n_embd, s.heads_kv * s.head)
    yield "attn_v", (s.n_embd, s.heads_kv * s.head)
    yield "attn_output", (s.heads * s.head, s.n_embd)
    if s.arch != "llama":
        yield "attn_q_norm", (s.head,)
        yield "attn_k_norm", (s.head,)
    if s.arch == "gemma3":
        yield "post_attention_norm", (s.n_embd,)
        yield "post_ffw_norm", (s.n_embd,)
    yield "ffn_norm", (s.n_embd,)
    if s.experts:
        yield "ffn_gate_inp", (s.n_embd, s.experts)
        yield "ffn_gate_exps", (s.n_embd, s.n_ff, s.experts)
        yield "ffn_up_exps", (s.n_embd, s.n_ff, s.experts)
        yield "ffn_down_exps", (s.n_ff, s.n_embd, s.experts)
    else:
        yield "ffn_gate", (s.n_embd, s.n_ff)
        yield "ffn_up", (s.n_embd, s.n_ff)
        yield "ffn_down", (s.n_ff, s.n_embd)


def rope_factors(s: Shape) -> npt.NDArray[np.float32]:
    """Llama 3.2's rope_freqs.weight: slow frequencies divided by 32, with a ramp in between (Llama 3.1's rule)."""
    factor, low, high, original = 32.0, 1.0, 4.0, 8192
    waves = 2 * math.pi * s.rope_base ** (np.arange(0, s.head, 2) / s.head)
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
