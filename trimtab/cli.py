"""The command line: thin, and free of torch until a command needs it.

    trimtab explain pkg.mod:build --width 512 --depth 24 --base-width 128 --base-depth 4
    trimtab explain --hf llama    --width 4096 --depth 32 --base-width 256 --base-depth 4

    trimtab transfer sweep.db                   does the best rate stay where it is?
    trimtab report   sweep.db -o report.html    the same as one offline page

Exit codes: 0 good; 1 the verdict is no; 2 the input is wrong (all faults at once, no traceback); 3 cannot tell; 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Literal

import tyro

from trimtab.errors import TrimtabError


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
    build: tyro.conf.Positional[str | None] = None
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function. Its module may have an `example()`."""
    hf: str | None = None
    """Instead of build: a model type of transformers (gpt2, llama, vit, ...), from its configuration, offline."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Class in torch.optim whose factors are shown."""
    example: str | None = None
    """A function that makes the inputs of one forward, if not `example` beside build."""
    json: bool = False
    """Print the parametrization as JSON."""

    def run(self) -> int:
        from trimtab.explaining import explain

        return explain(self)


@dataclasses.dataclass
class Transfer:
    """Does the optimum stay where it is as the network grows? Optima with intervals, drift, regret, verdict."""

    store: tyro.conf.Positional[str]
    """The file that `trimtab sweep` wrote."""
    over: Literal["depth", "width"] | None = None
    """Which size grows; both when both were swept."""
    hp: str = "lr"
    """The hyperparameter asked about: any number that was swept."""
    scheme: str | None = None
    """The scheme the exit code is about; depth-mup when the sweep has it."""
    metric: str = "train_loss"
    """train_loss, test_loss or accuracy."""
    where: tuple[str, ...] = ()
    """What to hold fixed where more was swept, as name=value."""
    json: bool = False
    """Print everything as JSON; infinite and missing numbers are null."""

    def run(self) -> int:
        from trimtab.transferring import transferring

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
        from trimtab.transferring import reporting

        return reporting(self)


Commands = (
    Annotated[Explain, tyro.conf.subcommand("explain")]
    | Annotated[Transfer, tyro.conf.subcommand("transfer")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[None, tyro.conf.subcommand("version", description="Print the version.")]
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        command = tyro.cli(Commands, prog="trimtab", description="Tune a small network once; keep its hyperparameters when it gets wider and deeper.", args=argv)  # type: ignore[arg-type]
        if command is None:
            import trimtab

            print(trimtab.__version__)
            return 0
        return command.run()
    except TrimtabError as error:
        print(f"trimtab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
