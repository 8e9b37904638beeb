"""Measure a model: prompt and generation speed (median and spread), share of the memory bandwidth, load time, memory.

Prompts are random tokens, so nothing is reused between repetitions; a first, unmeasured repetition warms up. With
--kernels no model is needed: each matmul kernel is timed alone, beside what memory and arithmetic units allow.
"""

import argparse
import dataclasses
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import edgert

from . import bench_plot
from .console import MODEL_HELP, Progress, UsageError, add_load_options, human_bytes, integer, loading, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def count(flag: str, name: str, default: int, low: int, meaning: str) -> None:
        about = f"{meaning} (default {default})"
        parser.add_argument(flag, type=integer(low), default=default, metavar="N", dest=name, help=about)

    parser.add_argument("model", metavar="MODEL", nargs="?", help=MODEL_HELP)
    count("-p", "prompt", 512, 0, "prompt tokens")
    count("-n", "new", 64, 0, "generated tokens")
    count("-d", "depth", 0, 0, "tokens that are there before them")
    count("-b", "batch", 0, 0, "sequences that generate together; 0: not measured")
    count("-r", "repeat", 3, 1, "repetitions")
    parser.add_argument("--starts", action="store_true", help="also start anew, with and without compiled kernels")
    parser.add_argument("--kernels", action="store_true", help="time single kernels instead of a model")
    parser.add_argument("--types", metavar="T,T", help="weight types for --kernels, e.g. Q4_K,Q8_0")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the rates (needs matplotlib: edgert[bench])")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_load_options(parser)


def execute(options: argparse.Namespace) -> int:
    if options.kernels:
        if options.model or options.plot or options.starts:
            raise UsageError("--kernels takes no MODEL, --plot or --starts")
        return kernels(options)
    if not options.model:
        raise UsageError("which MODEL? (--kernels needs none)")
    if options.plot:
        bench_plot.require()
    needed = max(options.depth + max(options.prompt, 1) + options.new, options.batch * (options.new + 64)) + 1
    start = time.perf_counter()
    with Progress() as progress:
        given = loading(options) | {"n_ctx": options.ctx or needed}
        model = edgert.load(options.model, progress=progress, **given)
    load_s = time.perf_counter() - start
    with model:
        report = {
            "model": options.model,
            "threads": model.threads,
            "precision": options.precision,
            "kv_type": options.kv_type,
            "prompt_tokens": options.prompt,
            "new_tokens": options.new,
            "depth": options.depth,
            "load_s": load_s,
            **_measure(model, options),
        }
    report["peak_rss_bytes"] = peak_rss()
    if options.starts:
        report |= starts(str(model.path), model.threads)
    if options.plot:
        bench_plot.draw(report, options.plot)
    if options.json:
        print_json(report)
    else:
        print("\n".join(_lines(report)))
    return 0


