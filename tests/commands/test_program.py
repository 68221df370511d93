"""The command as a process of its own."""

import os
import subprocess
import sys

from trimtab import cli

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


def test_a_command_that_is_not_known_names_the_nearest(capsys):
    assert cli.main(["swep", "sweep.toml"]) == 2
    assert "unknown command 'swep', nearest 'sweep'; known: demo, explain" in capsys.readouterr().err


def test_ctrl_c_is_said_once(monkeypatch, capsys):
    def stopped(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", stopped)
    assert cli.main(["limit"]) == 130
    assert capsys.readouterr().err == "trimtab: interrupted.\n"
