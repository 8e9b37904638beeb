"""llama-cpp-python as a measured program; see worker.py.

Tokens to decode are given, not chosen, as llama-bench does it: its sampler in Python would only cost it time.
"""

from __future__ import annotations

import random
import time
from typing import Any

import llama_cpp  # of the peer's own environment
from worker import serve


class LlamaCppPython:
    works: tuple[str, ...] = ("start", "prefill", "decode")

    def __init__(self, setup: dict[str, Any]) -> None:
        threads = setup["threads"]
        self.llama = llama_cpp.Llama(
            setup["model"], n_ctx=setup["n_ctx"], n_threads=threads, n_threads_batch=threads, n_gpu_layers=0,
            verbose=False,
        )  # fmt: skip
        build = llama_cpp.llama_print_system_info().decode()
        self.facts = {"version": llama_cpp.__version__, "build": build}
        self.held: list[int] = []  # the prompt that is in the KV cache

    def first_token(self, prompt: list[int]) -> None:
        self.llama.eval(prompt)
        self.llama.sample(temp=0)

    def prefill(self, prompt: list[int]) -> float:
        self.llama.reset()
        self.held = []
        start = time.perf_counter()
        self.llama.eval(prompt)
        return time.perf_counter() - start

    def decode(self, prompt: list[int], new: int) -> float:
        if self.held != prompt:
            self.prefill(prompt)
            self.held = prompt
        self.llama.n_tokens = len(prompt)  # what came after it is removed by the next call
        tokens = [random.randrange(self.llama.n_vocab()) for _ in range(new)]
        start = time.perf_counter()
        for token in tokens:
            self.llama.eval([token])
        return time.perf_counter() - start

    def batch(self, prompts: list[list[int]], new: int) -> float:
        raise RuntimeError("its API has no sequences that decode together")


if __name__ == "__main__":
    serve(LlamaCppPython)