def _measure(model: "edgert.Model", options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of each phase, summed up over the repetitions; what was not asked for is None."""
    prompt, decode, batch = [], [], []
    for seed in range(options.repeat + 1):
        ids = random_ids(model, seed, options.depth + max(options.prompt, 1))
        if options.depth:
            _generate(model, ids[: options.depth], 1)
        if options.prompt:
            answer = _generate(model, ids, 1)
            prompt.append((answer.usage.prompt_tokens - answer.usage.cached_tokens) / answer.timings.prompt_s)
        if options.new:
            decode.append(_generate(model, ids[: max(options.depth, 1)], options.new + 1).timings.decode_rate)
        if options.batch and options.new:
            batch.append(_batch_rate(model, seed, options.batch, options.new))
    result = {"prompt": _summary(prompt[1:]), "decode": _summary(decode[1:]), "batch": _summary(batch[1:])}
    result["sequences"] = options.batch
    if result["prompt"]:
        flop = model.flop_per_token(options.depth + options.prompt // 2)
        result["prompt"]["gflop_per_s"] = flop * result["prompt"]["median"] / 1e9
    if result["decode"]:
        moved = model.bytes_per_token(options.depth + options.new // 2)
        bandwidth = edgert.memory_bandwidth(model.threads)
        result["decode"] |= {
            "bytes_per_token": moved,
            "gb_per_s": moved * result["decode"]["median"] / 1e9,
            "bandwidth_gb_per_s": bandwidth / 1e9,
        }
    return result


def random_ids(model: "edgert.Model", seed: int, count: int) -> list[int]:
    """Token ids of a prompt that no other seed shares its beginning with."""
    generator = random.Random(seed)
    return [generator.randrange(model.n_vocab) for _ in range(count)]


def _generate(model: "edgert.Model", ids: list[int], new: int) -> "edgert.Completion":
    return model.generate(ids, max_tokens=new, temperature=0, ignore_eos=True)


def _batch_rate(model: "edgert.Model", seed: int, sequences: int, new: int) -> float:
    """Tokens per second of all sequences together, their prompts of eight tokens included in the time."""
    prompts = [random_ids(model, seed * sequences + i, 8) for i in range(sequences)]
    start = time.perf_counter()
    answers = model.generate_many(prompts, max_tokens=new, temperature=0, ignore_eos=True)
    return sum(len(answer.ids) for answer in answers) / (time.perf_counter() - start)


STARTER = """\
import sys, edgert
model = edgert.load(sys.argv[1], threads=int(sys.argv[2]), n_ctx=512)
model.generate([1], max_tokens=1)
"""


def starts(path: str, threads: int) -> dict[str, float]:
    """Seconds that a process of one token takes: with an empty kernel cache, and with a full one."""
    with tempfile.TemporaryDirectory() as cache:
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            command = [sys.executable, "-P", "-c", STARTER, path, str(threads)]
            subprocess.run(command, check=True, env={**os.environ, "EDGERT_CACHE": cache})
            seconds.append(time.perf_counter() - start)
    return {"cold_start_s": seconds[0], "warm_start_s": seconds[1]}


def kernels(options: argparse.Namespace) -> int:
    """Print the table of kernels, a row as soon as it is measured."""
    chosen = {"types": options.types.split(",")} if options.types else {}
    rows: list[dict[str, Any]] = []
    try:
        for row in edgert.bench_kernels(**chosen, threads=options.threads, repeat=options.repeat):
            if not rows and not options.json:
                print(f"{'kernel':22} {'level':12} {'rows':>5} {'ms':>9} {'GB/s':>8} {'GFLOP/s':>9}  of its limit")
            rows.append(dataclasses.asdict(row))
            if not options.json:
                print(
                    f"{row.kernel:22} {row.level:12} {row.rows:5} {1e3 * row.seconds:9.3f} {row.gb_per_s:8.2f} "
                    f"{row.gflop_per_s:9.1f}  {100 * row.share:.0f} % ({row.bound})",
                    flush=True,
                )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.json:
        print_json({"kernels": rows})
    return 0


def _summary(rates: list[float]) -> dict[str, Any] | None:
    if not rates:
        return None
    return {"median": statistics.median(rates), "min": min(rates), "max": max(rates), "all": rates}


def peak_rss() -> int:
    """Largest resident set size that this process has had, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['model']}: {report['threads']} threads, {report['precision']}, depth {report['depth']}"]
    phases = (("prompt", "prompt", "prompt_tokens"), ("decode", "generation", "new_tokens"),
              ("batch", f"{report['sequences']} at once", "new_tokens"))  # fmt: skip
    for phase, name, tokens in phases:
        if rates := report[phase]:
            spread = f"{rates['min']:.1f} to {rates['max']:.1f} in {len(rates['all'])}"
            lines.append(f"{name:10} {rates['median']:8.1f} tokens/s  ({spread} runs of {report[tokens]} tokens)")
    if rates := report["prompt"]:
        lines.append(f"{'prompt':10} {rates['gflop_per_s']:8.1f} GFLOP/s")
    if rates := report["decode"]:
        share = 100 * rates["gb_per_s"] / rates["bandwidth_gb_per_s"]
        measured = f"{rates['bandwidth_gb_per_s']:.1f} GB/s that this memory gives"
        lines.append(f"{'bandwidth':10} {rates['gb_per_s']:8.1f} GB/s, {share:.0f} % of the {measured}")
    lines.append(f"{'load':10} {report['load_s']:8.2f} s")
    if "cold_start_s" in report:
        lines.append(f"{'cold start':10} {report['cold_start_s']:8.2f} s to the first token, kernels compiled")
        lines.append(f"{'warm start':10} {report['warm_start_s']:8.2f} s, kernels found in the cache")
    lines.append(f"{'peak RSS':10} {human_bytes(report['peak_rss_bytes']):>11}")
    return lines
