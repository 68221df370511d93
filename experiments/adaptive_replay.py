"""An adaptive sweep replayed on sweeps stored in full: the same verdict, for which share of the FLOPs?

    python experiments/adaptive_replay.py chosen     the sweeps on which the policy's constants were chosen
    python experiments/adaptive_replay.py held-out   all others of experiments/ (or names: rnn gcn ...)
    python experiments/adaptive_replay.py --made-up 100          coverage on curves with a known optimum

The sweeps are the CSV files of the experiments, a line each as their `question.toml` has it. The policy is
asked on what it has asked for so far, each cell it wants is looked up. Beside it a policy that draws as many
runs of the grid at random, with the same FLOPs to spend, `--sets` times.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "experiments")]

import evidence  # noqa: E402
from simulated import RATES, noise_for, runs  # noqa: E402

from trimtab.optima.tables import choose_line  # noqa: E402
from trimtab.optima.transfers import Transfer, analyse  # noqa: E402
from trimtab.refinement import policy  # noqa: E402
from trimtab.refinement.lattice import Lattice  # noqa: E402

OWN = ["x", "y", "stable", "unstable"]
CHOSEN = ("conv_resnet", "conv_resnet_momentum", "conv_resnet_width", "llama", "mlp_width", "no_skip")
CHOSEN += ("post_norm", "rnn", "vit")
TWICE = ("no_skip_sse41", "momentum_sse41")  # the same sweeps once more on other kernels


class Replayed(NamedTuple):
    """What the adaptive sweep said, its share of the grid's FLOPs, its runs and rounds, why it ended."""

    transfer: Transfer
    share: float
    runs: int
    rounds: int
    why: str


class Stored:
    """One line of a stored sweep, whose cells are looked up."""

    def __init__(
        self, table: pd.DataFrame, over: str, scheme: str, hp: str = "lr", metric: str = "train_loss"
    ):
        self.over, self.scheme, self.hp, self.metric = over, scheme, hp, metric
        line = choose_line(table, over, hp, scheme, metric=metric)
        self.cells, self.sizes = line.cells.reset_index(drop=True), line.sizes
        values = sorted(self.cells[hp].unique())
        self.lattice = Lattice.of(hp, values, 0)
        seeds = {
            size: {s: i for i, s in enumerate(sorted(part["seed"].unique()))}
            for size, part in self.cells.groupby(over)
        }
        self.rows = {
            (self.sizes.index(r[over]), values.index(r[hp]), seeds[r[over]][r["seed"]]): (j, r)
            for j, r in enumerate(self.cells.to_dict("records"))
        }
        most = [float(part["flops"].max()) for _, part in self.cells.groupby(over, sort=True)]
        # a size at which all diverge says less than what a whole run would take
        self.cost = [max(most[: i + 1]) for i in range(len(most))]
        self.order = list(range(len(most)))
        self.total = float(self.cells["flops"].sum())
        self.seeds = max(map(len, seeds.values()))

    def transfer(self, asked: Any = None) -> Transfer:
        """The answer from some cells; None: from all."""
        held = [self.rows[k][0] for k in sorted(asked) if k in self.rows] if asked is not None else None
        cells = self.cells if held is None else self.cells.loc[held]
        table = cells.drop(columns=OWN)
        options: dict[str, Any] = dict(hp=self.hp, metric=self.metric)
        return analyse(table, [self.over], [self.scheme], **options)[self.over][self.scheme]

    def share(self, asked: Any) -> float:
        return sum(float(self.rows[k][1]["flops"]) for k in asked if k in self.rows) / self.total

    def found(self, asked: Any) -> tuple[Any, list[policy.Found]]:
        t = self.transfer(asked)
        out = []
        for i in self.order:
            o = t.optima[t.optima[self.over] == self.sizes[i]].iloc[0]
            at, low, high = (self.lattice.index(v) for v in (o["optimum"], o["low"], o["high"]))
            width = high - low if math.isfinite(high - low) else math.inf
            out.append(policy.Found(at, float(o["stderr"]) / self.lattice.step, width))
        return t.drift, out

    def outcome(self, key: tuple[int, int, int]) -> policy.Outcome:
        if key not in self.rows:
            return policy.Outcome(math.nan, 0.0)
        row = self.rows[key][1]
        return policy.Outcome(float(row["y"]) if row["stable"] else None, float(row["flops"]))

    def line(self, asked: Any) -> policy.Line:
        curves = [
            policy.Curve(i, self.cost[i], {(v, s): self.outcome((c, v, s)) for c, v, s in asked if c == i})
            for i in self.order
        ]
        return policy.Line(
            name=self.scheme,
            curves=curves,
            doublings=[math.log2(self.sizes[i] / self.sizes[0]) for i in self.order],
            analyse=lambda: self.found(asked),
            step=self.lattice.step,
            sizes=[f"{self.over} {self.sizes[i]}" for i in self.order],
        )


