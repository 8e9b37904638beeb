"""edgert beside other runtimes on the same file, in alternation: speed, start-up and memory as ratios.

    python tests/bench/compare.py MODEL.gguf --xllamacpp-python VENV/bin/python [--isa avx2] [-p 512 -n 64 -d 2048 -b 8]

Each round measures every program once, in an order that turns from round to round, so that a machine that slows down
slows all of them; a ratio is taken within its round, and the table shows medians. Programs stay loaded between rounds
and are stopped while another one works. The first round warms up and does not count. Prompts are random tokens, the
same for all programs, new in every round; only the prompt under --depth stays, because it is not what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contenders import Contender, ContenderError, Job, LlamaBench, Session, Worker

SHORT = 16  # tokens of a prompt that is not measured
SPARE = 32  # tokens of context beyond what is needed
FLAGS = ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16", "avx512fp16",
         "amx-int8", "amx-bf16", "neon", "dotprod", "i8mm", "bf16", "sve", "sve2")  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One thing to measure. kind: "start", "prefill", "decode" or "batch"."""

    kind: str
    prompt: int = SHORT
    new: int = 1
    sequences: int = 1

    @property
    def title(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.prompt}"
        if self.kind == "batch":
            return f"{self.sequences} sequences, {self.new} tokens each"
        return f"decode {self.new}" + ("" if self.prompt == SHORT else f" at depth {self.prompt}")

    def setup(self, model: Path, threads: int) -> dict[str, Any]:
        """What a program is told at its start; the context has room for all sequences."""
        each = -(-(self.prompt + self.new + SPARE) // 256) * 256
        return {
            "model": str(model), "threads": threads, "n_ctx": each * self.sequences, "parallel": self.sequences,
            "first": None,
        }  # fmt: skip

    def job(self, seed: int, n_vocab: int) -> Job:
        """The job of a round."""
        deep = self.kind == "decode" and self.prompt > SHORT
        ids = random.Random(0 if deep else seed)
        prompts = [[ids.randrange(n_vocab) for _ in range(self.prompt)] for _ in range(self.sequences)]
        if self.kind == "batch":
            return {"work": "batch", "prompts": prompts, "new": self.new}
        return {"work": self.kind, "prompt": prompts[0], "new": self.new}


@dataclass
class Result:
    """Values of each program, a round after the other; `edgert` is the first program."""

    title: str
    unit: str
    values: dict[str, list[float]]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every peer: medians, and the ratio edgert / peer with its spread."""
        names = list(self.values)
        own = self.values[names[0]]
        rows = []
        for peer in names[1:]:
            ratios = [a / b for a, b in zip(own, self.values[peer], strict=True)]
            rows.append({
                "work": self.title, "unit": self.unit, "peer": peer, "edgert": statistics.median(own),
                "of_peer": statistics.median(self.values[peer]), "ratio": statistics.median(ratios),
                "ratio_min": min(ratios), "ratio_max": max(ratios), "pairs": len(ratios),
            })  # fmt: skip
        return rows


@dataclass
class Comparison:
    """Everything that one call of this program measures."""

    model: Path
    threads: int
    rounds: int
    contenders: list[Contender]
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def describe(self) -> None:
        """Ask edgert about itself and the machine; this also fills its kernel cache."""
        setup = Work("prefill").setup(self.model, self.threads)
        session = self.contenders[0].open({**setup, "describe": True})
        self.facts["edgert"] = session.facts
        session.close()

    @property
    def n_vocab(self) -> int:
        return int(self.facts["edgert"]["n_vocab"])

    def rates(self, work: Work) -> None:
        """Measure tokens per second."""
        able = self._able(work.kind)
        sessions: dict[str, Session] = {}
        try:
            for contender in able:
                sessions[contender.name] = contender.open(work.setup(self.model, self.threads))
            values: dict[str, list[float]] = {name: [] for name in sessions}
            for number in range(self.rounds + 1):
                for name in turned(list(sessions), number):
                    tokens, seconds = sessions[name].measure(work.job(number, self.n_vocab))
                    if number:
                        values[name].append(tokens / seconds)
                progress(f"{work.title}: round {number} of {self.rounds}")
            for name, session in sessions.items():
                self.facts.setdefault(name, session.facts)
        finally:
            for session in sessions.values():
                session.close()
        self.results.append(Result(work.title, "tokens/s", values))

    def starts(self) -> None:
        """Measure new processes: seconds from their start to the first token, and the most memory they have had."""
        able = [contender for contender in self._able("start") if isinstance(contender, Worker)]
        seconds: dict[str, list[float]] = {contender.name: [] for contender in able}
        memory: dict[str, list[float]] = {contender.name: [] for contender in able}
        work = Work("start")
        by_name = {contender.name: contender for contender in able}
        for number in range(self.rounds + 1):
            for name in turned(list(by_name), number):
                prompt = work.job(number, self.n_vocab)["prompt"]
                child = by_name[name].open({**work.setup(self.model, self.threads), "first": prompt})
                child.close()
                self.facts.setdefault(name, child.facts)
                if number:
                    seconds[name].append(child.start_seconds)
                    memory[name].append(child.facts["peak_rss"] / 2**20)
            progress(f"start: round {number} of {self.rounds}")
        self.results += [Result("start to first token", "s", seconds), Result("peak memory", "MiB", memory)]

    def _able(self, kind: str) -> list[Contender]:
        return [contender for contender in self.contenders if contender.can(kind)]


def turned(names: list[str], number: int) -> list[str]:
    """The order of a round: the next one begins, and every other time around they go backwards."""
    at = number % len(names)
    order = names[at:] + names[:at]
    return order[::-1] if len(names) > 2 and number // len(names) % 2 else order


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- what is printed ----


def header(comparison: Comparison, isa: str | None, load: float | None) -> list[str]:
    """The file, the machine and the versions."""
    own = comparison.facts["edgert"]
    cpu, size = own["cpu"], comparison.model.stat().st_size / 2**20
    lines = [
        f"{comparison.model.name}, {size:.0f} MiB, {comparison.threads} threads, {comparison.rounds} rounds",
        f"{cpu['name'] or cpu['machine']}, {os.cpu_count()} processors, {platform.system()}: "
        + " ".join(flag for flag in FLAGS if flag in cpu["features"]),
        f"edgert {own['version']}, level {own['level']}" + (" (EDGERT_ISA)" if isa else "")
        + f", read bandwidth {own['read_gb_per_s']:.1f} GB/s",
    ]  # fmt: skip
    for name, facts in comparison.facts.items():
        if name != "edgert":
            lines.append(f"{name} {facts.get('version', '')}: {facts.get('build', '')}".rstrip(": "))
    if load is not None and load > 0.5:
        lines.append(f"Load was {load:.1f} at the start: something else was running, so trust nothing below.")
    return lines


def table(results: list[Result]) -> list[str]:
    """Markdown: a row for every work and peer."""
    lines = ["| work | peer | edgert | peer's | edgert ÷ peer | spread | pairs |", "|---|---|---:|---:|---:|---|---:|"]
    for row in (row for result in results for row in result.rows()):
        lines.append(
            f"| {row['work']}, {row['unit']} | {row['peer']} | {row['edgert']:.4g} | {row['of_peer']:.4g} | "
            f"**{row['ratio']:.2f}** | {row['ratio_min']:.2f} to {row['ratio_max']:.2f} | {row['pairs']} |"
        )
    return lines


# ---- command line ----


def numbers(text: str) -> list[int]:
    """`512,2048` -> [512, 2048]; `0` -> []."""
    values = [int(part) for part in text.split(",") if part]
    if min(values, default=0) < 0:
        raise ValueError(text)
    return [value for value in values if value]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--xllamacpp-python", metavar="PATH", help="a Python that has the package xllamacpp")
    parser.add_argument("--llama-cpp-python", metavar="PATH", help="a Python that has the package llama-cpp-python")
    parser.add_argument("--llama-bench", metavar="PATH", help="a llama-bench program")
    parser.add_argument("--isa", help="EDGERT_ISA for edgert")
    parser.add_argument("-p", "--prefill", type=numbers, default=[512], metavar="N,N", help="prompt lengths (512)")
    parser.add_argument("-n", "--new", type=int, default=64, metavar="N", help="tokens to generate (64); 0: none")
    parser.add_argument("-d", "--depth", type=numbers, default=[], metavar="N,N", help="decode at these depths, too")
    parser.add_argument("-b", "--batch", type=numbers, default=[8], metavar="N,N", help="sequences together (8)")
    parser.add_argument("--no-start", action="store_true", help="leave out start-up and memory")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=5, help="pairs that count (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    options = parser.parse_args(arguments)
    if not options.model.is_file():
        parser.error(f"{options.model}: no such file")
    if options.rounds < 1 or options.threads < 1 or options.new < 0:
        parser.error("rounds and threads must be at least 1, new at least 0")
    return options


def contenders(options: argparse.Namespace) -> list[Contender]:
    """edgert and the peers that were named."""
    environment = {"EDGERT_ISA": options.isa} if options.isa else {}
    every = ("start", "prefill", "decode", "batch")
    found: list[Contender] = [Worker("edgert", "worker_edgert.py", works=every, environment=environment)]
    if options.xllamacpp_python:
        found.append(Worker("xllamacpp", "worker_xllamacpp.py", options.xllamacpp_python, works=every))
    if options.llama_cpp_python:
        script = "worker_llama_cpp_python.py"
        found.append(Worker("llama-cpp-python", script, options.llama_cpp_python, works=every[:3]))
    if options.llama_bench:
        found.append(LlamaBench(options.llama_bench))
    return found


def works(options: argparse.Namespace) -> list[Work]:
    """What to measure of what keeps running."""
    found = [Work("prefill", prompt=prompt) for prompt in options.prefill]
    if options.new:
        found += [Work("decode", prompt, options.new) for prompt in (SHORT, *options.depth)]
        found += [Work("batch", SHORT, options.new, sequences) for sequences in options.batch]
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    comparison = Comparison(options.model.resolve(), options.threads, options.rounds, contenders(options))
    try:
        comparison.describe()
        for work in works(options):
            comparison.rates(work)
        if not options.no_start:
            comparison.starts()
    except (ContenderError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    print("\n".join([*header(comparison, options.isa, load), "", *table(comparison.results)]))
    if options.json:
        content = {
            "model": str(options.model), "threads": options.threads, "isa": options.isa, "facts": comparison.facts,
            "load": load, "rows": [row for result in comparison.results for row in result.rows()],
            "values": {result.title: result.values for result in comparison.results},
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
