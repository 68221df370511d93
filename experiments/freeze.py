"""Freeze what trimtab computes and says, to show that a refactoring moves no number.

    python experiments/freeze.py write OUT_DIR [--only PART ...]    in a tree's root: one JSON file per part
    python experiments/freeze.py compare DIR_A DIR_B [--words-may-differ] [--show N]

`write` imports trimtab from the current folder and uses the public contract only (parametrize, factors,
check, sweep, transfer, report, theory, the command line), plus the models and made-up sweeps of the tests,
which it finds below ./tests by their file names. So it runs before and after files move. `compare` asks for
exact equality: floats are kept with all their digits. It prints every leaf that differs; exit 1 if any does.

A difference has one of four kinds: a *number*; a *value* (a role, a verdict, a name, something missing);
*words*, where only the wording of a message differs; *numbers in words*, where a message says another number.
With --words-may-differ the third kind is counted but not printed, and does not fail the comparison; exit
codes, verdicts, roles and the keys of JSON must be equal all the same.

Left out because it is not deterministic: wall times (`seconds`, "1.2 s"), a sweep's progress on stderr,
temporary folders. Left out because it is the machine's: versions, `arithmetic` (instruction set), `trimtab
doctor`. Left out because it takes a minute: `trimtab demo`, which is a sweep and a report.
"""

from __future__ import annotations

import os

