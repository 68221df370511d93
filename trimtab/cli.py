"""The command line: thin, and free of torch until a command needs it.

    trimtab demo
    trimtab explain pkg.mod:build --width 512 --depth 24 --base-width 128 --base-depth 4
    trimtab explain --hf llama    --width 4096 --depth 32 --base-width 256 --base-depth 4
    trimtab check   pkg.mod:build --widths 64 128 256 --depths 2 4 8 --base-width 64 --base-depth 2

    trimtab train    run.toml
    trimtab new      sweep.toml
    trimtab sweep    sweep.toml --workers 2
    trimtab status   sweep.db
    trimtab transfer sweep.db                   does the best rate stay where it is?
    trimtab report   sweep.db -o report.html    the same as one offline page
    trimtab limit    --width 64,128,256 --depth 4,8,inf -o limit.html    finite networks beside the infinite one

Exit codes: 0 good; 1 the verdict is no; 2 the input is wrong (all faults at once, no traceback); 3 cannot tell;
4 finished but some cells failed; 130 interrupted and resumable.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    import tyro

    Text = str | None
    Number = float | None
    Size = Literal["depth", "width"] | None
else:
    try:
        import tyro
    except ModuleNotFoundError:  # with torch alone installed the command says what it needs
        tyro = None
    else:  # --help shows what to write, not that None is what an option left out stands for
        Text = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")]
        Number = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
        Size = Annotated[
            Literal["depth", "width"] | None, tyro.conf.arg(metavar="{depth,width}", help_behavior_hint="")
        ]

CLOSED_PIPE = 141  # what a shell reports of a program that SIGPIPE ended: `trimtab ... | head` is no verdict
# What pip installs for a module, where that is not its own name.
HF, IMAGES = "'trimtab[hf]'", "'trimtab[images]'"
CORE = ("tyro", "rich", "pydantic", "pandas", "scipy", "plotly", "jinja2", "sklearn", "numpy", "torch")
PACKAGES = {"sklearn": "scikit-learn", "PIL": IMAGES, "transformers": HF, "accelerate": HF}


@dataclasses.dataclass
class Demo:
    """The headline in about a minute, offline, on embedded real data: does the best rate stay when the network grows?"""

    out: str = "trimtab-demo"
    """Folder for demo.db and report.html. The same command again goes on where it was."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs."""
    workers: int = 2
    """Processes."""

    def run(self) -> int:
        from trimtab.commands.demo import demo

        return demo(self)


@dataclasses.dataclass
class Explain:
    """Roles, branches and factors of your model at a target size."""

    width: int
    """Width of the model you are going to train."""
    depth: int
    """Its depth."""
    base_width: int
    """Width of the model you tuned."""
    base_depth: int
    """Its depth."""
    build: tyro.conf.Positional[Text] = None
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function. Its module may have an `example()`."""
    hf: Text = None
    """Instead of build: a model type of transformers (gpt2, llama, vit, ...), from its configuration, offline."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Class in torch.optim whose factors are shown."""
    example: Text = None
    """A function that makes the inputs of one forward, if not `example` beside build."""
    data: Text = None
    """Your `data(split, seed, step)`, whose first batch is the example, if not `data` beside build."""
    json: bool = False
    """Print the parametrization as JSON."""

    def run(self) -> int:
        from trimtab.commands.explain import explain

        return explain(self)


@dataclasses.dataclass
class Train:
    """Train one run, described by a TOML file. Ctrl-C and the same command again: it goes on where it was."""

    config: tyro.conf.Positional[str]
    """run.toml: the fields of trimtab.train.RunConfig."""
    checkpoint: Text = None
    """Where to keep the run while it lasts; default: beside the file, as run.checkpoint."""
    out: Text = None
    """Write the result with its curves to this JSON file."""
    json: bool = False
    """Print the result as JSON, without progress."""

    def run(self) -> int:
        from trimtab.commands.train import train

        return train(self)


@dataclasses.dataclass
class New:
    """Write a commented sweep.toml that runs as it is in about a minute."""

    path: tyro.conf.Positional[str]
    """Where to write it; a file that is there is not replaced."""

    def run(self) -> int:
        from trimtab.commands.sweep import new

        return new(self)