def replay(stored: Stored) -> Replayed:
    """Ask until nothing more is asked."""
    last = len(stored.lattice.values) - 1
    limits = policy.Limits(0, last, 0, last, stored.seeds, None, 0.2)
    asked: set[tuple[int, int, int]] = set()
    rounds = 0
    while True:
        wanted = policy.ask(stored.line(asked), limits)
        if not wanted.cells:
            held = sum(k in stored.rows for k in asked)
            return Replayed(stored.transfer(asked), stored.share(asked), held, rounds, wanted.why)
        asked |= {tuple(cell) for cell in wanted.cells}
        rounds += 1


def at_random(stored: Stored, share: float, draws: int, verdict: str) -> float:
    """How often as many FLOPs of runs drawn at random give the whole sweep's verdict."""
    rng, every, same = np.random.default_rng(0), sorted(stored.rows), 0
    for _ in range(draws):
        asked, spent = [], 0.0
        for j in rng.permutation(len(every)):
            cost = float(stored.rows[every[j]][1]["flops"]) / stored.total
            if spent + cost <= share:
                asked.append(every[j])
                spent += cost
        try:
            same += len({k[0] for k in asked}) > 1 and stored.transfer(asked).verdict == verdict
        except Exception as error:  # a draw that leaves a size without runs has no line: it does not tell
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return same / draws


def stored_lines(names: Sequence[str]) -> Iterator[tuple[str, str, Stored]]:
    """(sweep, label, line) of the experiments' stored sweeps, by the questions they were asked."""
    for folder in evidence.folders():
        for line in evidence.question(folder).get("lines", ()):
            name = line["store"]
            held_out = name not in CHOSEN and name not in TWICE
            wanted = (
                name in names or ("chosen" in names and name in CHOSEN) or ("held-out" in names and held_out)
            )
            table = evidence.line_table(folder, line) if wanted and "least" not in line else None
            if table is not None and "flops" in table:  # the cost of a peer's runs is not known
                hp, metric = line.get("hp", "lr"), line.get("metric", "train_loss")
                yield (
                    name,
                    line["label"],
                    Stored(table, line.get("over", "depth"), line["scheme"], hp, metric),
                )


