"""edgert as a measured program; see worker.py."""

from __future__ import annotations

import time
from typing import Any

from worker import serve

import edgert


class Edgert:
    works: tuple[str, ...] = ("start", "prefill", "decode", "batch")

    def __init__(self, setup: dict[str, Any]) -> None:
        self.model = edgert.load(setup["model"], threads=setup["threads"], n_ctx=setup["n_ctx"])
        self.facts: dict[str, Any] = {"version": edgert.__version__, "n_vocab": self.model.n_vocab}
        if setup.get("describe"):
            info = edgert.system_info()
            self.facts |= {"cpu": info["cpu"], "level": info["isa"]["level"]}
            self.facts["read_gb_per_s"] = info["memory"]["read_gb_per_s"]

    def _answer(self, prompt: list[int], tokens: int) -> edgert.Completion:
        answer = self.model.generate(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
        if len(answer.ids) != tokens:
            raise RuntimeError(f"{len(answer.ids)} tokens instead of {tokens}")
        return answer

    def first_token(self, prompt: list[int]) -> None:
        self._answer(prompt, 1)

    def prefill(self, prompt: list[int]) -> float:
        answer = self._answer(prompt, 1)
        if answer.usage.cached_tokens:
            raise RuntimeError(f"{answer.usage.cached_tokens} tokens of the prompt were cached")
        return answer.timings.prompt_s

    def decode(self, prompt: list[int], new: int) -> float:
        return self._answer(prompt, new + 1).timings.decode_s

    def batch(self, prompts: list[list[int]], new: int) -> float:
        start = time.perf_counter()
        answers = self.model.generate_many(prompts, max_tokens=new + 1, temperature=0, ignore_eos=True)
        seconds = time.perf_counter() - start
        if any(len(answer.ids) != new + 1 for answer in answers):
            raise RuntimeError("an answer ended early")
        return seconds


if __name__ == "__main__":
    serve(Edgert)
