"""Hold the coordinate check's verdict against the measured drift of the best learning rate; write
docs/check.md's table.

    python experiments/check_calibration.py measure FOLDER [WORD ...]
                                                              sweep every set-up, or those whose name has one
                                                              of some words, resumable; one CSV row each
    python experiments/check_calibration.py evidence          a row for each line of docs/evidence.md that is
                                                              about the learning rate
    python experiments/check_calibration.py check [WORD ...]  check every measured set-up; add its verdict
    python experiments/check_calibration.py table             put the table into docs/check.md

The sweeps need TRIMTAB_DATA (tiny Shakespeare, CIFAR-10). FOLDER keeps their stores; results stand in
check_calibration.csv beside this file, so that the check can be judged again without measuring again.
"""

import copy
import csv
import dataclasses
import json
import logging
import sys
import tomllib
from pathlib import Path

import evidence
import torch

import trimtab
from trimtab.runs.config import RunConfig
from trimtab.runs.tasks import prepare

HERE = Path(__file__).with_suffix(".csv")
DOCS = Path(__file__).parent.parent / "docs" / "check.md"
BEGIN, END = "<!-- calibration: begin -->", "<!-- calibration: end -->"
COLUMNS = (
    "name", "scheme", "optimizer", "axis", "sizes", "runs",
    "measured", "drift", "low", "high", "optima", "regret",
    "base_lr", "check", "why", "notes", "set_up",
)  # fmt: skip
TEXT = dict(data="text", data_options=dict(context=16), batch_size=8, steps=100, warmup=10, schedule="linear")
DIGITS = dict(data="digits", batch_size=64)
PIXELS = dict(data="cifar10", data_options=dict(px=8), batch_size=16, steps=100, warmup=10, schedule="linear")
HEADS = dict(vocab_size=65, num_attention_heads=4)
GROUPED = dict(HEADS, num_key_value_heads=2, head_dim=8)
LONGER = dict(TEXT, data_options=dict(context=32), batch_size=16, steps=120)  # that of experiments/llama


@dataclasses.dataclass(frozen=True)
class Case:
    """One model, data set and optimizer over one axis of size, under one scheme."""

    name: str
    scheme: str
    axis: str
    sizes: tuple[int, ...]
    rates: tuple[float, float]  # log2, in steps of half an octave
    run: dict
    base: tuple[int, int] = (32, 2)
    seeds: int = 3

    @property
    def key(self) -> str:
        return "-".join((self.name, self.axis, self.scheme)).replace(" ", "_").replace("/", "_")

    @property
    def grid(self) -> dict:
        return dict(
            name=self.key, schemes=[self.scheme], base=list(self.base), seeds=self.seeds,
            run=dict(self.run, eval_examples=0), axes={"lr": {"log2": list(self.rates), "step": 0.5}},
            budget={"fleet": 32}, **{self.axis + "s": list(self.sizes)},
        )  # fmt: skip


