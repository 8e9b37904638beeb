"""The picture of a measurement: a bar for each rate, a dot for each repetition."""

import importlib
import importlib.util
from typing import Any

from .console import UsageError

LABELS = {"prompt": "prompt", "decode": "generation", "batch": "together"}


def require() -> None:
    """UsageError without matplotlib, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'edgert[bench]'")


def draw(report: dict[str, Any], path: str) -> None:
    """Write the rates of a report as a picture; the type is that of the file's name."""
    phases = [phase for phase in LABELS if report[phase]]
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(2 + 2 * len(phases), 4), layout="constrained")
    for i, phase in enumerate(phases):
        axes, rates = figure.add_subplot(1, len(phases), i + 1), report[phase]
        axes.bar([0], [rates["median"]], width=0.6, color="#9ecae1")
        axes.plot([0] * len(rates["all"]), rates["all"], "o", color="#08519c")
        axes.set_xticks([0], [LABELS[phase]])
        axes.set_xlim(-0.8, 0.8)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{rates['median']:.1f} tokens/s")
    figure.suptitle(f"{report['model']}, {report['threads']} threads, depth {report['depth']}")
    try:
        figure.savefig(path)
    except ValueError as error:  # a type of file that it does not know
        raise UsageError(f"--plot {path}: {error}") from None