# Before torch, numpy and rich are imported: one thread, sums in one order, plain text 120 columns wide.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MKL_CBWR": "AUTO,STRICT",
    "HF_HUB_OFFLINE": "1",
}
os.environ |= {"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import html.parser
import io
import json
import logging
import math
import re
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HELPERS = ("structures.py", "families.py", "setups.py", "nets.py", "sweeps_made.py", "simulated.py")
SCHEMES = ("sp", "ntk", "mup", "depth-mup", "completep")
PARTS: dict[str, Callable[[], Any]] = {}
# Below these keys strings are sentences for people; everywhere else a string is a value.
PROSE = {
    "text",
    "out",
    "err",
    "notes",
    "advice",
    "cause",
    "signatures",
    "words",
    "table",
    "page",
    "help",
    "errors",
}
MOST = 6000  # numbers of an array that are kept one by one


def part(write: Callable[[], Any]) -> Callable[[], Any]:
    PARTS[write.__name__] = write
    return write


# -- the tree ------------------------------------------------------------------------------------------------


def enter_tree() -> None:
    """Import trimtab from the current folder, and the tests' helpers from wherever they are below ./tests."""
    root = Path.cwd().resolve()
    folders = {str(path.parent) for name in HELPERS for path in sorted((root / "tests").rglob(name))}
    sys.path[:0] = [str(root), *sorted(folders)]
    os.environ["PYTHONPATH"] = str(root)  # a sweep's workers import the same tree
    import torch

    import trimtab

    assert trimtab.__file__ and Path(trimtab.__file__).resolve().is_relative_to(root), trimtab.__file__
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # torch.export prints the graphs it cannot export


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new working folder, with the models and data that the commands are given."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        os.chdir(place)
        try:
            (place / "mine.py").write_text(MODELS)
            (place / "alone.py").write_text(ALONE)
            (place / "letters.py").write_text(LETTERS)
            yield place
        finally:
            os.chdir(before)


# -- plain JSON ----------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """What JSON can hold, with every digit."""
    import numpy as np
    import pandas as pd
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pd.DataFrame):
        return plain(value.to_dict("records"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def array(value: Any) -> dict[str, Any]:
    """An array: its numbers, or where there are many its hash and the first of them."""
    flat = value.ravel().tolist()
    kept = {"shape": list(value.shape), "values": flat[:MOST]}
    if len(flat) > MOST:
        kept["sha256"] = hashlib.sha256(value.tobytes()).hexdigest()
    return kept


def weights(model: Any) -> str:
    """A hash of all parameters, bit for bit."""
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(name.encode() + p.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or how it refuses: the public name of the error and its text."""
    import trimtab

    try:
        return plain(call())
    except Exception as error:
        public = (
            c for c in type(error).__mro__ if c.__module__ == "builtins" or c.__name__ in trimtab.__all__
        )
        return {"refused": next(public).__name__, "text": str(error)}


# -- 1. parametrize ------------------------------------------------------------------------------------------

ROW = (
    "role",
    "place",
    "branch",
    "stack",
    "m_in",
    "m_out",
    "m_L",
    "uses",
    "init",
    "u",
    "s",
    "rescale",
    "fold",
)


def described(p: Any) -> dict[str, Any]:
    """A parametrization through its public names, and its JSON."""
    return {
        "depth": plain(p.depth),
        "branches": [[b.name, b.kind, list(b.tail), list(b.parameters)] for b in p.branches],
        "rows": {name: {key: plain(getattr(p[name], key)) for key in ROW} for name in p.rows},
        "notes": list(p.notes),
        "table": str(p),
        "json": json.loads(p.to_json()),
    }


def planned(
    build: Any, example: Any, size: Any, base: Any, meta: bool = False, **more: Any
) -> dict[str, Any]:
    """parametrize(build(*size), build(*base)) from a fixed seed, and what it did to the weights.

    With `meta` the model has no weights when it is planned; they come later, through `p.apply`.
    """
    import torch

    import trimtab

    torch.manual_seed(0)
    smaller = build(*base)
    if meta:
        with torch.device("meta"):
            empty = build(*size)
        p = trimtab.parametrize(empty, smaller, example=example, apply=False, **more)
        unapplied = described(p)
        model = build(*size)
        p.apply(model)
        return {"planned": unapplied, "applied": described(p), "weights": weights(model)}
    model = build(*size)
    p = trimtab.parametrize(model, smaller, example=example, **more)
    again = trimtab.Parametrization.from_json(p.to_json())
    assert again == p and again.to_json() == p.to_json()
    return {**described(p), "weights": weights(model), "rng": float(torch.rand(()))}


@part
def structures() -> Any:
    """Every structure of the tests: five schemes, larger and smaller, one axis alone, no weights, richer."""
    from structures import CASES

    out = {}
    for name, case in CASES.items():
        plan = functools.partial(planned, case.build, case.example, overrides=case.overrides)
        ways = {scheme: functools.partial(plan, (32, 4), (16, 2), scheme=scheme) for scheme in SCHEMES}
        ways |= {
            "wider only": functools.partial(plan, (32, 2), (16, 2)),
            "deeper only": functools.partial(plan, (16, 4), (16, 2)),
            "smaller": functools.partial(plan, (16, 2), (32, 4)),
            "richer": functools.partial(plan, (32, 4), (16, 2), gamma0=2.0),
        }
        if name in MEMBERS:  # torch.export takes a second
            ways["without weights"] = functools.partial(plan, (32, 4), (16, 2), meta=True)
        out[name] = {way: outcome(call) for way, call in ways.items()}
    return out


@part
def families() -> Any:
    """Every published family of the tests."""
    from families import FAMILIES

    out = {}
    for name, (build, example, _, _) in FAMILIES.items():
        plan = functools.partial(planned, build, example)
        ways = {
            s: functools.partial(plan, (64, 4), (32, 2), scheme=s) for s in ("mup", "depth-mup", "completep")
        }
        ways["smaller"] = functools.partial(plan, (32, 2), (64, 4))
        if name in ("gpt2", "llama-gqa", "t5", "vit", "resnet", "mixtral"):
            ways["without weights"] = functools.partial(plan, (64, 4), (32, 2), meta=True)
        out[name] = {way: outcome(call) for way, call in ways.items()}
    return out


@part
def refusals() -> Any:  # noqa: C901
    """What parametrize refuses, and what it says."""
    import torch
    from torch import nn

    import trimtab
    from structures import CASES, IDS, IMAGES, Block, Net, ResNet, X

    build, towers = CASES["residual-mlp"].build, CASES["wide-and-deep-said-to-be-towers"].build
    stages = CASES["stages-of-blocks-called-alike"]

    class Stacked(Block):
        def forward(self, h):
            return torch.stack([h, self.f(h)]).sum(0)

    class Tanh(Block):
        def f(self, h):
            return torch.tanh(self.fc(h))

    class Tied(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.embed, self.fc = nn.Embedding(11, n), nn.Linear(n, n)

        def forward(self, ids):
            h = self.embed(ids)
            return (h + self.fc(torch.relu(h))) @ self.embed.weight.T

    class Positions(nn.Module):
        def __init__(self, n, t):
            super().__init__()
            self.embed, self.pos, self.head = (
                nn.Linear(6, n),
                nn.Parameter(torch.randn(t, n)),
                nn.Linear(n, 5),
            )

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x) + self.pos[: len(x)]))

    class Disguise(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a, self.w, self.head = nn.Linear(6, n), nn.Parameter(torch.randn(n, n)), nn.Linear(n, 5)

        def forward(self, x):
            return self.head((self.a(x)[:, None, :] * self.w).amax(-1))

    class Silent(nn.Linear):
        def forward(self, x):
            return {"loss": 1.0}

    def stacked(n, L):
        return Net(n, [Stacked(fc=nn.Linear(n, n)) for _ in range(L)])

    def tanh(n, L):
        return Net(n, [Tanh(fc=nn.Linear(n, n)) for _ in range(L)])

    def sized(n, vocabulary=11, classes=5):
        return nn.Sequential(nn.Embedding(vocabulary, n), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, classes))

    def empty(n):
        net = build(n, 2)
        net.nothing = nn.Parameter(torch.empty(0))
        return net

    def trained():
        net = build(64, 2)
        with torch.no_grad():
            for q in net.parameters():
                q.mul_(torch.rand(()) * 3 + 0.2)
        return net

    def broken():
        net = build(32, 2)
        with torch.no_grad():
            net.head.weight[0, 0] = math.nan
        return net

    def hollow(*size):
        with torch.device("meta"):
            return build(*size)

    same, ids = build(16, 2), torch.arange(4)
    wrong = {"haed.*": "readout", "stem.*": "wizard", "head.*": {"speed": 1, "lr": -1}}
    numbers = {"head.*": {"init": 0.5, "lr": 2.0, "weight_decay": 0.0, "eps": 3.0}}
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any], dict[str, Any]]] = {
        "no example": (lambda: build(32, 2), lambda: build(16, 2), {}),
        "two faults": (lambda: build(32, 2), lambda: build(16, 2), {"gamma0": -1}),
        "example of another shape": (
            lambda: build(32, 2),
            lambda: build(16, 2),
            {"example": torch.ones(2, 99)},
        ),
        "empty example": (lambda: build(32, 2), lambda: build(16, 2), {"example": torch.ones(0, 6)}),
        "another architecture": (
            lambda: build(32, 2),
            lambda: CASES["pre-norm-mlp"].build(16, 2),
            {"example": X},
        ),
        "base without branches": (
            lambda: build(32, 2),
            lambda: CASES["plain-mlp"].build(16, 2),
            {"example": X},
        ),
        "no counterpart": (lambda: stacked(16, 4), lambda: stacked(16, 2), {"example": X}),
        "deeper here, shallower there": (
            lambda: ResNet(8, [2, 3]),
            lambda: ResNet(8, [3, 2]),
            {"example": IMAGES},
        ),
        "stages that differ": (
            lambda: ResNet(8, [3, 4, 6, 3]),
            lambda: ResNet(8, [2] * 4),
            {"example": IMAGES},
        ),
        "no output": (lambda: Silent(6, 8), lambda: Silent(6, 4), {"example": X}),
        "no elements": (lambda: empty(32), lambda: empty(16), {"example": X}),
        "bad overrides": (lambda: build(32, 2), lambda: build(16, 2), {"example": X, "overrides": wrong}),
        "overrides": (lambda: build(32, 4), lambda: build(16, 2), {"example": X, "overrides": numbers}),
        "vocabulary": (lambda: sized(32, 22), lambda: sized(16), {"example": ids}),
        "classes": (lambda: sized(32, 11, 10), lambda: sized(16), {"example": ids}),
        "positions and width": (lambda: Positions(32, 16), lambda: Positions(16, 8), {"example": X}),
        "positions": (lambda: Positions(16, 16), lambda: Positions(16, 8), {"example": X}),
        "matrix in disguise": (lambda: Disguise(32), lambda: Disguise(16), {"example": X}),
        "tied without a norm": (lambda: Tied(32), lambda: Tied(16), {"example": ids}),
        "trained weights": (trained, lambda: build(64, 1), {"example": X}),
        "trained weights, not applied": (trained, lambda: build(64, 1), {"example": X, "apply": False}),
        "weights that are no numbers": (broken, lambda: build(16, 2), {"example": X}),
        "unknown scheme": (lambda: build(32, 2), lambda: build(16, 2), {"example": X, "scheme": "mu"}),
        "base on meta": (lambda: build(32, 2), lambda: hollow(16, 2), {"example": X}),
        "model on meta": (lambda: hollow(32, 2), lambda: build(16, 2), {"example": X}),
        "no module": (lambda: 3, lambda: build(16, 2), {"example": X}),
        "one object": (lambda: same, lambda: same, {"example": X}),
        "ambiguous sum": (lambda: towers(32, 1), lambda: towers(16, 1), {"example": X}),
        "said to be a branch": (
            lambda: towers(32, 1),
            lambda: towers(16, 1),
            {"example": X, "overrides": {"deep.*": "branch"}},
        ),
        "a stage of one block": (
            lambda: stages.build(32, 2),
            lambda: stages.build(16, 1),
            {"example": stages.example},
        ),
        "a skip that is hidden": (lambda: stacked(16, 4), lambda: stacked(16, 2), {"example": X}),
        "a skip that is said": (
            lambda: stacked(16, 4),
            lambda: stacked(16, 2),
            {"example": X, "overrides": {"blocks.*": "branch"}},
        ),
        "no tail": (lambda: tanh(16, 4), lambda: tanh(16, 2), {"example": X}),
        "no tail, width only": (lambda: tanh(32, 2), lambda: tanh(16, 2), {"example": X}),
        "scheme of one's own": (
            lambda: build(32, 4),
            lambda: build(16, 2),
            {"example": X, "scheme": trimtab.Scheme("a", 0.0)},
        ),
    }

    def run(make, make_base, more):
        torch.manual_seed(0)
        model = make()
        p = trimtab.parametrize(model, make_base(), **more)
        return {**described(p), "weights": weights(model)}

    out = {name: outcome(functools.partial(run, *case)) for name, case in cases.items()}
    p = trimtab.parametrize(build(32, 2), build(16, 2), example=X)
    for text in ("{}", "[]", "not json", '{"format": 99}'):
        out[f"json {text}"] = outcome(lambda text=text: trimtab.Parametrization.from_json(text).to_json())
    out["another model's groups"] = outcome(lambda: p.groups(torch.optim.SGD, lr=0.1, model=nn.Linear(3, 3)))
    out["alpha below 0"] = outcome(lambda: trimtab.Scheme("bad", alpha=-1))
    out["unknown width rule"] = outcome(lambda: trimtab.Scheme("bad", width="wide"))
    lm = CASES["pre-norm-transformer"].build
    out["ids"] = outcome(lambda: described(trimtab.parametrize(lm(32, 4), lm(16, 2), example={"ids": IDS})))
    return out


# -- 2. optimizers -------------------------------------------------------------------------------------------

FLAGS: dict[str, list[dict[str, Any]]] = {
    "Adam": [{"decoupled_weight_decay": True}, {"amsgrad": True}],
    "NAdam": [{"decoupled_weight_decay": True}],
    "Muon": [{"adjust_lr_fn": "original"}, {"adjust_lr_fn": "match_rms_adamw"}, {"adjust_lr_fn": "other"}],
    "SGD": [{"momentum": 0.9, "nesterov": True}],
}
MEMBERS = (
    *(
        "residual-mlp",
        "post-norm",
        "pre-norm-transformer",
        "tied-with-packed-attention",
        "conv-ending-in-batch-norm",
    ),
    *(
        "mixture-of-experts",
        "shared-layers",
        "gain-stored-as-one-plus-w",
        "rezero",
        "staged-resnet",
        "lstm",
        "weight-norm",
    ),
)


def own_optimizers() -> dict[str, Any]:
    """Optimizers torch does not have: three that follow a law, three that do not."""
    import torch

    class Own(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, weight_decay=0.0):
            super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(self.move(group["lr"], p.grad))

    class Signed(Own):
        def move(self, lr, g):
            return lr * g.sign()

    class Followed(Own):
        def move(self, lr, g):
            return lr * g

    class Bounded(Own):
        def move(self, lr, g):
            return (lr * g).clamp(-1e-3, 1e-3)

    class Normed(Own):
        def move(self, lr, g):
            return lr * g / (g.norm() + 1e-8)

    class Mine(torch.optim.AdamW):
        pass

    def takes_nothing():
        return None

    made = {c.__name__: c for c in (Signed, Followed, Bounded, Normed, Mine)}
    return made | {"a function": takes_nothing, "nothing": None}


def grouped(groups: Any, model: Any) -> list[Any]:
    """Parameter groups by the names of their parameters."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        {k: plain(v) for k, v in g.items() if k != "params"} | {"names": [names[id(p)] for p in g["params"]]}
        for g in groups
    ]


@part
def factors() -> Any:
    """Factors of every optimizer, the refusals, groups as they are merged, two steps of training."""
    import torch

    import trimtab
    from structures import CASES

    classes = {
        n: c
        for n, c in sorted(vars(torch.optim).items())
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
    }
    classes.pop("Optimizer", None)
    classes |= own_optimizers()
    out: dict[str, Any] = {}
    for name in MEMBERS:
        case = CASES[name]
        for scheme in SCHEMES if name == "residual-mlp" else ("mup", "depth-mup", "completep"):
            torch.manual_seed(0)
            model, base = case.build(32, 4), case.build(16, 2)
            p = trimtab.parametrize(
                model, base, example=case.example, overrides=case.overrides, scheme=scheme
            )
            found = out[f"{name}, {scheme}"] = {}
            for kind, cls in classes.items():
                for flags in ({}, *FLAGS.get(kind, [])):
                    found[f"{kind} {flags or ''}".strip()] = outcome(
                        functools.partial(p.factors, cls, **flags)
                    )
            adamw, sgd, muon = torch.optim.AdamW, torch.optim.SGD, torch.optim.Muon
            ways: dict[str, tuple[Any, dict[str, Any]]] = {
                "AdamW": (adamw, {"lr": 1e-3}),
                "AdamW with decay and eps": (adamw, {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-6}),
                "AdamW without decay of vectors": (
                    adamw,
                    {"lr": 1e-3, "weight_decay": 0.1, "no_decay": lambda r: len(r.shape) < 2},
                ),
                "AdamW without decay by name": (
                    adamw,
                    {"lr": 1e-3, "weight_decay": 0.1, "no_decay": ["*.bias", "*norm*"]},
                ),
                "Adam with decay": (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.1}),
                "SGD with decay": (sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
                "Adadelta": (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.01}),
                "Muon": (muon, {"lr": 0.02, "only": "matrices"}),
                "Muon as AdamW": (muon, {"lr": 0.02, "only": "matrices", "adjust_lr_fn": "match_rms_adamw"}),
                "Muon, all": (muon, {"lr": 0.02}),
                "the rest": (adamw, {"lr": 1e-3, "only": "rest"}),
                "none": (sgd, {"lr": 0.1, "only": "nothing.*"}),
                "no rate": (sgd, {"lr": math.nan}),
            }
            for way, (cls, hyper) in ways.items():
                found[f"groups: {way}"] = outcome(
                    lambda p=p, m=model, c=cls, h=hyper: grouped(p.groups(c, **h), m)
                )
            found["notes"] = list(p.notes)
            found["training"] = outcome(functools.partial(two_steps, p, model, case.example))
    return out


def two_steps(p: Any, model: Any, example: Any) -> Any:
    """Two clipped steps: the norms, the weights; then what `check` says once the factors are erased."""
    import torch

    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3, weight_decay=0.0)
    norms = []
    for _ in range(2):
        optimizer.zero_grad()
        model(*(example if isinstance(example, tuple) else (example,))).square().mean().backward()
        norms.append(float(p.clip_grad_norm_(0.1)))
        optimizer.step()
    p.check(optimizer)
    found = {"norms": norms, "weights": weights(model), "rates": p.lrs(optimizer, 0.3)}
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    return found | {"erased": outcome(lambda: p.check(optimizer))}