@dataclasses.dataclass
class Sweep:
    """Run a sweep, or go on with it: only what is missing is done."""

    config: tyro.conf.Positional[str]
    """sweep.toml: `trimtab new sweep.toml` writes one with every key explained."""
    store: Text = None
    """The SQLite file of results; default: beside the file, as sweep.db."""
    workers: int = 2
    """Processes."""
    threads: int = 1
    """Threads of each process."""

    def run(self) -> int:
        from trimtab.commands.sweep import sweep

        return sweep(self)


@dataclasses.dataclass
class Status:
    """How far a sweep is, and what failed."""

    store: tyro.conf.Positional[str]
    """The sweep's SQLite file."""
    csv: Text = None
    """Also write all cells to this CSV file."""
    json: bool = False
    """Print the counts as JSON."""

    def run(self) -> int:
        from trimtab.commands.sweep import status

        return status(self)


@dataclasses.dataclass
class Retry:
    """Set cells back to waiting; the next `trimtab sweep` runs them."""

    store: tyro.conf.Positional[str]
    """The sweep's SQLite file."""
    failed: bool = False
    """Cells that raised, hung or killed their worker."""
    diverged: bool = False
    """Cells whose loss was lost."""

    def run(self) -> int:
        from trimtab.commands.sweep import retry

        return retry(self)


@dataclasses.dataclass
class Doctor:
    """Versions, devices and threads, and whether a folder's file system keeps what a sweep needs."""

    folder: tyro.conf.Positional[str] = "."
    """The folder a store is going to lie in."""

    def run(self) -> int:
        from trimtab.commands.doctor import doctor

        return doctor(self)


@dataclasses.dataclass
class Version:
    """Print the version."""

    def run(self) -> int:
        import trimtab

        print(trimtab.__version__)
        return 0


@dataclasses.dataclass
class Transfer:
    """Does the optimum stay where it is as the network grows? Optima with intervals, drift, regret, verdict."""

    store: tyro.conf.Positional[str]
    """The file that `trimtab sweep` wrote."""
    over: Size = None
    """Which size grows; both when both were swept."""
    hp: str = "lr"
    """The hyperparameter asked about: any number that was swept."""
    scheme: Text = None
    """The scheme the exit code is about. Default: depth-mup if it was swept, else completep, else mup, ntk,
    sp."""
    metric: str = "train_loss"
    """train_loss, test_loss or accuracy."""
    where: tuple[str, ...] = ()
    """What to hold fixed where more was swept, as name=value."""
    suggest: Text = None
    """Where the runs cannot tell: write the sweep with what would (values, seeds, sizes) to this file."""
    json: bool = False
    """Print everything as JSON; infinite and missing numbers are null."""

    def run(self) -> int:
        from trimtab.commands.transfer import transferring

        return transferring(self)


@dataclasses.dataclass
class Report:
    """One offline, interactive page about a sweep."""

    store: tyro.conf.Positional[str]
    """The file that `trimtab sweep` wrote."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "report.html"
    """The page to write."""
    hp: str = "lr"
    """The hyperparameter the page is about."""
    metric: str = "train_loss"
    """train_loss, test_loss or accuracy."""
    json: bool = False
    """Print what was written as JSON."""

    def run(self) -> int:
        from trimtab.commands.transfer import reporting

        return reporting(self)


@dataclasses.dataclass
class Check:
    """Coordinate check: do hyperparameters transfer over width and depth? Exit code 0 PASS, 1 FAIL, 3 INCONCLUSIVE."""

    build: tyro.conf.Positional[str]
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function. Its module may have
    `data` and `loss`."""
    base_width: int
    """Width of the model you tuned; depths are measured at it."""
    base_depth: int
    """Its depth; widths are measured at it."""
    widths: tuple[int, ...] = ()
    """Widths to measure. Default: the base's times 1, 2, 4, 8."""
    depths: tuple[int, ...] = ()
    """Depths to measure. Default: the base's times 1, 2, 4, 8."""
    data: Text = None
    """Your `data(split, seed, step)`, which returns (inputs, target) or a dict, if not `data` beside build. As in a sweep;
    the Python function's `data(step)` is taken too."""
    loss: Text = None
    """Your `loss(output, batch)`, if not `loss` beside build, nor cross-entropy. As in a sweep; beside `data(step)` it is
    `loss(output, target)`."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Class in torch.optim; or your own set-up `(model, width, depth) -> optimizer` as pkg.mod:function, measured as it is against --expect."""
    expect: Text = None
    """With an optimizer of your own: the scheme whose predictions it is measured against (default depth-mup)."""
    lr: float = 1e-3
    """Base learning rate."""
    weight_decay: Number = None
    """Base weight decay, if not the optimizer's default."""
    steps: int = 5
    """Training steps."""
    seeds: int = 3
    """Initialisations at every size."""
    sharpness: bool = False
    """Also follow the top eigenvalue of the Hessian."""
    device: Text = None
    """Where the models are put."""
    figure: Text = None
    """Write the figure to this HTML file."""
    store: Text = None
    """Also keep it in this sweep's store: `trimtab report` then has a section on it."""
    json: bool = False
    """Print the check as JSON."""

    def run(self) -> int:
        from trimtab.commands.check import checking

        return checking(self)


