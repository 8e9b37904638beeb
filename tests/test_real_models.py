"""SmolLM2-135M and Gemma-3-270M against llama.cpp: F32 references for exact mode, its own quantised error for fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edgert
from processes import peak_rss

DATA = Path(__file__).parent / "data"
MODELS = ["smollm2", pytest.param("gemma3", marks=pytest.mark.big)]
LEVELS = edgert.system_info()["isa"]["available"]
LOGPROB_ERROR = 2e-3
KL_RATIO = 1.05  # of llama.cpp's own KL on the same file
MIB = 1 << 20


@dataclass(frozen=True)
class Real:
    """A real model, its golden text and the exact logits over that text."""

    name: str
    path: Path
    tokens: npt.NDArray[np.int32]  # [513]
    next_logprob: npt.NDArray[np.float64]  # [512] of tokens[1:]
    tokens_file: Path  # tokens[:512]
    exact_file: Path  # float32 [512, n_vocab]


@pytest.fixture(scope="session", params=MODELS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Real:
    """The exact logits over the golden text are computed once and read back by every measurement."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    path = request.getfixturevalue(f"{name}_path")
    with np.load(DATA / "real" / f"{name}-eval512.npz") as data:
        tokens, next_logprob = data["tokens"], data["next_logprob"]
    with edgert.load(path, precision="exact", n_ctx=512) as model:
        np.save(folder / "exact.npy", model.logits(tokens[:512].tolist()))
    np.save(folder / "tokens.npy", tokens[:512])
    return Real(name, path, tokens, next_logprob, folder / "tokens.npy", folder / "exact.npy")


def greedy_goldens(name: str) -> list[dict[str, Any]]:
    """Prompts with the reference's 48 greedy tokens and its margin between the best two tokens at each step."""
    goldens: list[dict[str, Any]] = json.loads((DATA / "real" / f"{name}-greedy.json").read_text(encoding="utf-8"))
    return goldens


def test_exact_log_probabilities(real: Real) -> None:
    """log p(next token) at 512 positions equals the reference's."""
    exact = np.load(real.exact_file, mmap_mode="r")
    for i, (row, token) in enumerate(zip(exact, real.tokens[1:], strict=True)):
        wide = row.astype(np.float64)
        logprob = wide[token] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        assert logprob == pytest.approx(real.next_logprob[i], abs=LOGPROB_ERROR), f"position {i}"


def test_golden_text_is_tokenised_as_by_the_reference(real: Real) -> None:
    """The golden tokens are the start of eval.txt."""
    text = (DATA / "text" / "eval.txt").read_text(encoding="utf-8")
    assert edgert.load_tokenizer(real.path).tokenize(text[:4000])[:513] == real.tokens.tolist()


def test_exact_greedy_continuations(real: Real) -> None:
    """Five prompts of 48 tokens each, token for token."""
    with edgert.load(real.path, precision="exact") as model:
        for golden in greedy_goldens(real.name):
            flags = {"add_special": golden["add_special"], "parse_special": golden["parse_special"]}
            assert model.tokenize(golden["prompt"], **flags) == golden["prompt_ids"]
            answer = model.generate(golden["prompt_ids"], max_tokens=48, temperature=0)
            assert answer.ids == golden["output_ids"], golden["prompt"]
            assert answer.text == golden["output_text"]


@pytest.mark.parametrize("level", LEVELS)
def test_fast_is_as_close_as_llama_cpp(real: Real, level: str) -> None:
    """KL(exact || fast) over the golden text, on the prompt path and on the decode path, at one ISA level."""
    runs = json.loads((DATA / "real" / "accuracy.json").read_text())[real.name]["runs"]
    theirs = max(run["mean_kl_ref_to_this"] for name, run in runs.items() if name.startswith("quant_default_"))
    script = Path(__file__).with_name("kl_of_level.py")
    command = [sys.executable, str(script), str(real.path), str(real.tokens_file), str(real.exact_file)]
    run = subprocess.run(command, env={**os.environ, "EDGERT_ISA": level}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout)
    print(f"KL to exact: {measured}, llama.cpp {theirs:.6f}")
    assert measured["isa"] == level
    assert measured["prompt"] <= KL_RATIO * theirs
    assert measured["decode"] <= KL_RATIO * theirs