# -- 3. the coordinate check ---------------------------------------------------------------------------------


@part
def checks() -> Any:
    """Fifteen coordinate checks: known schemes, set-ups by hand with and without a bug."""
    import torch
    from nets import ResidualMLP, ResNet, Transformer, images, points, tokens
    from setups import BASE, mlp, transformer
    from torch import optim

    import trimtab

    normed, tied = functools.partial(ResidualMLP, k=2, norm=True), functools.partial(Transformer, tied=True)
    mlps: dict[str, Any] = {"widths": [32, 64, 128], "depths": [3, 6, 12], "base": (32, 3), "data": points}
    attends: dict[str, Any] = {
        "widths": [32, 64],
        "depths": [2, 4],
        "base": (32, 2),
        "data": tokens,
        "seeds": 2,
    }
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "one matrix, sp": (ResidualMLP, mlps | {"scheme": "sp"}),
        "one matrix, ntk": (ResidualMLP, mlps | {"scheme": "ntk", "steps": 3}),
        "one matrix, mup": (ResidualMLP, mlps | {"scheme": "mup"}),
        "one matrix, depth-mup, SGD": (ResidualMLP, mlps | {"optimizer": optim.SGD, "lr": 0.1}),
        "two matrices, depth-mup": (normed, mlps),
        "two matrices, completep, sharpness": (
            normed,
            mlps | {"scheme": "completep", "sharpness": True, "seeds": 2, "depths": None},
        ),
        "transformer, depth-mup": (Transformer, attends),
        "tied transformer, depth-mup, decay": (tied, attends | {"hyper": {"weight_decay": 0.1}}),
        "resnet, depth-mup": (
            ResNet,
            {"widths": [16, 32], "depths": [2, 4, 8], "base": (16, 2), "data": images, "seeds": 2},
        ),
        "rate too low": (ResidualMLP, mlps | {"lr": 1e-12, "depths": None, "seeds": 2}),
    }
    own = {"scheme": None, "expect": "depth-mup", "base": BASE}
    for bug in ("", "unscaled readout", "forgotten branch", "decay not scaled with width"):
        build, optimizer = mlp(bug, optim.AdamW)
        sizes = {"widths": [32, 64, 128], "depths": [4, 8, 16], "data": points, "optimizer": optimizer}
        ways[f"by hand, {bug or 'right'}"] = (build, own | sizes)
    build, optimizer = transformer("wrong attention scale")
    sizes = {"widths": [32, 64, 128], "depths": [4], "data": tokens, "optimizer": optimizer, "seeds": 2}
    ways["by hand, wrong attention scale"] = (build, own | sizes)

    def run(build, given):
        torch.manual_seed(0)
        sizes = dict(given)
        found = trimtab.check(build, sizes.pop("widths"), sizes.pop("depths"), **sizes)
        return {
            "verdict": found.verdict,
            "verdicts": found.verdicts,
            "slopes": plain(found.slopes),
            "culprits": [plain(c) | {"text": str(c)} for c in found.culprits],
            "unsure": [plain(c) | {"text": str(c)} for c in found.unsure],
            "notes": found.notes,
            "advice": found.advice,
            "text": str(found),
            "json": json.loads(found.to_json()),
            "figure": json.loads(found.figure().to_json())["data"],
        }

    out = {name: outcome(functools.partial(run, *way)) for name, way in ways.items()}
    out["all faults at once"] = outcome(
        lambda: trimtab.check(3, "no", [0], base=(1,), data=None, scheme="x", lr=-1, steps=0)
    )  # type: ignore[arg-type]
    out["it does not grow"] = outcome(
        lambda: trimtab.check(lambda n, L: ResidualMLP(32, L), [32, 64], None, base=(32, 3), data=points)
    )
    return out


