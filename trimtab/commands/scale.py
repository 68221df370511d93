"""`trimtab scale`: the calculator. What each role gets for given ratios, with the source of every number. No
model, no torch.

trimtab scale --width 8 --depth 4 --batch 16 --tokens 100 --scheme completep --optimizer AdamW --rule sde
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from trimtab.commands.options import Betas, Number
from trimtab.errors import Fault, TrimtabError, faults

NUMBERS = ("lr", "weight_decay", "eps")


@dataclasses.dataclass
class Scale:
    """What each role gets for given ratios of width, depth, batch and tokens, with its source. No model is
    needed."""

    width: float = 1.0
    """Width over the base's."""
    depth: float = 1.0
    """Number of residual branches over the base's."""
    batch: float = 1.0
    """Batch over the base's, in tokens or examples."""
    tokens: float = 1.0
    """Tokens or examples seen in the whole run over the base's."""
    scheme: str = "depth-mup"
    """sp, ntk, mup, depth-mup or completep."""
    optimizer: str = "AdamW"
    """Name of an optimizer: SGD, Adam, AdamW, NAdam, RMSprop, Adamax, Lion, Muon."""
    rule: str = "sde"
    """Rule over batch and tokens: sde, completedp, token-half-life, constant, or a .toml or .json file."""
    decay: str = "product"
    """What weight decay keeps: product (lr x wd), root, value (wd), tokens or epochs (its timescale)."""
    critical: Number = None
    """The critical batch over the base's, where it was measured."""
    lr: Number = None
    """The base's learning rate: then learning rates are shown beside their factors."""
    weight_decay: Number = None
    """The base's weight decay."""
    eps: Number = None
    """The base's eps."""
    betas: Betas = None
    """The base's betas; default those of torch, (0.9, 0.999), where the optimizer has them."""
    momentum: Number = None
    """The base's momentum."""
    steps: Number = None
    """The base's number of steps."""
    batch_tokens: Number = None
    """Tokens of one of the base's steps: the timescale of weight decay is then also shown in tokens."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        """Print the table."""
        from trimtab.parametrization.horizons.calculator import scale
        from trimtab.parametrization.horizons.horizon import Horizon

        problems: list[Fault | str] = []
        horizon = None
        try:
            horizon = Horizon(self.batch, self.tokens, self.rule, self.critical)
        except TrimtabError as error:
            problems += getattr(error, "faults", ()) or [str(error)]
        for name in (*NUMBERS, "steps", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                problems.append(f"{name.replace('_', '-')} must be a finite number >= 0: got {value!r}")
        hyper = self._memories() | ({"weight_decay": self.weight_decay} if self.weight_decay else {})
        found = None
        try:
            found = scale(
                width=self.width,
                depth=self.depth,
                horizon=horizon,
                scheme=self.scheme,
                optimizer=self.optimizer,
                decay=self.decay,
                **hyper,
            )
        except TrimtabError as error:
            problems += getattr(error, "faults", ()) or [str(error)]
        if problems or found is None:
            raise faults("trimtab scale:", problems)
        print(json.dumps(self._data(found), indent=2) if self.json else "\n".join(self._text(found)))
        return 0

    def _memories(self) -> dict[str, Any]:
        """The base's betas and momentum, as given or as torch has them where the optimizer has any."""
        betas = self.betas or (
            (0.9, 0.999) if self.optimizer in ("Adam", "AdamW", "NAdam", "Adamax") else None
        )
        momentum = self.momentum if self.momentum is not None else 0.95 if self.optimizer == "Muon" else None
        return {name: x for name, x in (("betas", betas), ("momentum", momentum)) if x is not None}

    def _data(self, found: Any) -> dict[str, Any]:
        lines = []
        for line in found.lines:
            values = {name: getattr(self, name) * getattr(line, name) for name in self._given()}
            lines.append(dataclasses.asdict(line) | ({"values": values} if values else {}))
        steps = found.horizon.steps
        return dict(
            width=self.width,
            depth=self.depth,
            batch=self.batch,
            tokens=self.tokens,
            scheme=dataclasses.asdict(found.scheme),
            rule=found.horizon.record.to_dict(),
            decay=dataclasses.asdict(found.decay),
            roles=lines,
            steps=dict(factor=steps, value=None if self.steps is None else self.steps * steps),
            memories={name: dict(base=x, here=found.memories[name]) for name, x in self._memories().items()},
            timescales=self._timescales(found),
            sources=[dataclasses.asdict(source) for source in found.sources],
            notes=list(found.notes),
        )

    def _given(self) -> list[str]:
        return [name for name in NUMBERS if getattr(self, name) is not None]

    def _timescales(self, found: Any) -> dict[str, dict[str, Any]]:
        """1/(lr wd) at the base and in the first hidden matrix here, where lr and weight decay are known."""
        from trimtab.parametrization.horizons.decay import timescale

        if self.lr is None or not self.weight_decay or not self.lr:
            return {}
        line = next(line for line in found.lines if line.role == "hidden")
        base = timescale(self.lr, self.weight_decay, batch=self.batch_tokens, steps=self.steps)
        here = timescale(
            self.lr * line.lr,
            self.weight_decay * line.weight_decay,
            batch=None if self.batch_tokens is None else self.batch_tokens * self.batch,
            steps=None if self.steps is None else self.steps * found.horizon.steps,
        )
        return {"base": dataclasses.asdict(base), "hidden": dataclasses.asdict(here)}

    def _text(self, found: Any) -> list[str]:
        sizes = (("width", self.width), ("depth", self.depth), ("batch", self.batch), ("tokens", self.tokens))
        ratios = ", ".join(f"{name} x {ratio:.6g}" for name, ratio in sizes)
        rule = found.horizon.record.name
        lines = [
            f"{ratios}; {found.scheme.name}, {self.optimizer}, rule {rule}, decay {found.decay.name}",
            "what the base's numbers are multiplied by:",
            "",
            *_table(found.lines, {}),
        ]
        if given := {name: getattr(self, name) for name in self._given()}:
            lines += ["", "with the base's numbers:", "", *_table(found.lines, given)]
        lines.append("")
        for name, base in self._memories().items():
            lines.append(f"{name}: {_shown(base)} at the base, {_shown(found.memories[name])} here")
        count = (
            ""
            if self.steps is None
            else f": {self.steps:.6g} at the base, {self.steps * found.horizon.steps:.6g} here"
        )
        lines.append(f"steps x {found.horizon.steps:.6g}{count}")
        for where, scale in self._timescales(found).items():
            units = " = ".join(f"{x:.4g} {unit}" for unit, x in scale.items() if x is not None)
            lines.append(f"timescale of weight decay, 1/(lr wd), {where}: {units}")
        if found.sources:
            lines += ["", "sources:"]
        for source in found.sources:
            lines.append(f"  {source.axis}: {source.source}")
            if source.contested:
                lines.append(f"    CONTESTED: {source.contested}")
        return [*lines, *([""] if found.notes else []), *(f"note: {note}" for note in found.notes)]


def _shown(x: Any) -> str:
    return ", ".join(f"{number:.6g}" for number in (x if isinstance(x, list | tuple) else (x,)))


def _table(lines: Any, base: dict[str, float]) -> list[str]:
    """Factors, or with `base` the numbers themselves."""
    names = ("init", *NUMBERS) if not base else tuple(base)
    head = ("role", "place", *(name.replace("_", " ") for name in names), "optimizer", "such as")
    rows = [head]
    for line in lines:
        numbers = (f"{getattr(line, name) * base.get(name, 1.0):.4g}" for name in names)
        rows.append((line.role, line.place, *numbers, line.optimizer, line.example))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    last = 2 + len(names)
    return [
        "  ".join(
            cell.rjust(width) if 2 <= i < last else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
