"""Running the console script and measuring it."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil


def peak_rss(command: list[str]) -> int:
    """Run a command to its end and return the largest resident set size it ever had, in bytes."""
    if sys.platform == "win32":
        process = psutil.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            peak = max(peak, process.memory_info().peak_wset)
        assert process.returncode == 0
        return peak
    # A small process in between: ru_maxrss of a child starts at the size of the process that it was forked from.
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    run = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    return int(run.stdout) * (1 if sys.platform == "darwin" else 1024)


def seconds_of(command: list[str], env: dict[str, str] | None = None) -> float:
    """Wall-clock seconds of a command that has to succeed."""
    start = time.perf_counter()
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    assert run.returncode == 0, run.stderr
    return seconds
