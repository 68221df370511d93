"""The command line: thin, and free of torch until a command needs it.

    trimtab explain pkg.mod:build --width 512 --depth 24 --base-width 128 --base-depth 4
    trimtab explain --hf llama    --width 4096 --depth 32 --base-width 256 --base-depth 4
    trimtab check   pkg.mod:build --widths 64 128 256 --depths 2 4 8 --base-width 64 --base-depth 2

Exit codes: 0 good; 1 the verdict is no; 2 the input is wrong (all faults at once, no traceback); 3 cannot tell; 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

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
class Check:
    """Coordinate check: do hyperparameters transfer over width and depth? Exit code 0 PASS, 1 FAIL, 3 INCONCLUSIVE."""

    build: tyro.conf.Positional[str]
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function. Its module may have `data(step)` and `loss(output, target)`."""
    base_width: int
    """Width of the model you tuned; depths are measured at it."""
    base_depth: int
    """Its depth; widths are measured at it."""
    widths: tuple[int, ...] = ()
    """Widths to measure. Default: the base's times 1, 2, 4, 8."""
    depths: tuple[int, ...] = ()
    """Depths to measure. Default: the base's times 1, 2, 4, 8."""
    data: str | None = None
    """Your `data(step)`, a dict or (inputs, target), if not `data` beside build; `data(split, seed, step)` is taken too."""
    loss: str | None = None
    """Your `loss(output, target)`, if not `loss` beside build, nor cross-entropy."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Class in torch.optim; or your own set-up `(model, width, depth) -> optimizer` as pkg.mod:function, measured as it is against --expect."""
    expect: str | None = None
    """With an optimizer of your own: the scheme whose predictions it is measured against (default depth-mup)."""
    lr: float = 1e-3
    """Base learning rate."""
    weight_decay: float | None = None
    """Base weight decay, if not the optimizer's default."""
    steps: int = 5
    """Training steps."""
    seeds: int = 3
    """Initialisations at every size."""
    sharpness: bool = False
    """Also follow the top eigenvalue of the Hessian."""
    device: str | None = None
    """Where the models are put."""
    figure: str | None = None
    """Write the figure to this HTML file."""
    json: bool = False
    """Print the check as JSON."""

    def run(self) -> int:
        from trimtab.checking import checking

        return checking(self)


Commands = (
    Annotated[Explain, tyro.conf.subcommand("explain")]
    | Annotated[Check, tyro.conf.subcommand("check")]
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
