"""Ctrl-C where Python itself would lose it."""

from __future__ import annotations

import subprocess
import sys

CODE = """\
import time
from edgert.apps import main

class Finalised:
    def __del__(self):
        raise KeyboardInterrupt

def command(argv):
    Finalised()
    time.sleep(5)
    return 0

main._dispatch = command
raise SystemExit(main.main([]))
"""


def test_an_interrupt_within_a_finaliser_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 130
    assert done.stderr == ""