# -- 4. sweeps and transfer ----------------------------------------------------------------------------------

LETTERS = """
import torch

def data(split, seed, step):
    g = torch.Generator().manual_seed(seed * 1009 + step + (split != "train") * 7919)
    x = torch.randint(0, 9, (6, 9), generator=g)
    return x, (x + 1) % 9
"""
RUN = {"batch_size": 16, "steps": 30, "eval_examples": 64, "model_options": {"branch_scale": 0.5}}
SMALL = {"batch_size": 16, "steps": 16, "eval_examples": 32}
GPT = {
    "model": "gpt",
    "data": "letters.py:data",
    "model_options": {"vocabulary": 9, "context": 9, "heads": 2},
}
VIT = {"model": "vit", "model_options": {"patch": 4, "heads": 2}}
BATCHNORM = {"model": "resnet", "model_options": {"norm": "batch"}, "momentum": 0.9}
ADAMW = {"optimizer": "adamw", "weight_decay": 0.1}
RATES = {"lr": {"log2": [-6, 4], "step": 1}}
FEW = {"lr": [2.0**-8, 2.0**-5, 1e6]}
SWEEPS: dict[str, dict[str, Any]] = {
    "fleet": {
        "schemes": ["sp", "mup", "depth-mup"],
        "base": [16, 2],
        "widths": [16, 32],
        "depths": [2, 4],
        "axes": RATES,
        "run": RUN,
    },
    "single": {
        "base": [16, 2],
        "widths": [16, 32],
        "depths": [2, 4],
        "axes": {"lr": {"log2": [-4, 2], "step": 2}},
        "run": RUN,
        "fleet": 1,
    },
    "decay": {
        "base": [12, 2],
        "depths": [2, 4],
        "axes": {"lr": {"log2": [-9, -5], "step": 1}, "weight_decay": [0.0, 0.1]},
        "run": SMALL | {"optimizer": "adamw"},
    },
    "batchnorm": {"base": [8, 3], "depths": [3, 6], "axes": FEW, "run": SMALL | BATCHNORM},
    "vit": {"base": [16, 2], "axes": FEW, "run": SMALL | VIT | ADAMW | {"schedule": "cosine"}},
    "gpt": {"base": [16, 2], "axes": FEW, "run": SMALL | GPT | ADAMW | {"clip": 1.0}},
}


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write_toml(path: str, table: dict[str, Any]) -> str:
    Path(path).write_text("".join(f"{json.dumps(k)} = {toml(v)}\n" for k, v in table.items()))
    return path


UNTIMED = ("seconds", "arithmetic")  # the clock's and the machine's


def cells(store: str) -> list[dict[str, Any]]:
    """All cells of a store, in the order they were made; read by SQL, since old stores must stay readable."""
    import numpy as np

    with contextlib.closing(sqlite3.connect(store)) as db:
        query = "SELECT c.cell, c.label, c.config, c.state, c.result, c.error, v.data FROM cells c"
        rows = db.execute(query + " LEFT JOIN curves v ON v.cell = c.cell ORDER BY c.id").fetchall()
    out = []
    for cell, label, config, state, result, error, data in rows:
        held = {k: v for k, v in json.loads(result or "{}").items() if k not in UNTIMED}
        with np.load(io.BytesIO(data), allow_pickle=False) if data else contextlib.nullcontext({}) as curves:
            kept = {key: plain(np.asarray(curves[key])) for key in sorted(curves)}
        out.append(
            {
                "cell": cell,
                "label": label,
                "config": json.loads(config),
                "state": state,
                "result": held,
                "error": error,
                "curves": kept,
            }
        )
    return out


class Words(html.parser.HTMLParser):
    """The text of a page, without scripts and styles; what is in inert JSON blocks apart."""

    def __init__(self, page: str):
        super().__init__()
        self.words: list[str] = []
        self.data: dict[str, Any] = {}
        self.inside, self.block = "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in ("script", "style"):
            self.inside, self.block = (
                tag,
                named.get("id") or "" if named.get("type") == "application/json" else "",
            )
        self.words += [named[k] for k in ("alt", "aria-label", "title") if named.get(k)]

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = self.block = ""

    def handle_data(self, data):
        if self.block:
            self.data[self.block] = json.loads(data)
        elif not self.inside and data.strip():
            self.words.append(" ".join(data.split()))