def cases() -> list[Case]:
    """The cheap ones first: what does not fit into the time is left out at the end."""
    found = []

    def add(name, schemes, axis, sizes, rates, run, **more):
        found.extend(Case(name, scheme, axis, sizes, rates, run, **more) for scheme in schemes)

    mlp = dict(model="mlp", optimizer="sgd", steps=200, model_options={"branch_scale": 3**-0.5}, **DIGITS)
    add("mlp, one matrix", ("depth-mup", "mup"), "depth", (3, 6, 12, 24), (-4, 1), mlp, base=(32, 3))
    add("mlp, one matrix", ("depth-mup", "sp"), "width", (32, 64, 128, 256), (-4, 1), mlp, base=(32, 3))
    adam = dict(
        model="mlp", optimizer="adamw", model_options=dict(k=2, norm="layer"), **dict(PIXELS, batch_size=64)
    )
    add("mlp, two matrices", ("depth-mup",), "depth", (2, 4, 8, 16), (-8, -3), adam, seeds=32)
    add("mlp, two matrices", ("mup",), "depth", (2, 4, 8), (-8, -3), adam, seeds=32)
    gpt = dict(model="gpt", optimizer="adamw", **TEXT)
    vit = dict(model="vit", model_options=dict(patch=2, heads=4), optimizer="adamw", **PIXELS)
    hf = {kind: dict(gpt, model=f"hf:{kind}", model_options=GROUPED) for kind in ("llama", "qwen3")}
    hf["gpt2"] = dict(gpt, model="hf:gpt2", model_options=HEADS)
    deep, wide, up, down, both = (2, 4, 8), (32, 64, 128), (-7.5, -4), (-9, -5), (-9, -4)
    add("gpt", ("depth-mup",), "depth", deep, up, gpt)
    add("gpt", ("mup",), "depth", deep, down, gpt)
    add("hf:gpt2", ("depth-mup",), "depth", deep, up, hf["gpt2"])
    add("mlp, two matrices", ("sp",), "width", wide, (-9, -4), adam)
    add("hf:llama", ("depth-mup",), "depth", deep, both, hf["llama"])
    add("hf:qwen3", ("depth-mup",), "depth", deep, both, hf["qwen3"])
    add("mlp, two matrices", ("depth-mup",), "width", wide, (-7, -3), adam)
    add("gpt", ("sp",), "width", wide, down, gpt)
    add("hf:llama", ("mup",), "depth", deep, both, hf["llama"])
    add("gpt", ("completep",), "depth", deep, up, gpt)
    add("mlp, two matrices", ("completep",), "depth", (2, 4, 8), (-7, -3), adam)
    add("vit", ("depth-mup",), "depth", deep, up, vit)
    add("gpt", ("depth-mup",), "width", wide, up, gpt)
    add("hf:llama", ("completep",), "depth", deep, both, hf["llama"])
    add("vit", ("mup",), "depth", deep, down, vit)
    add("hf:gpt2", ("mup",), "depth", deep, down, hf["gpt2"])
    add("hf:qwen3", ("mup",), "depth", deep, both, hf["qwen3"])
    longer = {kind: dict(run, **LONGER) for kind, run in hf.items()}
    add("hf:gpt2, longer", ("sp",), "width", wide, (-10.5, -5.5), longer["gpt2"])
    add("hf:qwen3, longer", ("completep",), "depth", deep, (-9, -5), longer["qwen3"])
    add("hf:qwen3, longer", ("mup",), "width", wide, (-9, -5), longer["qwen3"])
    add("hf:gpt2, longer", ("depth-mup",), "depth", (2, 4, 8, 16), (-9, -4.5), longer["gpt2"])
    neox = dict(longer["gpt2"], model="hf:gpt_neox")
    add("hf:gpt_neox, longer", ("depth-mup",), "depth", deep, (-9, -5), neox)
    descent = dict(adam, optimizer="sgd")
    add("mlp, two matrices, later", ("sp", "mup"), "width", (32, 64, 128, 256), (-6, 1), descent)
    return found


def read() -> dict[str, dict]:
    if not HERE.exists():
        return {}
    with HERE.open(newline="") as file:
        return {"-".join((row["name"], row["axis"], row["scheme"])): row for row in csv.DictReader(file)}


