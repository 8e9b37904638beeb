"""`edgert bench` with everything switched on, on a tiny model."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
from pathlib import Path

from mixes import Mix
from shapes import SHAPES
from synth import synthesise


def test_batches_starts_and_plot(edgert_command: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPES["qwen3-0.6b"], n_embd=256, n_ff=256, heads=2, heads_kv=1)
    model = synthesise(shape, Mix("Q8_0", pure=True), tmp_path / "tiny.gguf", layers=1, n_vocab=512)
    command = [edgert_command, "bench", str(model), "-p", "40", "-n", "4", "-d", "20", "-b", "3", "-r", "2", "-t", "1"]
    done = subprocess.run([*command, "--starts", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["sequences"] == 3
    assert all(len(report[phase]["all"]) == 2 for phase in ("prompt", "decode", "batch"))
    assert 0 < report["warm_start_s"] < report["cold_start_s"]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    assert "3 at once" in text
    assert "cold start" not in text

    drawn = subprocess.run([*command, "--plot", str(tmp_path / "out.png")], capture_output=True, text=True)
    if importlib.util.find_spec("matplotlib"):
        assert drawn.returncode == 0, drawn.stderr
        assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
        wrong = subprocess.run([*command, "--plot", str(tmp_path / "out.xyz")], capture_output=True, text=True)
        assert wrong.returncode == 2
        assert "out.xyz: Format 'xyz' is not supported" in wrong.stderr
    else:
        assert drawn.returncode == 2
        assert "pip install 'edgert[bench]'" in drawn.stderr
