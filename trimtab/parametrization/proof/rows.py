"""What a proof by one step holds: one row for each kind of parameter, target over base, and the total.

wrong, if any row is; else what the total says
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

Verdict = Literal["good", "wrong", "far from its limit", "not claimed", "untested"]


@dataclasses.dataclass(frozen=True)
class ProofRow:
    """One kind of parameter, target over base.

    Args:
        kind: its name, block numbers taken out.
        count: how many tensors of the model are of this kind; `entries`: how many numbers of the base.
        start: rms of what the kind writes to, None where no module of its own shows it.
        gradient: rms of the entries of the gradient; `wanted_gradient` is what the plan says.
        change: sum u |g|, what a first Adam-like step does to L.
        sgd: sum (u/s) g^2, the same for SGD.
        wanted: of `change`, the nearest number of the range the structure allows.
        verdict: "good", "wrong", "far from its limit", "not claimed" or "untested".
        span: (low, high) that a base far from its limit may add to `wanted`.
        scatter: standard error of log `change`, where several draws were tried; else 0.
        cause: why, in words, where the verdict is not "good".
    """

    kind: str
    role: str
    place: str
    count: int
    start: float | None
    gradient: float | None
    change: float | None
    sgd: float | None
    wanted: float
    wanted_gradient: float
    verdict: Verdict
    cause: str = ""
    entries: int = 0
    span: tuple[float, float] = (1.0, 1.0)
    scatter: float = 0.0

    def __str__(self) -> str:
        if self.change is None or self.gradient is None:
            return f"{self.kind}: {self.verdict}{f' ({self.cause})' if self.cause else ''}"
        return (
            f"{self.kind}: {self.verdict}, change {self.change:.3g} (wanted {self.wanted:.3g}), gradient "
            f"{self.gradient:.3g} "
            f"(wanted {self.wanted_gradient:.3g}){f': {self.cause}' if self.cause else ''}"
        )


@dataclasses.dataclass(frozen=True)
class Proof(Sequence[ProofRow]):
    """The rows of a proof by one step, and `total`: all kinds together.

    Args:
        reason: why nothing was tried, where nothing was.
    """

    rows: tuple[ProofRow, ...] = ()
    total: ProofRow | None = None
    reason: str = ""

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ProofRow]:
        return iter(self.rows)

    @property
    def wrong(self) -> tuple[ProofRow, ...]:
        """The rows that disagree with the plan, the total among them."""
        every = (*self.rows, *([self.total] if self.total else []))
        return tuple(row for row in every if row.verdict == "wrong")

    @property
    def verdict(self) -> Verdict:
        """Of the whole: "wrong" if any row is, else the total's."""
        if self.wrong:
            return "wrong"
        if self.total is None:
            return "untested"
        return self.total.verdict

    def summary(self) -> str:
        """The verdict in a line, with the reason where there is one to look at.

        >>> Proof(reason="it is too large").summary()
        'untested: it is too large'
        """
        if self.wrong:
            more = f"; and {len(self.wrong) - 2} more" if len(self.wrong) > 2 else ""
            return f"wrong: {'; '.join(map(str, self.wrong[:2]))}{more}"
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict

    def __str__(self) -> str:
        if self.total is None or self.total.change is None:
            return f"proof by one step: untested ({self.reason})"
        said = {}
        for row in self.rows:
            said[row.verdict] = said.get(row.verdict, 0) + 1
        counts = ", ".join(f"{n} {verdict}" for verdict, n in said.items())
        return (
            f"proof by one step: {self.verdict}. A first step changes the loss {self.total.change:.3g} "
            "times as much as in the base "
            f"(wanted {self.total.wanted:.3g}); kinds of parameters: {counts}"
        )