def test_fast_greedy_follows_the_reference(real: Real) -> None:
    """Fast greedy tokens equal the reference's up to the first step where the best two were closer than 1.0."""
    with edgert.load(real.path) as model:
        for golden in greedy_goldens(real.name):
            margins = golden["top1_top2_margin"]
            sure = next((i for i, margin in enumerate(margins) if margin < 1.0), len(margins))
            answer = model.generate(golden["prompt_ids"], max_tokens=48, temperature=0)
            assert answer.ids[:sure] == golden["output_ids"][:sure], golden["prompt"]


def test_threads_do_not_change_the_text(real: Real) -> None:
    """The same greedy tokens with one thread and with two."""
    prompt = greedy_goldens(real.name)[0]["prompt_ids"]
    answers = []
    for threads in (1, 2):
        with edgert.load(real.path, threads=threads) as model:
            answers.append(model.generate(prompt, max_tokens=48, temperature=0).ids)
    assert answers[0] == answers[1]


FACTS = [
    ("The secret code of the vault is 7294.", "The secret code of the vault is", " 7294"),
    ("The name of Maria's green parrot is Archibald.", "The name of Maria's green parrot is", " Archibald"),
    ("The treasure lies under the lighthouse in Dunmore.", "The treasure lies under the lighthouse in", " Dunmore"),
]


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_recall(smollm2_path: Path, precision: str) -> None:
    """Facts 800 tokens back are repeated, at prompt lengths of every residue mod 4."""
    text = (DATA / "text" / "eval.txt").read_text(encoding="utf-8")
    story = "\n\n".join([text[:200], *(fact for fact, _, _ in FACTS), text[200:4000].rpartition("\n")[0]])
    with edgert.load(smollm2_path, precision=precision, n_ctx=1024) as model:
        residues = set()
        for extra in range(4 if precision == "fast" else 1):
            for _, question, answer in FACTS:
                ids = model.tokenize(f"{'So. ' * extra}{story}\n\n{question}")
                residues.add(len(ids) % 4)
                said = model.generate(ids, max_tokens=6, temperature=0).text
                assert said.startswith(answer), f"{question} ... {said!r} after {len(ids)} tokens"
    assert precision == "exact" or residues == {0, 1, 2, 3}


RECALL = """
import json, sys, edgert
path, prompts = json.load(sys.stdin)
with edgert.load(path, n_ctx=2048) as model:
    print(json.dumps([[len(model.tokenize(p)), model.generate(p, max_tokens=6, temperature=0).text] for p in prompts]))
"""


@pytest.mark.parametrize("level", LEVELS)
def test_recall_from_afar(smollm2_path: Path, level: str) -> None:
    """Facts 1,500 tokens back are repeated at every ISA level."""
    text = (DATA / "text" / "eval.txt").read_text(encoding="utf-8")
    story = "\n\n".join([text[:200], *(fact for fact, _, _ in FACTS), text[200:7700].rpartition("\n")[0]])
    prompts = [f"{story}\n\n{question}" for _, question, _ in FACTS]
    run = subprocess.run([sys.executable, "-c", RECALL], input=json.dumps([str(smollm2_path), prompts]), text=True,
                         env={**os.environ, "EDGERT_ISA": level}, capture_output=True)  # fmt: skip
    assert run.returncode == 0, run.stderr
    for (length, said), (_, _, answer) in zip(json.loads(run.stdout), FACTS, strict=True):
        assert length > 1560
        assert said.startswith(answer), said


@pytest.mark.big
def test_memory_of_a_run(gemma3_path: Path, edgert_command: str) -> None:
    """`edgert run` needs the file, the KV cache and 200 MB: no weight is copied or repacked."""
    command = [edgert_command, "run", str(gemma3_path), "-p", "The capital of France is", "-n", "16", "--temp", "0"]
    n_layer, n_head_kv, head_dim, positions = 18, 1, 256, 64  # 64 positions: the prompt, its answer and a page to spare
    kv = n_layer * n_head_kv * head_dim * 2 * 2 * positions  # float16 keys and values
    peak = peak_rss(command)
    print(f"peak RSS {peak / MIB:.0f} MiB, file {gemma3_path.stat().st_size / MIB:.0f} MiB")
    assert peak <= gemma3_path.stat().st_size + kv + 200e6