def real(names: Sequence[str], draws: int) -> None:
    print("| sweep | line | whole grid | adaptive | FLOPs | runs | rounds | random, same FLOPs |")
    print("|---|---|---|---|---|---|---|---|")
    spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows: list[tuple[bool, bool, float, float]] = []  # told by the grid, agrees, share, chance
    for name, label, stored in stored_lines(names):
        whole, got = stored.transfer(), replay(stored)
        chance = at_random(stored, got.share, draws, whole.verdict)
        spent[name].append((got.share * stored.total, stored.total))
        same = got.transfer.verdict == whole.verdict
        rows.append((whole.verdict != "cannot tell", same, got.share, chance))
        print(
            f"| {name} | {label} | {said(whole)} | {said(got.transfer)} | {got.share:.0%} | {got.runs} of "
            f"{len(stored.cells)} | {got.rounds} | {chance:.0%} |",
            flush=True,
        )
    shares = {name: sum(a for a, _ in s) / sum(b for _, b in s) for name, s in spent.items()}
    middle = float(np.median(list(shares.values())))
    print(f"\nFLOPs of the grid in the median: {middle:.0%} over {len(shares)} sweeps, ", end="")
    print(f"{np.median([r[2] for r in rows]):.0%} over {len(rows)} lines; by sweep: ", end="")
    print(", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items())))
    for told, words in ((True, "the grid tells"), (False, "it cannot tell")):
        part = [r for r in rows if r[0] == told]
        if part:
            share, chance = (float(np.mean([r[k] for r in part])) for k in (1, 3))
            print(f"where {words} ({len(part)} lines): same verdict {share:.0%}, at random {chance:.0%}")


def said(t: Transfer) -> str:
    return f"{t.verdict} {t.drift.slope:+.2f} ({t.drift.low:+.2f} to {t.drift.high:+.2f})"


def made_up(rng: np.random.Generator, kind: str, noise: float, slope: float, sizes: int) -> pd.DataFrame:
    """A sweep of curves with a known optimum, as a table; what is beyond the wall diverges."""
    rows = []
    for i in range(sizes):
        x, y, seed, wall, _ = runs(rng, kind, noise, 3, True, -0.75 - slope * i)
        same = dict(scheme="depth-mup", width=32, depth=2**i, flops=float(2**i), collapsed=False)
        rows += [
            same | dict(lr=2.0**a, seed=int(s), train_loss=b, state="done")
            for a, b, s in zip(x, y, seed, strict=True)
        ]
        rows += [
            same | dict(lr=2.0**a, seed=s, train_loss=math.nan, state="diverged")
            for a in RATES[wall <= RATES]
            for s in range(3)
        ]
    return pd.DataFrame(rows)


def coverage(n: int) -> None:
    """Coverage of drift and optima: the whole grid's and the adaptive sweep's, on the same runs."""
    print(
        "| curve | drift | standard error | drift covered, grid | adaptive | optima covered, grid | "
        "adaptive | grid told, wrongly | adaptive | FLOPs |"
    )
    print("|---" * 10 + "|")
    kinds = ("quadratic", "two-sided", "two-sided, mirrored", "wall", "cliff", "quartic")
    for kind in kinds:
        for slope, se in ((0.0, 0.15), (0.5, 0.3)) if kind != "wall" else ((0.0, 0.15),):
            print(_covered(kind, slope, se, n), flush=True)


def _covered(kind: str, slope: float, se: float, n: int) -> str:
    rng, noise = np.random.default_rng(5), noise_for(kind, se, 3)
    count: Counter[str] = Counter()
    shares, verdicts = [], Counter[tuple[str, str]]()
    for _ in range(n):
        stored = Stored(made_up(rng, kind, noise, slope, 4), "depth", "depth-mup")
        whole, got = stored.transfer(), replay(stored)
        shares.append(got.share)
        verdicts[whole.verdict, got.transfer.verdict] += 1
        for name, t in (("grid", whole), ("adaptive", got.transfer)):
            count[f"{name} drift"] += t.drift.low <= -slope <= t.drift.high
            for i, o in enumerate(t.optima.to_dict("records")):
                m = -0.75 - slope * i  # the wall stands right of the minimum
                count[f"{name} optima"] += o["low"] <= 2.0**m <= o["high"]
    parts = [f"{count[f'{w} drift'] / n:.0%}" for w in ("grid", "adaptive")]
    parts += [f"{count[f'{w} optima'] / (4 * n):.0%}" for w in ("grid", "adaptive")]
    wrong = {"transfers": slope != 0, "drifts": slope == 0}
    falsely = [sum(c for pair, c in verdicts.items() if wrong.get(pair[k], False)) / n for k in (0, 1)]
    told = [sum(c for pair, c in verdicts.items() if pair[k] != "cannot tell") / n for k in (0, 1)]
    parts += [f"{told[0]:.0%}, {falsely[0]:.0%}", f"{told[1]:.0%}, {falsely[1]:.0%}"]
    return f"| {kind} | {slope:g} | {se:g} | {' | '.join(parts)} | {np.median(shares):.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", nargs="*", help="chosen, held-out, or names of stored sweeps")
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--made-up", type=int, default=0)
    given = parser.parse_args()
    if given.made_up:
        coverage(given.made_up)
    if given.sweeps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            real(given.sweeps, given.sets)


if __name__ == "__main__":
    main()
