"""The command as a process of its own."""

import os
import subprocess
import sys

SOURCE = """
import atexit, sys
from trimtab import cli

atexit.register(print, "Python's own end")
cli.main = lambda: print("said") or {code}
cli.program()
"""


def run(code: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SOURCE.format(code=code)], capture_output=True, text=True, env=os.environ
    )


def test_interrupted_it_leaves_at_once_with_all_it_said():
    ended = run(130)
    assert (ended.returncode, ended.stdout) == (130, "said\n")


def test_otherwise_it_ends_as_python_does():
    ended = run(3)
    assert (ended.returncode, ended.stdout) == (3, "said\nPython's own end\n")