def write(rows) -> None:
    with HERE.open("w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def measure(folder: Path, words: list[str]) -> None:
    """Sweep every case that has no row yet; the row is written as soon as the sweep is done."""
    for case in cases():
        key = "-".join((case.name, case.axis, case.scheme))
        if key in read() or (words and not any(word in key for word in words)):
            continue
        trimtab.sweep(case.grid, folder / f"{case.key}.db", workers=1)
        found = trimtab.transfer(folder / f"{case.key}.db", over=case.axis, scheme=case.scheme)
        row = summary(case.name, case.run, case.scheme, found)
        write([*read().values(), row])
        print(*row.values(), flush=True)


def from_evidence() -> None:
    """A row for every line of the experiments that judges the rate of a model that trimtab scales."""
    for folder in evidence.folders():
        for line in evidence.question(folder).get("lines", []):
            found = None if _other(folder, line) else evidence.judged(folder, line)
            if found is None:
                continue
            run, base = _set_up(folder, line)
            row = summary(f"{folder.name}: {line['label']}", run, line["scheme"], found)
            row["set_up"] = json.dumps(dict(run=run, base=base), sort_keys=True)
            rows = read()
            row = {**rows.get(_key(row), {}), **row}
            write([*(r for k, r in rows.items() if k != _key(row)), row])


def _other(folder: Path, line: dict) -> bool:
    """Lines that are not about the rate over width or depth, repeat a line on other kernels or from other
    sizes, have no branches, or use an optimizer or a package that is not judged."""
    return (
        line.get("hp", "lr") != "lr"
        or line.get("over", "depth") not in ("depth", "width")
        or "least" in line
        or any(word in line["label"] for word in ("SSE4.1", "no skip", "Muon", "mup 1.0.0"))
    )


def _set_up(folder: Path, line: dict) -> tuple[dict, list[int]]:
    """What a line's sweep runs: its [run] table with the line's own values, and its base."""
    files = evidence.question(folder)["stores"][line["store"]]
    sweep = tomllib.loads((folder / files[0]).read_text())
    run = copy.deepcopy(sweep["run"])
    for name, value in line.get("where", {}).items():
        *path, last = name.split(".")
        table = run
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    for key in ("model", "data"):
        if ".py:" in run[key]:
            run[key] = f"experiments/{folder.name}/{run[key]}"
    base = sweep["base"]
    return run, [base["width"], base["depth"]] if isinstance(base, dict) else base


def _key(row: dict) -> str:
    return "-".join((row["name"], row["axis"], row["scheme"]))


def summary(name: str, run: dict, scheme: str, found) -> dict:
    """What a sweep says, as a row."""
    return dict(
        name=name, scheme=scheme, optimizer=run["optimizer"], axis=found.over,
        sizes=" ".join(str(int(v)) for v in found.optima[found.over]), runs=int(found.optima["n"].sum()),
        measured=found.verdict, drift=f"{found.drift.slope:.3f}", low=f"{found.drift.low:.3f}",
        high=f"{found.drift.high:.3f}", optima=" ".join(f"{v:.2f}" for v in found.optima["log2"]),
        regret=f"{float(found.regret['regret'].iloc[-1]):.4f}",
        base_lr=f"{float(found.optima['optimum'].iloc[0]):.6g}",
    )  # fmt: skip


SHORT = {"inner matrices slow down": "inner matrices of branches", "updates off": "updates do not follow"}


def check_all(words: list[str]) -> None:
    """The check of every measured set-up, or of those whose name has one of some words, at the base's best
    rate."""
    rows = read()
    runs = {"-".join((c.name, c.axis, c.scheme)): (c.run, c.base) for c in cases()}
    for key, row in rows.items():
        if words and not any(word in key for word in words):
            continue
        stored = json.loads(row["set_up"]) if row.get("set_up") else None
        run, base = (stored["run"], stored["base"]) if stored else runs[key]
        found = checked(row, run, tuple(base))
        first = found.culprits or (found.unsure if found.verdict == "INCONCLUSIVE" else [])
        row["check"] = found.verdict
        row["why"] = f"{first[0].module} {first[0].quantity} {first[0].slope:+.2f}" if first else ""
        row["notes"] = "; ".join(
            short for short, long in SHORT.items() if any(n.startswith(long) for n in found.notes)
        )
        write({**read(), key: row}.values())  # another process may have added a row meanwhile
        print(key, row["measured"], row["check"], row["why"], flush=True)


def checked(row: dict, run: dict, base: tuple[int, int]):
    """`trimtab.check` of one set-up at the base's best rate; once more from 10 seeds where 3 cannot tell."""
    found = one_check(row, run, base, seeds=3)
    return one_check(row, run, base, seeds=10) if found.verdict == "INCONCLUSIVE" else found


def one_check(row: dict, run: dict, base: tuple[int, int], *, seeds: int):
    """`trimtab.check` of one set-up; a model with factors of its own (`alpha`) is checked as it stands."""
    lr, sizes = float(row["base_lr"]), [int(v) for v in row["sizes"].split()]
    config = RunConfig(**run, width=base[0], depth=base[1], scheme=row["scheme"], lr=lr)
    own = prepare(config)
    name = run["optimizer"]
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    hyper = {"momentum": config.momentum} if name == "sgd" else {"weight_decay": config.weight_decay}
    alpha = run.get("model_options", {}).get("alpha")
    how = dict(scheme=row["scheme"], optimizer=optimizer, lr=lr, hyper=hyper)
    if alpha is not None:
        plain = lambda model, width, depth: optimizer(model.parameters(), lr=lr, **hyper)  # noqa: E731
        how = dict(scheme=None, optimizer=plain, expect=trimtab.Scheme(f"alpha = {alpha}", alpha))
    return trimtab.check(
        own.build, **({"widths": None, "depths": None} | {row["axis"] + "s": sizes}), base=base,
        data=lambda step: own.batch(0, step), seeds=seeds, **how,
    )  # fmt: skip


CHOSEN_ON = (
    "conv_resnet: ",
    "vit: ",
    "llama: ",
)  # with the rows of the first table; the others were held out
ADDED = ("vit: no LayerNorm", "vit: image folder", "llama: ViT")  # swept when the check was settled
AGREE = {("transfers", "PASS"): "yes", ("drifts", "FAIL"): "yes"}


def agreement(row: dict) -> str:
    """Whether the two verdicts agree: "yes", "no", or who of them cannot tell."""
    if row["measured"] == "cannot tell":
        return "sweep cannot tell"
    if row["check"] == "INCONCLUSIVE":
        return "check cannot tell"
    return AGREE.get((row["measured"], row["check"]), "**no**")


def seen(row: dict) -> str:
    """Whether what is a FAIL was chosen with this row in sight."""
    later = ":" in row["name"].removeprefix("hf:") or row["name"].endswith(("longer", "later"))
    in_sight = row["name"].startswith(CHOSEN_ON) and not row["name"].startswith(ADDED)
    return "held out" if later and not in_sight else "chosen on"


def table() -> None:
    """Put the rows into docs/check.md between the two marks, and the counts above them."""
    rows = sorted(read().values(), key=seen)
    heads = (
        "set-up",
        "scheme",
        "over",
        "measured",
        "log2 rate per doubling",
        "check",
        "agrees",
        "why, or note",
    )
    lines = []
    for half in ("chosen on", "held out"):
        own = [r for r in rows if seen(r) == half]
        told = [agreement(r) for r in own]
        decided = [t for t in told if "cannot tell" not in t]
        lines += [
            f"**{half.capitalize()}**: {len(own)} set-ups, {len(decided)} decided by both, "
            f"{told.count('yes')} agree; undecided by the sweep {told.count('sweep cannot tell')}, "
            f"by the check {told.count('check cannot tell')}.",
            "",
            f"| {' | '.join(heads)} |",
            f"|{'---|' * len(heads)}",
            *(f"| {' | '.join(cells(r))} |" for r in own),
            "",
        ]
        print(half, {word: told.count(word) for word in sorted(set(told))})
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text("\n".join([before + BEGIN, *lines[:-1], END]) + rest.partition(END)[2])


def cells(row: dict) -> tuple[str, ...]:
    """One line of the table."""
    note = "; ".join(word for word in ("inner matrices slow down", "updates off") if word in row["notes"])
    return (
        f"{row['name']}, {row['optimizer']}",
        "own factors" if row["name"].startswith("exponent") else row["scheme"],
        f"{row['axis']} {row['sizes'].replace(' ', ', ')}",
        row["measured"],
        f"{float(row['drift']):+.2f} ({float(row['low']):+.2f} to {float(row['high']):+.2f})",
        row["check"],
        agreement(row),
        row["why"] or note,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1] == "evidence":
        from_evidence()
    elif sys.argv[1] == "check":
        check_all(sys.argv[2:])
    elif sys.argv[1] == "table":
        table()
