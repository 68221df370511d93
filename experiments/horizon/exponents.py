"""What the sweeps over batch and tokens say of each rule: the tables of docs/horizon.md and of the evidence.

    python experiments/horizon/exponents.py [FOLDER]     from the CSV files here; FOLDER: of the stores

Writes `exponents.md.part` here and the block `measured` of docs/horizon.md. A regret is relative: the loss at
the rule's rate over the loss at the size's own best rate. Noise scales need the stores; they are kept in
`noise_scales.json`.
"""

from __future__ import annotations

import json
import math
import re
import sys
import warnings
from pathlib import Path

import pandas as pd

import trimtab
from trimtab.optima.held_out import hold_out

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETS = {"digits": "digits", "cifar10": "CIFAR-10, 8 px", "characters": "characters"}
AXES = ("batch", "tokens")
METRICS = {"train_loss": "train", "test_loss": "test"}


def runs(name: str) -> pd.DataFrame | None:
    path = HERE / f"{name}.csv"
    return pd.read_csv(path) if path.is_file() else None


def answer(table: pd.DataFrame, over: str, metric: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.transfer(table, over=over, metric=metric)


def up_to(table: pd.DataFrame, over: str, times: int = 16) -> pd.DataFrame:
    """The runs up to so many times the base: the sweeps over batch go on, to see where it ends."""
    size = table["batch_size"] if over == "batch" else table["batch_size"] * table["steps"]
    return table[size <= times * size.min()]


def percent(loss: float, best: float) -> str:
    return "does not train" if math.isinf(loss) else "-" if math.isnan(loss) else f"{100 * loss / best:.1f} %"


def interval(slope: float, low: float, high: float) -> str:
    return f"{slope:+.2f} ({low:+.2f} to {high:+.2f})"


def exponents() -> list[str]:
    """Each data set and axis over 16 times: the exponent, and each rule's verdict with its regret."""
    out = [
        "| data | over | loss | log2 of the best rates | exponent of the rate | `sde` | `constant` | "
        "fitted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data, words in SETS.items():
        for over in AXES:
            table = runs(f"{data}_{over}")
            for metric, short in METRICS.items() if table is not None else ():
                t = answer(up_to(table, over), over, metric)
                best = float(t.optima["loss"].iloc[-1])
                rules = {r.rule: r for r in t.rules}
                said = [
                    f"{r.exponent:+g} {r.verdict}, {percent(r.regret, best)}"
                    for r in (rules["sde"], rules["constant"])
                ]
                rates = ", ".join(f"{x:.2f}" for x in t.optima["log2"])
                span = f"{over} {t.optima[over].min():g} to {t.optima[over].max():g}"
                fitted = percent(at_far_end(t, t.drift.slope), best)
                out.append(
                    f"| {words} | {span} | {short} | {rates} | {interval(*t.drift[:3])} | {said[0]} | "
                    f"{said[1]} | {fitted} |"
                )
    return out


def at_far_end(t, exponent: float) -> float:
    """The regret at the largest size of the base's rate moved by an exponent, between the rates tried."""
    far = t.points[t.points[t.over] == t.points[t.over].max()]
    far = far[far["fine"]].sort_values(t.hp)
    base = float(t.optima["log2"].iloc[0])
    x = base + exponent * math.log2(t.optima[t.over].max() / t.base)
    logs = [math.log2(v) for v in far[t.hp]]
    if not logs[0] <= x <= logs[-1]:
        return math.nan
    i = max(k for k, v in enumerate(logs[:-1]) if v <= x) if x < logs[-1] else len(logs) - 2
    part = (x - logs[i]) / (logs[i + 1] - logs[i])
    means = list(far["mean"])
    return max(0.0, means[i] + part * (means[i + 1] - means[i]) - float(t.optima["loss"].iloc[-1]))


def held_out() -> list[str]:
    """The exponent without the largest size, tried there."""
    out = [
        "| data | held out | loss | exponent without it | its rate | best rate | regret |",
        "|---|---|---|---|---|---|---|",
    ]
    for data, words in SETS.items():
        for over in AXES:
            table = runs(f"{data}_{over}")
            for metric, short in METRICS.items() if table is not None else ():
                h = hold_out(answer(up_to(table, over), over, metric))
                if h is not None:
                    lost = (
                        f"{percent(h.regret, h.loss)} ({percent(h.low, h.loss)} to {percent(h.high, h.loss)})"
                    )
                    fitted = interval(*h.drift[:3])
                    rates = f"{h.rate:.3g} | {h.best:.3g}"
                    out.append(f"| {words} | {over} {h.size:g} | {short} | {fitted} | {rates} | {lost} |")
    return out


def followed() -> list[str]:
    """Runs whose numbers follow `sde` against those that keep them: drift, and loss at the far end."""
    out = [
        "| data | over | drift under `sde` | verdict | loss there: base's rate under `sde` | best rate under "
        "`sde` | best rate, other numbers kept | base's rate, all kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data, words in SETS.items():
        for over in AXES:
            moved, kept = runs(f"{data}_{over}_sde"), runs(f"{data}_{over}")
            if moved is None or kept is None:
                continue
            t, k = answer(moved, over, "train_loss"), answer(up_to(kept, over), over, "train_loss")
            best, other = (float(a.optima["loss"].iloc[-1]) for a in (t, k))
            numbers = (best + at_far_end(t, 0.0), best, other, other + at_far_end(k, 0.0))
            span = f"{over} {t.optima[over].min():g} to {t.optima[over].max():g}"
            cells = " | ".join("-" if math.isnan(x) else f"{x:.3g}" for x in numbers)
            out.append(f"| {words} | {span} | {interval(*t.drift[:3])} | {t.verdict} | {cells} |")
    return out


def criticals() -> list[str]:
    """Where the best rate stops following the batch, beside what gradients predict."""
    held = HERE / "noise_scales.json"
    scales = json.loads(held.read_text()) if held.is_file() else {}
    out = [
        "| data | batches | log2 of the best rates | critical batch | exponent below | gradient noise scale "
        "|",
        "|---|---|---|---|---|---|",
    ]
    for data, words in SETS.items():
        table = runs(f"{data}_batch")
        if table is None:
            continue
        t = answer(table, "batch", "train_loss")
        c = t.critical
        where = (
            "not seen"
            if math.isinf(c.high) and c.low == 0
            else f"above {c.low:.0f}"
            if math.isinf(c.high)
            else f"{c.batch:.0f} ({c.low:.0f} to {c.high:.0f})"
        )
        s = scales.get(data)
        said = f"{s['batch']:.0f} ({s['first']:.0f} early, {s['last']:.0f} late)" if s else "-"
        rates = ", ".join(f"{x:.2f}" for x in t.optima["log2"])
        sizes = ", ".join(f"{b:g}" for b in t.optima["batch"])
        out.append(f"| {words} | {sizes} | {rates} | {where} | {c.exponent:+.2f} | {said} |")
    return out


def joint() -> list[str]:
    """The base's best rate at a target that is wider, deeper, longer and at a larger batch."""
    base, target = runs("joint_base"), runs("joint_target")
    if base is None or target is None:
        return []
    out = [
        "| loss | base's best log2 rate | carried, at the target | best rate there, same scheme | best rate "
        "there, `sp` | carried over the best of all |",
        "|---|---|---|---|---|---|",
    ]
    for metric, short in METRICS.items():
        rate = base.groupby("lr")[metric].mean().idxmin()
        mean = target[target["state"] == "done"].groupby(["scheme", "lr"])[metric].mean()
        carried = mean["completep"].loc[min(mean["completep"].index, key=lambda r: abs(math.log2(r / rate)))]
        best = {s: (float(mean[s].min()), math.log2(mean[s].idxmin())) for s in ("completep", "sp")}
        least = min(loss for loss, _ in best.values())
        out.append(
            f"| {short} | {math.log2(rate):.1f} | {carried:.3f} | {best['completep'][0]:.3f} at "
            f"{best['completep'][1]:.1f} | {best['sp'][0]:.3f} at {best['sp'][1]:.1f} | "
            f"{100 * (carried / least - 1):+.1f} % |"
        )
    return out


SECTIONS = (
    (
        "The exponent of the best rate over 16 times, the other numbers kept. Under each rule: its exponent, "
        "what the interval says of it, and the regret of its rate at the far end, relative to the best loss "
        "there (*fitted*: the same for the exponent measured).",
        exponents,
    ),
    (
        "The same exponent measured without the largest size, and what its rate costs there: a size it has "
        "not seen (`trimtab transfer --fit`).",
        held_out,
    ),
    (
        "The same with the whole rule: lr, betas, decay and eps follow `sde` in every run, so that its drift "
        "should be 0. Train loss at the far end.",
        followed,
    ),
    ("Where the best rate stops following the batch (train loss).", criticals),
    (
        "One joint move on characters: width x 2, depth x 2, batch x 4, tokens x 4 (GPT, completep and "
        "`sde`, 120 steps at both ends), against the rate tuned at the target, in the same scheme and in the "
        "standard parametrization, 9 rates half an octave apart and 3 seeds each.",
        joint,
    ),
)


def measure_scales(folder: Path) -> None:
    """Noise scales of the base at its best rate, from the stores."""
    from trimtab.commands.transfer import predicted
    from trimtab.sweeps.store import Store

    found = {}
    for data in SETS:
        path = folder / f"{data}_batch.db"
        if path.is_file():
            store = Store(path)
            t = trimtab.transfer(store, over="batch")
            found[data] = predicted(store, {"batch": t}, measure=True)
    (HERE / "noise_scales.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) > 1:
        measure_scales(Path(sys.argv[1]))
    parts = []
    for words, make in SECTIONS:
        lines = make()
        if len(lines) > 2:
            parts += [words, "", *lines, ""]
    text = "\n".join(parts).strip()
    (HERE / "exponents.md.part").write_text(text + "\n", encoding="utf-8")
    page = ROOT / "docs" / "horizon.md"
    block = f"<!-- measured: experiments/horizon/exponents.py -->\n\n{text}\n\n<!-- end measured -->"
    old = page.read_text(encoding="utf-8")
    page.write_text(
        re.sub(r"<!-- measured: .*?<!-- end measured -->", lambda _: block, old, flags=re.S), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