@dataclasses.dataclass
class Limit:
    """Finite networks against the infinite one: how far off, how fast that falls, how large is large enough. Exit code 0 as the theory says, 1 not, 3 cannot tell."""

    width: str = "32,64,128,256"
    """Widths of the networks, comma-separated."""
    depth: str = "2,4,8,inf"
    """Numbers of residual branches and inf, comma-separated; inf alone stands for 4,8,inf."""
    activation: str = "tanh"
    """relu, tanh, erf, gelu or linear."""
    lr: float = 0.2
    """Base rate eta_0, independent of width and depth."""
    steps: int = 10
    """Gradient steps."""
    data: str = "digits"
    """A data set of images, its points labelled +1 for even classes and -1 for odd ones."""
    points: int = 4
    """Training points."""
    gamma0: float = 1.0
    """Richness: how much features learn."""
    alpha: float = 0.5
    """Branches are scaled by depth^-alpha."""
    networks: int = 128
    """Networks of the smallest width; wider ones in proportion 1/width, at least 16."""
    samples: int = 8000
    """Samples of the theory's solution; its error falls as their root."""
    tolerance: float = 0.05
    """Relative error that counts as close enough."""
    rates: Text = None
    """Also the best rate: loss against these rates, comma-separated, in the limit and in networks."""
    seed: int = 0
    """Of networks, samples and points."""
    store: Text = None
    """A sweep's file to attach the section to; `trimtab report` then shows it."""
    out: Annotated[str | None, tyro.conf.arg(aliases=["-o"], metavar="STR", help_behavior_hint="")] = None
    """Write an offline page to this HTML file."""
    json: bool = False
    """Print everything as JSON; infinite and missing numbers are null."""

    def run(self) -> int:
        from trimtab.commands.limit import limiting

        return limiting(self)


COMMANDS = (
    *(Demo, Explain, Check, Train, New, Sweep, Status, Retry, Transfer, Report, Limit),
    *(Doctor, Version),
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
        print(f"trimtab: {missing(error.name)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _closed()
    except SystemExit as end:  # rich ends the program itself when its reader has gone
        if isinstance(end.__context__, BrokenPipeError):
            return _closed()
        raise


def _run(argv: list[str] | None) -> int:
    if tyro is None:
        raise ModuleNotFoundError("No module named 'tyro'", name="tyro")
    commands: Any = None
    for kind in COMMANDS:  # a union: tyro makes a subcommand of each
        one = Annotated[kind, tyro.conf.subcommand(kind.__name__.lower())]
        commands = one if commands is None else commands | one
    about = "Tune a small network once; keep its hyperparameters when it gets wider and deeper."
    return tyro.cli(commands, prog="trimtab", description=about, args=argv).run()


def missing(module: str) -> str:
    """What to install for a module that is not there, with all else that is missing.

    >>> missing("PIL")
    "this command needs PIL, which is not installed: pip install 'trimtab[images]'"
    """
    name = module.split(".")[0]
    package = PACKAGES.get(name, name)
    shown = name if package in (HF, IMAGES) else package
    others = [PACKAGES.get(other, other) for other in CORE if other != name and not _installed(other)]
    return f"this command needs {shown}, which is not installed: pip install {' '.join([package, *others])}"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _closed() -> int:
    """Nobody reads on: what is left goes nowhere, so that Python does not complain of it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # a stream that is no file
            continue
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
