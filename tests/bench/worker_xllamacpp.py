"""llama.cpp's server inside the PyPI wheel `xllamacpp` as a measured program; see worker.py."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import xllamacpp  # of the peer's own environment
from worker import serve


class Xllamacpp:
    works: tuple[str, ...] = ("start", "prefill", "decode", "batch")

    def __init__(self, setup: dict[str, Any]) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = setup["model"]
        params.n_ctx, params.n_parallel = setup["n_ctx"], setup["parallel"]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup["threads"]
        params.n_gpu_layers = 0
        # No prompt caches: nothing saved between requests, no checkpoints written during a prompt.
        params.cache_ram_mib, params.n_ctx_checkpoints, params.cache_idle_slots = 0, 0, False
        params.warmup = not setup["first"]  # to the first token it would only take time
        self.server = xllamacpp.Server(params)
        build = f"{xllamacpp.get_system_info()}; {xllamacpp.BUILD_INFO['compiler']}"
        self.facts = {"version": xllamacpp.__version__, "build": build}

    def _answer(self, prompt: list[int], tokens: int, *, cached: bool = False) -> dict[str, Any]:
        request = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": cached, "ignore_eos": True}
        answer = self.server.handle_completions(request)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        if "timings" not in answer:
            raise RuntimeError(f"no answer: {answer}")
        timings: dict[str, Any] = answer["timings"]
        if timings["predicted_n"] != tokens:
            raise RuntimeError(f"{timings['predicted_n']} tokens instead of {tokens}")
        return timings

    def first_token(self, prompt: list[int]) -> None:
        self._answer(prompt, 1)

    def prefill(self, prompt: list[int]) -> float:
        timings = self._answer(prompt, 1)
        if timings["prompt_n"] != len(prompt):
            raise RuntimeError(f"only {timings['prompt_n']} of {len(prompt)} tokens were processed")
        return float(timings["prompt_ms"] / 1e3)

    def decode(self, prompt: list[int], new: int) -> float:
        # Its clock starts with the first token.
        return float(self._answer(prompt, new + 1, cached=True)["predicted_ms"] / 1e3)

    def batch(self, prompts: list[list[int]], new: int) -> float:
        errors: list[Exception] = []

        def request(prompt: list[int]) -> None:
            try:
                self._answer(prompt, new + 1)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=request, args=(prompt,)) for prompt in prompts]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - start
        if errors:
            raise errors[0]
        return seconds


if __name__ == "__main__":
    serve(Xllamacpp)
