"""`trimtab explain`: what was found in a model and why, in words, and the table."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trimtab.commands.options import Positional, Text, got_class
from trimtab.errors import calling, faults

if TYPE_CHECKING:
    from torch import nn

    from trimtab.parametrization.result import Parametrization

HF = "hf:"
LARGE = 2**26  # numbers of a published model beyond which it is looked at without them
WHY = {
    "input": "its fan-in does not grow: it takes data, tokens or positions in",
    "hidden": "it maps one growing dimension to another: update over fan-in",
    "readout": "its fan-out does not grow: start and update both over fan-in",
    "elementwise": "it acts number by number: nothing is summed, so nothing is divided",
    "scalar": "a single number",
}


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
    build: Positional[Text] = None
    """Your `build(width, depth) -> nn.Module`, as pkg.mod:function or file.py:function; its module may have
    an `example()`. Or a model type of transformers: hf:gpt2, hf:llama, hf:vit, ..."""
    hf: Text = None
    """The same without numbers, on the meta device, whatever its size: a model type of transformers (gpt2,
    llama, vit, ...), from its configuration, offline."""
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
        """Print roles, branches and factors of the user's model; returns the exit code."""
        import torch

        from trimtab.parametrization.planning import parametrize

        sizes = ("width", "depth", "base_width", "base_depth")
        values = ((name.replace("_", "-"), getattr(self, name)) for name in sizes)
        problems = [f"{name} must be >= 1: got {value}" for name, value in values if value < 1]
        cls = getattr(torch.optim, self.optimizer, None)
        if cls is None:
            got = got_class(self.optimizer, dir(torch.optim))
            problems.append(f"optimizer must be a class in torch.optim: {got}")
        if (self.build is None) == (self.hf is None):
            problems.append("name one model: file.py:build (or pkg.mod:build), or --hf with a model type")
        if problems:
            raise faults("trimtab explain:", problems)
        family = self.hf or (self.build or "").removeprefix(HF)
        published = self.hf is not None or family != self.build
        model, base, example, said = _build_published(self, family) if published else _build_own(self)
        p = parametrize(model, base, scheme=self.scheme, example=example, apply=False)
        p.notes[:0] = self._unfollowed(p)
        if said:
            print(said, file=sys.stderr if self.json else sys.stdout)
        print(p.to_json() if self.json else "\n".join(_lines(p, cls)))
        return 0

    def _unfollowed(self, p: Parametrization) -> list[str]:
        """A note where a size was to change and the model did not."""
        why = {
            "width": "no dimension differs: build ignores its width",
            "depth": "there are as many residual branches: build ignores its depth, or has no skips to scale",
        }
        sizes = {"width": (self.width, self.base_width), "depth": (self.depth, self.base_depth)}
        return [
            f"{axis} {own} gives what {axis} {base} gives, {why[axis]}."
            for axis, (own, base) in sizes.items()
            if own != base and getattr(p, axis) == 1
        ]


def _build_published(options: Explain, family: str) -> tuple[nn.Module, nn.Module, Any, str]:
    """A model of transformers at its size, on meta where it is large, its base, the inputs, and nothing to
    say."""
    import torch

    from trimtab.runs.published_models import load_published
    from trimtab.runs.user_code import build_model

    build, make = load_published(family)
    with torch.device("meta"):
        model = build_model(build, options.width, options.depth)
    if options.hf is None and sum(p.numel() for p in model.parameters()) <= LARGE:
        model = build_model(build, options.width, options.depth)
    return model, build_model(build, options.base_width, options.base_depth), make(), ""


def _build_own(options: Explain) -> tuple[nn.Module, nn.Module, Any, str]:
    """The user's model, its base, the inputs of a forward, and how they were inferred where they were."""
    from trimtab.runs.user_code import beside, build_model, load

    name = options.build or ""
    build = load(name)
    make = load(options.example) if options.example else beside(name, "example")
    data = load(options.data) if options.data else beside(name, "data")
    if data is not None and (options.data or make is None):
        make = _inputs_of(data)
    model = build_model(build, options.width, options.depth, name=name)
    base = build_model(build, options.base_width, options.base_depth, name=name)
    if make is None:
        return model, base, *_infer(name, model, base)
    return model, base, _call(make), ""


def _inputs_of(data: Callable[..., Any]) -> Callable[[], Any]:
    """The inputs of the first training batch: the data that check, train and sweep take serves here too."""

    from trimtab.runs.user_code import of_step

    def make() -> Any:
        batch = of_step(data)(0)
        return batch if isinstance(batch, dict) else batch[0]

    return make


def _call(make: Callable[[], Any]) -> Any:
    with calling("example()"):
        return make()


def _infer(name: str, *models: nn.Module) -> tuple[Any, str]:
    from trimtab.structure.inputs import cure, infer

    found = infer(*models)
    if found.example is None:
        raise faults("trimtab explain:", [cure(name, found, "--example", "example(), which returns them,")])
    return found.example, f"inputs were inferred: {found.words}; pass --example file.py:function to choose"


def _lines(p: Parametrization, cls: Any) -> list[str]:
    lines = ["found:"]
    for stack in dict.fromkeys(b.stack for b in p.branches):
        branches = [b for b in p.branches if b.stack == stack]
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(b.kind for b in branches).items())
        lines.append(
            f"  {stack}: {len(branches)} residual branches ({kinds}); the first ends in "
            f"{', '.join(branches[0].tail) or 'nothing that folds'}: scaling that scales the branch"
        )
    if not p.branches:
        lines.append(
            "  no residual branches: no add of a value and something computed from it through a matrix"
        )
    for role, n in Counter(row.role for row in p.rows.values()).items():
        lines.append(f"  {n} {role}: {WHY[role]}")
    laws = Counter(row.law for row in p.rows.values() if row.law)
    lines.append(
        "  init laws measured against the base: "
        + (", ".join(f"{law} ({n})" for law, n in laws.items()) or "when the model has weights (p.apply)")
    )
    lines += ["", str(p), "", f"{cls.__name__} multiplies the base's hyperparameters by:"]
    groups: dict[tuple[float, ...], list[str]] = {}
    for name, f in p.factors(cls).items():
        key = tuple(float(f"{f[number]:.6g}") for number in ("lr", "weight_decay", "eps"))
        groups.setdefault(key, []).append(name)
    for (lr, decay, eps), names in sorted(groups.items(), reverse=True):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"  lr x {lr:<9.4g} decay x {decay:<9.4g} eps x {eps:<9.4g} {names[0]}{more}")
    return lines