def page_of(path: Path, *hide: str) -> dict[str, Any]:
    """A page's words and figures; `hide`: versions, which are not ours to freeze."""
    page = Words(path.read_text(encoding="utf-8"))
    words = "\n".join(page.words)
    for text in hide:
        words = words.replace(text, "<version>")
    return {"page": words.splitlines(), "data": page.data}


TRANSFER = (
    "verdict",
    "optima",
    "drift",
    "regret",
    "cost",
    "more",
    "advice",
    "signatures",
    "notes",
    "log",
    "points",
)


def transferred(source: Any, **how: Any) -> Any:
    """`trimtab.transfer` through its public fields, scheme by scheme."""
    import trimtab

    found = trimtab.transfer(source, **how)
    every = found if isinstance(found, dict) else {found.scheme: found}
    return {
        scheme: {name: plain(getattr(t, name)) for name in TRANSFER} | {"ratio": t.cost.ratio}
        for scheme, t in every.items()
    }


@part
def sweeps() -> Any:
    """Small sweeps on real data, in fleets and one by one; what status, transfer and report say of them."""
    import trimtab

    out: dict[str, Any] = {}
    with folder():
        for name, table in SWEEPS.items():
            write_toml(f"{name}.toml", {"name": name, "seeds": 2} | table)
            code = command("sweep", f"{name}.toml", "--workers", "1")
            code.pop("err")  # progress, with times
            out[name] = {"sweep": code, "cells": cells(f"{name}.db")}
            out[name]["again"] = command("sweep", f"{name}.toml", "--workers", "1") | {"err": ""}
        for name in ("fleet", "single", "decay", "gpt"):
            store, found = f"{name}.db", out[name]
            found["status"] = command("status", store, "--csv", f"{name}.csv")
            found["csv"] = Path(f"{name}.csv").read_text().splitlines()[0].split(",")
            found["status --json"] = with_json(command("status", store, "--json"))
            found["transfer"] = command("transfer", store)
            found["transfer --json"] = with_json(command("transfer", store, "--json"))
            with contextlib.closing(sqlite3.connect(store)) as db:
                versions = json.loads(
                    db.execute("SELECT value FROM meta WHERE key = 'versions'").fetchone()[0]
                )
            found["report"] = outcome(
                lambda n=name, v=versions: page_of(trimtab.report(f"{n}.db", f"{n}.html"), *v.values())
            )
        fleet = out["fleet"]
        for over in ("width", "depth"):
            for metric in ("train_loss", "test_loss", "accuracy"):
                fleet[f"{metric} over {over}"] = outcome(
                    lambda o=over, m=metric: transferred("fleet.db", over=o, metric=m)
                )
        fleet["one scheme"] = command(
            "transfer", "fleet.db", "--scheme", "mup", "--over", "width", "--where", "depth=4"
        )
        fleet["suggest"] = command("transfer", "fleet.db", "--suggest", "more.toml")
        fleet["suggested"] = Path("more.toml").read_text() if Path("more.toml").exists() else None
        fleet["unknown scheme"] = command("transfer", "fleet.db", "--scheme", "nope")
        fleet["unknown hyperparameter"] = command("transfer", "fleet.db", "--hp", "momentum")
        out["decay"]["by decay"] = outcome(lambda: transferred("decay.db", where={"weight_decay": 0.1}))
        fleet["dict"] = outcome(lambda: trimtab.sweep({"base": [32]}, "x.db"))
        fleet["bad call"] = outcome(lambda: trimtab.sweep(SWEEPS["single"], workers=0, engine="slurm"))
        fleet["retry"] = command("retry", "fleet.db", "--diverged")
        fleet["status after retry"] = command("status", "fleet.db")
    return out


