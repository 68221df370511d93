"""The command line: the list of commands, their exit codes, and what to install for one that cannot run.

A command is a file of `trimtab.commands`. None loads torch, pandas or rich before it runs.

    trimtab demo
    trimtab explain pkg.mod:build --width 512 --depth 24 --base-width 128 --base-depth 4
    trimtab explain --hf llama    --width 4096 --depth 32 --base-width 256 --base-depth 4
    trimtab scale   --width 8 --depth 4 --batch 16 --tokens 100          what each role gets; no model needed
    trimtab check   pkg.mod:build --widths 64 128 256 --depths 2 4 8 --base-width 64 --base-depth 2

    trimtab train    run.toml
    trimtab new      sweep.toml
    trimtab sweep    sweep.toml --workers 2
    trimtab tune     tune.toml                  search at base size, print what to use at target size
    trimtab status   sweep.db
    trimtab transfer sweep.db                   does the best rate stay where it is?
    trimtab report   sweep.db -o report.html    the same as one offline page
    trimtab limit    --width 64,128,256 --depth 4,8,inf -o limit.html    finite networks beside the infinite
    one
    trimtab data get cifar10                    from its official address, resumable, checksummed
    trimtab doctor                              versions, extras, devices, data sets

Exit codes: 0 good; 1 the verdict is no; 2 the input is wrong (all faults at once, no traceback); 3 cannot
tell; 4 finished but some cells failed; 130 interrupted and resumable.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
import sys
from typing import Annotated, Any, NoReturn

from trimtab.commands.check import Check
from trimtab.commands.data import Data
from trimtab.commands.demo import Demo
from trimtab.commands.doctor import Doctor
from trimtab.commands.explain import Explain
from trimtab.commands.limit import Limit
from trimtab.commands.new import New
from trimtab.commands.report import Report
from trimtab.commands.retry import Retry
from trimtab.commands.scale import Scale
from trimtab.commands.status import Status
from trimtab.commands.sweep import Sweep
from trimtab.commands.train import Train
from trimtab.commands.transfer import Transfer
from trimtab.commands.tune import Tune
from trimtab.errors import InputError, TrimtabError

INTERRUPTED = 130
CLOSED_PIPE = 141  # what a shell reports of a program that SIGPIPE ended: `trimtab ... | head` is no verdict
# What pip installs for a module, where that is not its own name.
HF, IMAGES, OPTUNA, RAY = (f"'trimtab[{extra}]'" for extra in ("hf", "images", "optuna", "ray"))
CORE = (
    *("tyro", "rich", "pydantic", "pandas", "scipy", "plotly", "jinja2", "sklearn", "platformdirs"),
    *("numpy", "torch"),
)
PACKAGES = {"sklearn": "scikit-learn", "PIL": IMAGES, "transformers": HF, "accelerate": HF}
PACKAGES |= {"optuna": OPTUNA, "ray": RAY}


@dataclasses.dataclass
class Version:
    """Print the version."""

    def run(self) -> int:
        import trimtab

        print(trimtab.__version__)
        return 0


COMMANDS = (
    *(Demo, Explain, Scale, Check, Train, New, Sweep, Tune, Status, Retry, Transfer, Report, Limit),
    *(Data, Doctor, Version),
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        code = _run(argv)
        sys.stdout.flush()  # a reader that has gone is noticed here, not when Python ends
        return code
    except TrimtabError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "trimtab":
            raise
        return _without(error.name, sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("trimtab: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _drop_output()
    except SystemExit as end:  # rich ends the program itself when its reader has gone
        if isinstance(end.__context__, BrokenPipeError):
            return _drop_output()
        raise


def program() -> NoReturn:
    """`trimtab` as a process of its own.

    Interrupted, it leaves at once: what had to be kept is on disk, and with torch loaded Python's own end
    takes seconds on a busy machine.
    """
    code = main()
    if code == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _run(argv: list[str] | None) -> int:
    import tyro

    given = (sys.argv[1:] if argv is None else argv)[:1]
    names = [kind.__name__.lower() for kind in COMMANDS]
    if given and not given[0].startswith("-") and given[0] not in names:
        near = difflib.get_close_matches(given[0], names, n=1)
        nearest = f", nearest {near[0]!r}" if near else ""
        raise InputError(f"unknown command {given[0]!r}{nearest}; known: {', '.join(names)}.")
    commands: Any = None
    for kind in COMMANDS:  # a union: tyro makes a subcommand of each
        one = Annotated[kind, tyro.conf.subcommand(kind.__name__.lower())]
        commands = one if commands is None else commands | one
    about = "Tune a small network once; keep its hyperparameters when it gets wider and deeper."
    return tyro.cli(commands, prog="trimtab", description=about, args=argv).run()


def _without(module: str, argv: list[str]) -> int:
    """Help needs no package at all: without tyro it is the list at the top of this file."""
    helped = module == "tyro" and argv[:1] in ([], ["-h"], ["--help"])
    if helped:
        print(__doc__)
    print(f"trimtab: {missing(module)}", file=sys.stderr)
    return 0 if helped and argv else 2


def missing(module: str) -> str:
    """What to install for a module that is not there, with all else that is missing.

    >>> missing("PIL")
    "this command needs PIL, which is not installed: pip install 'trimtab[images]'"
    """
    name = module.split(".")[0]
    package = PACKAGES.get(name, name)
    shown = name if package.startswith("'") else package
    others = [PACKAGES.get(other, other) for other in CORE if other != name and not _is_installed(other)]
    return f"this command needs {shown}, which is not installed: pip install {' '.join([package, *others])}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _drop_output() -> int:
    """Nobody reads on: what is left goes nowhere, so that Python does not complain of it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream that is no file
            continue
    return CLOSED_PIPE


if __name__ == "__main__":
    program()
