"""How long running answers wait for their next token while a long prompt arrives, and what prefixes save.

    python tests/bench/latency.py MODEL

Prints milliseconds between tokens of one running answer before a prompt of 4,096 tokens arrives and while it is read,
and seconds to the first token of two prompts that share their first 1,000 tokens.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

import edgert

TEXT = "The history of the city goes back to a time before its first walls were built. "


def gaps(request: edgert.Request, until: edgert.Request | None, most: int) -> list[float]:
    """Seconds between the pieces of an answer: so many, or up to the end of another."""
    found = []
    last = time.perf_counter()
    for _ in request:
        now = time.perf_counter()
        found.append(now - last)
        last = now
        if len(found) >= most or (until is not None and until.done):
            break
    return found[1:]


def first_token(model: edgert.Model, prompt: list[int]) -> float:
    start = time.perf_counter()
    next(model.submit(prompt, max_tokens=2, temperature=0, ignore_eos=True))
    return time.perf_counter() - start


def main() -> None:
    with edgert.load(sys.argv[1], n_ctx=8192) as model:
        for _ in range(3):  # other programs disturb some of these
            measure(model)


def measure(model: edgert.Model) -> None:
    ids = (model.tokenize(TEXT) * 300)[:4096]
    running = model.submit(TEXT, max_tokens=4000, temperature=0.8, seed=1, ignore_eos=True)
    next(running)
    before = gaps(running, None, 200)
    start = time.perf_counter()
    prompt = model.submit([random.randrange(9, 9000), *ids], max_tokens=1, temperature=0)
    during = sorted(gaps(running, prompt, 4000))
    seconds = time.perf_counter() - start
    running.close()
    median = statistics.median(before)
    p99 = during[int(0.99 * (len(during) - 1))]
    print(f"between tokens: median before {1e3 * median:.1f} ms, while 4,096 tokens are read for {seconds:.1f} s: "
          f"median {1e3 * statistics.median(during):.1f} ms, p99 {1e3 * p99:.1f} ms = {p99 / median:.2f} times, "
          f"{len(during)} tokens")  # fmt: skip
    shared = model.tokenize(f"Numbers {random.random()}: " + " ".join(str(i * i) for i in range(900)))[:1000]
    first, second = (first_token(model, shared + model.tokenize(end)) for end in (" And so?", " But why not?"))
    print(f"to the first token: {first:.3f} s, with a shared prefix of 1,000: {second:.3f} s = {second / first:.3f}")


if __name__ == "__main__":
    main()
