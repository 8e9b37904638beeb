"""Draw the ratios that compare.py measured: one group of bars for each of its JSON files.

    python tests/bench/compare.py 1b.gguf ... --json 1b.json
    python tests/bench/plot.py ratios.svg 1b.json smollm2.json

A bar is edgert's rate over a peer's, median of the pairs, with their spread; 1 is a draw. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLOURS = {"xllamacpp": "#4269d0", "llama-cpp-python": "#efb118", "llama-bench": "#6cc5b0"}


def rates(file: Path) -> list[dict[str, Any]]:
    """Rows of a file of compare.py that tell tokens per second; SystemExit if it is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return [row for row in content["rows"] if row["unit"] == "tokens/s" and row["ratio"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"plot: {file} is not a file of compare.py: {error}") from None


def draw(out: Path, files: list[Path]) -> None:
    """A picture with a panel for each file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "edgert"  # the same data make the same file
    panels = [rates(file) for file in files]
    heights = [len({row["work"] for row in rows}) for rows in panels]
    figure, axes = plt.subplots(len(files), 1, figsize=(8, 1.2 + 0.55 * sum(heights)), sharex=True, squeeze=False,
                                gridspec_kw={"height_ratios": heights})  # fmt: skip
    for axis, rows, file in zip(axes[:, 0], panels, files, strict=True):
        works = list(dict.fromkeys(row["work"] for row in rows))
        peers = list(dict.fromkeys(row["peer"] for row in rows))
        for row in rows:
            at = works.index(row["work"]) + 0.4 * (peers.index(row["peer"]) - (len(peers) - 1) / 2)
            low, high = row["ratio_min"], row["ratio_max"]
            axis.barh(at, row["ratio"], 0.36, color=COLOURS.get(row["peer"], "#9c6b4e"),
                      xerr=[[row["ratio"] - low], [high - row["ratio"]]], error_kw={"lw": 0.8})  # fmt: skip
            axis.text(row["ratio"] + 0.05, at, f"{row['ratio']:.2f}", va="bottom", fontsize=7)
        axis.set_yticks(range(len(works)), works, fontsize=8)
        axis.invert_yaxis()
        axis.axvline(1, color="black", lw=0.8)
        axis.set_title(file.stem, fontsize=9, loc="left")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    names = list(dict.fromkeys(row["peer"] for rows in panels for row in rows))
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS.get(name, "#9c6b4e")) for name in names]
    axes[0, 0].legend(handles, names, fontsize=7, loc="lower right", frameon=False)
    axes[-1, 0].set_xlabel("times as fast as the peer", fontsize=8)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: plot.py OUT.svg COMPARE.json ...", file=sys.stderr)
        return 2
    draw(Path(arguments[0]), [Path(name) for name in arguments[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
