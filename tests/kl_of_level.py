"""Print the mean KL divergence of fast logits to saved exact ones, run in a process of its own per ISA level.

python kl_of_level.py MODEL TOKENS.npy EXACT.npy     with EDGERT_ISA set; prints {"isa", "prompt", "decode"} as JSON
"""

from __future__ import annotations

import json
import sys

import numpy as np
import numpy.typing as npt

import edgert

ROWS = 32  # positions at a time: float64 copies of a 262,144-token row are 2 MiB each

F32 = npt.NDArray[np.float32]


def log_softmax(logits: F32) -> npt.NDArray[np.float64]:
    """float64 log-probabilities of logits [rows, n_vocab]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def mean_kl(exact: F32, fast: F32) -> float:
    """Mean over positions of KL(exact || fast) in nats; both [positions, n_vocab]."""
    total = 0.0
    for start in range(0, len(exact), ROWS):
        p = log_softmax(exact[start : start + ROWS])
        q = log_softmax(fast[start : start + ROWS])
        total += float(np.sum(np.exp(p) * (p - q)))
    return total / len(exact)


def main(model_path: str, tokens_path: str, exact_path: str) -> None:
    """Measure both paths of one model at the level that EDGERT_ISA names."""
    tokens = np.load(tokens_path).tolist()
    exact = np.load(exact_path, mmap_mode="r")
    with edgert.load(model_path, n_ctx=len(tokens)) as model:
        kl = {path: mean_kl(exact, model.logits(tokens, path=path)) for path in ("prompt", "decode")}
    print(json.dumps({"isa": edgert.system_info()["isa"]["level"], **kl}))


if __name__ == "__main__":
    main(*sys.argv[1:])