@part
def made() -> Any:
    """Made-up sweeps with a known truth: verdicts, optima, drift, regret, cost, words and figures."""
    import numpy as np
    import pandas as pd
    import simulated
    from sweeps_made import made as sweep

    import trimtab

    coarse, high = np.arange(-6, 2, 2.0), np.arange(-1, 3, 0.5)
    sources = {
        "cross": sweep(),
        "grid": sweep(("mup", "depth-mup"), cross=False, seeds=2, rng=1),
        "noisy": sweep(("mup", "depth-mup"), noise=0.3, rng=2),
        "coarse": sweep(("sp", "depth-mup"), rates=coarse, rng=4),
        "too high": sweep(("mup", "depth-mup"), rates=high, rng=5),
        "one scheme": sweep(("depth-mup",), rng=6, seeds=1),
    }
    out: dict[str, Any] = {}
    with folder() as place:
        for name, source in sources.items():
            found = out[name] = {}
            for over in ("depth", "width"):
                found[over] = outcome(lambda s=source, o=over: transferred(s, over=o))
            for metric in ("test_loss", "accuracy") if name in ("cross", "one scheme") else ():
                found[metric] = outcome(lambda s=source, m=metric: transferred(s, over="depth", metric=m))
            found["where"] = outcome(
                lambda s=source: transferred(s, over="width", where={"depth": 6}, scheme="depth-mup")
            )
            found["report"] = outcome(lambda s=source: page_of(trimtab.report(s, place / "report.html")))
        table = sources["cross"].to_pandas()
        halves = {
            "half": table[table.index % 2 == 0],
            "waiting": table.assign(state=["waiting", "done"] * (len(table) // 2)),
        }
        for name, part_of in halves.items():
            out[name] = {
                o: outcome(lambda t=part_of, o=o: transferred(t, over=o)) for o in ("depth", "width")
            }
        out["nothing"] = outcome(lambda: transferred(pd.DataFrame()))
        out["no such file"] = outcome(lambda: trimtab.transfer("nowhere.db"))
        out["no such axis"] = outcome(lambda: trimtab.transfer(sources["cross"], over="height"))
        out["empty page"] = outcome(lambda: page_of(trimtab.report(pd.DataFrame(), place / "report.html")))
    kinds = ("two-sided", "flat", "cliff")  # coverage finds the noise by a pilot, so it also freezes 180 fits
    out["coverage"] = {k: outcome(lambda k=k: simulated.coverage(k, 0.15, 3, True, 10)) for k in kinds}
    out["verdicts"] = outcome(lambda: simulated.verdicts(0.25, 0.15, 4))
    return out


# -- 5. theory -----------------------------------------------------------------------------------------------

FIELDS = (
    "f",
    "loss",
    "phi",
    "g",
    "ntk",
    "f_test",
    "stderr",
    "tau",
    "diverged",
    "samples",
    "depth_error",
    "variance",
    "a",
    "b",
)


def trajectory(found: Any) -> Any:
    """A trajectory, its errors and its variance, field by field."""
    if not hasattr(found, "tau"):
        return plain(found)
    nested = {"stderr", "depth_error", "variance"}
    return {k: trajectory(getattr(found, k)) if k in nested else plain(getattr(found, k)) for k in FIELDS}


@part
def theory() -> Any:
    """The infinite network: kernels, dynamics, deep linear, ensembles, rates; the limit command."""
    import numpy as np

    from trimtab import theory as t

    draw = np.random.default_rng(0)
    x, test = draw.standard_normal((3, 5)), draw.standard_normal((2, 5))
    y, signs, labels = np.array([1.0, -1.0, 0.5]), np.array([1.0, -1.0, 1.0]), np.array([0, 2, 1])
    out: dict[str, Any] = {
        "lazy": {},
        "solve": {},
        "linear": {},
        "simulate": {},
        "rates": {},
        "fluctuate": {},
        "refused": {},
    }
    for activation in ("relu", "tanh", "erf", "gelu", "linear"):
        for depth in (1, 4, math.inf):
            for alpha in (0.5, 1.0):
                found = t.lazy(x, depth=depth, activation=activation, alpha=alpha)
                kept = {k: plain(getattr(found, k)) for k in ("nngp", "ntk", "phi", "g", "tau")}
                kept["train"] = plain(found.train(y, lr=0.1, steps=4, momentum=0.5))
                out["lazy"][f"{activation}, depth {depth}, alpha {alpha}"] = kept
            fluctuations = functools.partial(t.fluctuate, depth=depth, activation=activation, size=1.3)
            out["fluctuate"][f"{activation}, depth {depth}"] = outcome(fluctuations)
    case: dict[str, Any] = {"depth": 2, "lr": 0.2, "steps": 3}
    ways: dict[str, dict[str, Any]] = {
        "plain": {"y": y},
        "test points": {"y": y, "x_test": test},
        "logistic, momentum": {"y": signs, "loss": "logistic", "momentum": 0.9},
        "softmax": {"y": labels, "loss": "softmax"},
        "decay, rich, alpha 1": {"y": y, "weight_decay": 0.1, "gamma0": 2.0, "alpha": 1.0},
        "batches, rates": {"y": y, "batches": [[0, 1], [2], [0, 2]], "lr": [0.1, 0.2, 0.05]},
        "two outputs, beta": {"y": np.stack([y, signs], 1), "beta": 0.7},
        "diverging": {"y": y, "lr": 50.0, "steps": 6},
        "infinite depth": {"y": y, "depth": math.inf},
    }
    for name, way in ways.items():
        given = case | way
        targets = given.pop("y")
        for activation in ("tanh", "relu") if name in ("plain", "infinite depth") else ("gelu",):
            solved = functools.partial(
                t.solve, x, targets, activation=activation, samples=400, seed=1, **given
            )
            out["solve"][f"{name}, {activation}"] = outcome(lambda call=solved: trajectory(call()))
        out["linear"][name] = outcome(lambda y=targets, g=given: trajectory(t.linear(x, y, **g)))
        if given["depth"] < math.inf:
            ran = functools.partial(
                t.simulate, x, targets, width=24, seeds=3, activation="tanh", seed=2, **given
            )
            out["simulate"][name] = outcome(lambda call=ran: trajectory(call()))
    more = {"activation": "erf", "samples": 400} | case
    out["solve"]["without responses"] = outcome(lambda: trajectory(t.solve(x, y, responses=False, **more)))
    out["solve"]["to a tolerance"] = outcome(lambda: trajectory(t.solve(x, y, rtol=0.05, **more)))
    drawn = functools.partial(t.simulate, x, y, width=500, seeds=2, matrices=False, activation="relu", **case)
    out["simulate"]["without matrices"] = outcome(lambda: trajectory(drawn()))
    rates = {"rates": 2.0 ** np.arange(-5, 4), "depth": 2, "steps": 3}
    finite = functools.partial(t.simulate, width=16, seeds=2)
    out["rates"] = {
        "limit": outcome(lambda: t.sweep_rates(x, y, activation="tanh", samples=400, **rates)),
        "networks": outcome(lambda: t.sweep_rates(x, y, activation="tanh", solver=finite, **rates)),
        "linear": outcome(lambda: t.sweep_rates(x, y, solver=t.linear, **rates)),
        "one rate": outcome(lambda: t.sweep_rates(x, y, rates=[0.1], depth=2, steps=3, activation="tanh")),
    }
    bad: dict[str, Any] = {
        "x": [[1.0, 0.0]],
        "y": [1.0, 2.0],
        "depth": 1,
        "activation": "relu",
        "lr": 0.1,
        "steps": 0,
    }
    for name, wrong in {
        "two faults": {},
        "all": {"depth": 0.5, "activation": "x", "loss": "l", "momentum": 1.5, "gamma0": 0, "samples": -1},
        "alpha": {"depth": math.inf, "alpha": 0.1},
        "lr": {"lr": [0.1, -0.1], "steps": 2, "weight_decay": 3.0},
        "numbers": {"x": [[math.nan]], "y": None},
    }.items():
        out["refused"][name] = outcome(lambda w=wrong: t.solve(**(bad | w)))
    out["refused"]["finite"] = outcome(
        lambda: t.simulate(x, y, width=0, seeds=[], depth=math.inf, activation="relu", lr=1, steps=1)
    )
    out["refused"]["linear"] = outcome(lambda: t.linear(x, y, depth=1, activation="relu", lr=1, steps=1))
    with folder():
        small = ["--steps", "3", "--points", "2", "--networks", "32", "--samples", "400"]
        sizes = ["limit", "--width", "16,32", "--depth", "2,4", *small]
        out["limit --json"] = with_json(command(*sizes, "--json"))
        infinite = [
            "limit",
            "--width",
            "16,32,64",
            "--depth",
            "2,4,inf",
            *small,
            "--rates",
            "0.05,0.2,0.8,3.2",
        ]
        out["limit, rates"] = with_json(command(*infinite, "--json"))
        out["limit"] = command(*sizes, "-o", "limit.html")
        out["limit page"] = page_of(Path("limit.html"))
        out["limit, bad"] = command(
            "limit", "--width", "a", "--depth", "0", "--rates", "1", "--points", "0", "--lr", "-1"
        )
    return out


# -- 6. commands ---------------------------------------------------------------------------------------------

MODELS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(n, n)
    def forward(self, h): return h + self.fc(torch.relu(h))

def blocks(n, L): return [Block(n) for _ in range(L)]
def build(width, depth): return nn.Sequential(nn.Linear(6, width), *blocks(width, depth), nn.Linear(width, 3))
def example(): return torch.ones(2, 6)
def data(split, seed, step):
    g = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(64, 6, generator=g)
    return x, x[:, :3].argmax(-1)
def nothing(width, depth): pass
"""
ALONE = """
from torch import nn
from mine import blocks

def flat(width, depth):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *blocks(width, depth), nn.Linear(width, 10))
"""


def command(*argv: str) -> dict[str, Any]:
    """A command of trimtab: its exit code and what it wrote, without the folder and without times."""
    import torch

    from trimtab.cli import main

    torch.manual_seed(0)
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["trimtab", *argv]  # a store keeps the command that made it
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code: Any = main(list(argv))
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    texts = [re.sub(r"(?m)^[\d.]+ s, ", "<time>, ", t.getvalue()) for t in (out, err)]
    texts = [t.replace(str(Path.cwd()), "<folder>") for t in texts]
    return {"exit": code, "out": texts[0], "err": texts[1]}


def with_json(ran: dict[str, Any]) -> dict[str, Any]:
    """The same with its output read as JSON, so that its numbers are compared as numbers."""
    try:
        data = json.loads(ran["out"])
    except json.JSONDecodeError:
        return ran
    return {"exit": ran["exit"], "json": timeless(data), "err": ran["err"]}


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in UNTIMED}
    return [timeless(v) for v in value] if isinstance(value, list) else value


DIGITS = {"width": 16, "depth": 2, "lr": 0.1, "steps": 40, "batch_size": 32}
TRAINED: dict[str, dict[str, Any]] = {
    "mlp": DIGITS,
    "scaled": DIGITS
    | {"width": 32, "depth": 4, "base": [16, 2], "eval_every": 10, "momentum": 0.9, "nesterov": True},
    "completep": DIGITS
    | {
        "width": 32,
        "depth": 4,
        "base": [16, 2],
        "scheme": "completep",
        "optimizer": "adam",
        "lr": 0.01,
        "gamma0": 2.0,
    },
    "muon": DIGITS
    | {
        "width": 32,
        "depth": 4,
        "base": [16, 2],
        "optimizer": "muon",
        "lr": 0.02,
        "weight_decay": 0.1,
        "decay_schedule": "cosine",
    },
    "float64": DIGITS | {"dtype": "float64", "schedule": "linear", "floor": 0.1, "warmup": 5},
    "bfloat16": DIGITS | {"dtype": "bfloat16"},
    "diverging": DIGITS | {"lr": 1e6},
    "collapsed": DIGITS | {"lr": 1e-9, "steps": 10},
    "resnet": SMALL | {"width": 16, "depth": 6, "base": [8, 3], "lr": 0.05} | BATCHNORM,
    "vit": SMALL
    | {"width": 32, "depth": 4, "base": [16, 2], "lr": 0.003, "schedule": "cosine"}
    | VIT
    | ADAMW,
    "gpt": SMALL
    | {"width": 32, "depth": 4, "base": [16, 2], "lr": 0.003, "clip": 1.0, "warmup": 3}
    | GPT
    | ADAMW,
    "teacher": SMALL
    | {"width": 32, "depth": 4, "base": [16, 2], "lr": 0.01, "data": "teacher", "loss": "mse"},
    "own": SMALL
    | {
        "width": 32,
        "depth": 4,
        "base": [16, 2],
        "lr": 0.05,
        "model": "alone.py:flat",
        "overrides": {"1.*": {"lr": 0.5}},
    },
}
SOUND = {"base": [16, 2], "axes": {"lr": [0.1]}}
BROKEN_RUNS: dict[str, dict[str, Any]] = {
    "empty": {},
    "unknown keys": DIGITS | {"learning_rate": 1, "widht": 3},
    "ranges": DIGITS
    | {"lr": -1, "steps": 0, "momentum": 2, "clip": 0, "betas": [1, 2], "floor": 3, "gamma0": 0},
    "names": DIGITS
    | {
        "model": "mlpp",
        "data": "digitz",
        "optimizer": "adamm",
        "schedule": "cosin",
        "loss": "l2",
        "scheme": "mu",
    },
    "options": DIGITS | {"model_options": {"branch_scal": 1}, "data_options": {"px": 3}},
    "options of a vit": DIGITS | {"model": "vit", "model_options": {"heads": 5, "patch": 3}},
    "together": DIGITS
    | {"nesterov": True, "warmup": 99, "batch_size": 99999, "data": "teacher", "device": "tpu"},
    "kinds": DIGITS | {"width": "wide", "base": [1], "compile": 3, "overrides": 3},
    "text for a vit": DIGITS | {"model": "gpt", "data": "digits"},
    "overrides": DIGITS | {"base": [8, 2], "overrides": {"nothing": "readout"}},
    "no file": DIGITS | {"model": "nowhere.py:build"},
    "no function": DIGITS | {"model": "mine.py:nope"},
    "no module": DIGITS | {"model": "mine.py:nothing"},
}
BROKEN_SWEEPS: dict[str, dict[str, Any]] = {
    "empty": {},
    "unknown keys": SOUND | {"scheme": "mup", "width": [3]},
    "kinds": {
        "base": [32],
        "widths": [],
        "depths": [2, 2],
        "seeds": 0,
        "schemes": "mup",
        "axes": 3,
        "name": 1,
    },
    "axes": SOUND
    | {"axes": {"lr": {"log2": [3, 1]}, "momentun": [0.1], "model_options.kk": [1], "steps": []}},
    "filled in": SOUND | {"run": {"width": 3, "seed": 1, "scheme": "mup"}},
    "cells": SOUND | {"axes": {"lr": [0.1, -1]}, "run": {"steps": -5, "optimizer": "adamm"}},
    "sizes": SOUND | {"sizes": "crss", "centre": [1, 2], "fleet": 0, "budget": {"retries": -1, "minutes": 3}},
    "not used": SOUND | {"axes": {"lr": [0.1], "nesterov": [True]}, "run": {"optimizer": "adam"}},
    "too many": SOUND | {"seeds": 10**6, "axes": {"lr": {"linear": [1, 100], "step": 1}}},
    "schemes": SOUND | {"schemes": ["mup", "mup", "depthmup"]},
    "no file": SOUND | {"run": {"model": "nowhere.py:build"}},
}
EXPLAIN = ("--width", "64", "--depth", "8", "--base-width", "32", "--base-depth", "2")
PUBLISHED = ("--width", "128", "--depth", "4", "--base-width", "64", "--base-depth", "2")
COMMANDS = (
    "demo",
    "explain",
    "check",
    "train",
    "new",
    "sweep",
    "status",
    "retry",
    "transfer",
    "report",
    "limit",
    "doctor",
    "version",
)


@part
def commands() -> Any:
    """What the commands print: explain, check, train, new, status, help, and what they say to bad input."""
    out: dict[str, Any] = {}
    with folder() as place:
        for name in ("", *COMMANDS):
            out[f"{name} --help".strip()] = {"help": command(*([name] if name else []), "--help")}
        out["version"] = command("version") | {"out": ""}
        out["explain"] = explained()
        out["check"] = checked()
        out["train"] = {name: trained(name, table) for name, table in TRAINED.items()}
        out["new"] = [
            command("new", "new.toml"),
            Path("new.toml").read_text(),
            command("new", "new.toml"),
            command("new", "no/new.toml"),
        ]
        for name, table in BROKEN_RUNS.items():
            out[f"broken run: {name}"] = command("train", write_toml("run.toml", table))
        for name, table in BROKEN_SWEEPS.items():
            out[f"broken sweep: {name}"] = command("sweep", write_toml("broken.toml", table)) | {
                "left": (place / "broken.db").exists()
            }
        (place / "syntax.toml").write_text("base = [")
        (place / "text.db").write_text("this is no store")
        for argv in (
            *(
                ("train", "syntax.toml"),
                ("sweep", "syntax.toml"),
                ("train", "nowhere.toml"),
                ("sweep", "nowhere.toml"),
            ),
            *(
                ("status", "nowhere.db"),
                ("status", "text.db"),
                ("transfer", "nowhere.db"),
                ("transfer", "text.db"),
                ("report", "nowhere.db"),
            ),
            *(
                ("retry", "nowhere.db"),
                ("nonsense",),
                ("explain", "--widht", "3"),
                ("sweep", "new.toml", "--workers", "0"),
            ),
            *(("train", "new.toml"), ("sweep", "new.toml", "--store", "no/folder.db")),
        ):
            out[" ".join(argv)] = command(*argv)
    return out


def explained() -> dict[str, Any]:
    out = {
        "text": command("explain", "mine.py:build", *EXPLAIN),
        "json": with_json(command("explain", "mine.py:build", *EXPLAIN, "--json")),
    }
    for scheme, optimizer in (("mup", "SGD"), ("completep", "Muon"), ("sp", "Adam"), ("depth-mup", "RAdam")):
        out[f"{scheme} {optimizer}"] = command(
            "explain", "mine.py:build", *EXPLAIN, "--scheme", scheme, "--optimizer", optimizer
        )
    out["inferred"] = command("explain", "alone.py:flat", *EXPLAIN)
    out["bad example"] = command("explain", "mine.py:build", *EXPLAIN, "--example", "mine.py:nothing")
    out["by data"] = command("explain", "mine.py:build", *EXPLAIN, "--data", "mine.py:data")
    for name in ("gpt2", "llama", "t5", "vit"):
        out[f"hf {name}"] = command("explain", "--hf", name, *PUBLISHED)
    wrong = (
        ["nowhere.py:build"],
        ["--hf", "gpt22"],
        ["--hf", "resnet"],
        [],
        ["no_colon"],
        ["not_a_module_x:build"],
        ["mine.py:nothing"],
    )
    for argv in wrong:
        out[" ".join(["bad", *argv])] = command("explain", *argv, *EXPLAIN)
    out["bad numbers"] = command(
        "explain", "math:sqrt", *EXPLAIN[2:], "--width", "0", "--optimizer", "Foo", "--scheme", "mu"
    )
    return out


def checked() -> dict[str, Any]:
    base = ("--base-width", "32", "--base-depth", "2")
    sizes = (*base, "--widths", "32", "64", "128", "--depths", "2", "4", "8", "--seeds", "2", "--steps", "3")
    return {
        "text": command("check", "mine.py:build", *sizes),
        "mup": command(
            "check", "mine.py:build", *sizes, "--scheme", "mup", "--optimizer", "SGD", "--lr", "0.1"
        ),
        "json": with_json(command("check", "mine.py:build", *sizes, "--json")),
        "one size": command("check", "mine.py:build", *base, "--widths", "32", "--depths", "2"),
        "no data": command("check", "letters.py:data", *sizes),
        "bad": command(
            "check", "mine.py:build", *sizes, "--lr", "-1", "--optimizer", "Foo", "--scheme", "mu"
        ),
    }


def trained(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """One run: its summary, and its result with all curves."""
    path = write_toml(f"{name}.toml", table)
    ran = command("train", path, "--out", f"{name}.json")
    result = Path(f"{name}.json")
    short = with_json(command("train", path, "--json"))
    return {
        **ran,
        "result": timeless(json.loads(result.read_text())) if result.exists() else None,
        "row": short,
    }


# -- compare -------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
MISSING = "<missing>"


def differences(a: Any, b: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, Any, Any]]:
    """(kind, path, a, b) of each leaf that differs."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            yield from differences(a.get(key, MISSING), b.get(key, MISSING), (*path, key))
    elif isinstance(a, list) and isinstance(b, list):
        for i in range(max(len(a), len(b))):
            yield from differences(*(x[i] if i < len(x) else MISSING for x in (a, b)), (*path, str(i)))
    elif type(a) is not type(b) or (a != b and not (a != a and b != b)):
        yield kind_of(a, b, path), "/".join(path), a, b


def kind_of(a: Any, b: Any, path: tuple[str, ...]) -> str:
    if (
        isinstance(a, int | float)
        and isinstance(b, int | float)
        and not isinstance(a, bool)
        and not isinstance(b, bool)
    ):
        return "number"
    if isinstance(a, str) and isinstance(b, str) and PROSE & set(path) and MISSING not in (a, b):
        return "words" if NUMBER.findall(a) == NUMBER.findall(b) else "numbers in words"
    return "value"


def apart(a: Any, b: Any) -> float:
    """Relative difference of two numbers."""
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf


def excerpt(a: Any, b: Any, width: int = 160) -> tuple[str, str]:
    """Both, from a little before the place where they begin to differ."""
    x, y = repr(a), repr(b)
    same = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    begin = max(0, same - 40)
    return tuple(
        ("..." if begin else "") + t[begin : begin + width] + ("..." if len(t) > begin + width else "")
        for t in (x, y)
    )  # type: ignore[return-value]


def compare(one: Path, other: Path, words_may_differ: bool, most: int | None) -> int:
    names = sorted({p.name for where in (one, other) for p in where.glob("*.json")})
    if not names:
        print(f"nothing to compare: no *.json in {one} and {other}")
        return 1
    failed = False
    for name in names:
        if not (one / name).exists() or not (other / name).exists():
            print(f"{name}: only in {one if (one / name).exists() else other}")
            failed = True
            continue
        a, b = (json.loads((where / name).read_text()) for where in (one, other))
        found = list(differences(a, b))
        counts = Counter(kind for kind, *_ in found)
        shown = [f for f in found if not (words_may_differ and f[0] == "words")]
        failed |= bool(shown)
        for kind, path, x, y in shown[:most]:
            said = excerpt(x, y)
            relative = f"  (relative {apart(x, y):.2g})" if kind == "number" else ""
            print(f"{name[:-5]}/{path}: {kind}{relative}\n    a: {said[0]}\n    b: {said[1]}")
        if most is not None and len(shown) > most:
            print(f"... and {len(shown) - most} more in {name}")
        largest = max((apart(x, y) for kind, _, x, y in found if kind == "number"), default=0.0)
        told = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no difference"
        print(
            f"{name}: {told}"
            + (f"; largest relative difference {largest:.2g}" if largest else "")
            + f" ({leaves(a)} leaves)"
        )
    print("DIFFERENT" if failed else "EQUAL")
    return int(failed)


def leaves(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inside is None else sum(map(leaves, inside))


def write(out: Path, only: list[str]) -> int:
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}. Parts: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    enter_tree()
    for name in only or PARTS:
        begun = time.monotonic()
        found = plain(PARTS[name]())
        (out / f"{name}.json").write_text(json.dumps(found))
        print(f"{name}: {leaves(found)} leaves, {time.monotonic() - begun:.1f} s", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write", help="freeze the tree in the current folder")
    writing.add_argument("out", type=Path)
    writing.add_argument("--only", nargs="+", default=[], metavar="PART", help=", ".join(PARTS))
    comparing = verbs.add_parser("compare", help="print what differs; exit code 1 if anything does")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument(
        "--words-may-differ", action="store_true", help="wording alone is counted, and is no failure"
    )
    comparing.add_argument(
        "--show", type=int, default=None, metavar="N", help="print at most N differences of each part"
    )
    given = parser.parse_args()
    if given.verb == "write":
        return write(given.out, given.only)
    return compare(given.one, given.other, given.words_may_differ, given.show)


if __name__ == "__main__":
    sys.exit(main())
