"""A project on microsoft/mup moves in: its base shapes, read safely, as a parametrization (`from_mup`).

mup marks each dimension as a width (with the base's size) or as fixed, and keeps the readout's 1/m in the
forward of `MuReadout`. In trimtab's terms, with (init, u, s) of `rules` and a fold by m where the forward has
the 1/m (docs/theory.md, equation (6)):

    two widths     matrix m_in, m_out                 Adam lr 1/m_in          SGD lr m_out/m_in
    one width      (1, 1, 1/m), the readout too       Adam lr 1               SGD lr m
    none           (1, 1, 1)

So MuAdam's, MuAdamW's and MuSGD's rates and decoupled decay are these. What differs is said in `p.notes`: eps
follows the gradient here and stays in mup, and L2 inside Adam has another balance. A `.bsh` file is read by
the few lines below: no YAML library, no objects, nothing executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from trimtab.errors import InputError, faults
from trimtab.parametrization import rules
from trimtab.parametrization.parameters import Row
from trimtab.parametrization.result import Parametrization

Shapes = dict[str, tuple[int | None, ...]]  # None: the dimension is no width
NOTES = [
    "from mup: width alone. For depth, build the base as a model and call trimtab.parametrize(model, base).",
    "mup leaves eps as it is; here it follows the gradient's scale (p.factors has it). Equal while eps is "
    "far below the gradients.",
    "mup multiplies L2 inside Adam (MuAdam with weight_decay) by m; here it keeps its balance at the start. "
    "MuAdamW's decoupled decay is the same in both.",
    "the weights are taken as they are: mup's set_base_shapes or mup.init has rescaled them.",
]


def read_base_shapes(path: str | os.PathLike[str]) -> Shapes:
    """A base-shapes file of mup: {parameter: the base's dimensions, None for one that is no width}.

    Raises:
        InputError: with every line that is not of the format.
    """
    shapes: dict[str, list[int | None]] = {}
    problems, name = [], ""
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if key := re.fullmatch(r"(['\"]?)([\w.\-]+)\1:\s*(\[\])?", line):
            name = key[2]
            shapes[name] = []
        elif (item := re.fullmatch(r"\s*-\s+(null|~|\d{1,12})", line)) and name:
            shapes[name].append(int(item[1]) if item[1].isdigit() else None)
        else:
            problems.append(f"line {number} must be 'name:', '- null' or '- number': got {line[:60]!r}")
    if problems or not shapes:
        raise faults(
            f"{path} must be a base-shapes file as mup.make_base_shapes(savefile=...) writes it:",
            problems[:8] or ["it names no parameter"],
        )
    return {key: tuple(dims) for key, dims in shapes.items()}


def from_mup(model: nn.Module, base_shapes: Any = None) -> Parametrization:
    """The parametrization of a model that was set up with mup 1.0, for its weights as they are.

    Args:
        model: with its `MuReadout` modules, on the shapes it trains at.
        base_shapes: the `.bsh` file, {name: base's dimensions, None for one that is no width}, or a base
            model. Default: the `infshape` attributes that `mup.set_base_shapes` left on the parameters.

    Returns:
        a parametrization for `p.optimizer`, `p.check`, `p.clip_grad_norm_`, `p.export` and `p.to_json`. It
        does not initialise.

    Raises:
        InputError: names, shapes or kinds do not fit, with every fault.
    """
    shapes = _shapes(model, base_shapes)
    params = dict(model.named_parameters())
    problems = [f"{name} is in the model and has no base shape" for name in params if name not in shapes]
    problems += [f"{name} has a base shape and is not in the model" for name in shapes if name not in params]
    rows: dict[str, Row] = {}
    modules = dict(model.named_modules())
    for name, p in params.items():
        if name not in shapes:
            continue
        owner = modules[name.rpartition(".")[0]]
        row = _row(name, tuple(p.shape), shapes[name], owner)
        if isinstance(row, str):
            problems.append(row)
        else:
            rows[name] = row
    if problems:
        raise faults("from_mup(model, base_shapes):", problems[:12])
    given = dict(model.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in params.items()}
    ratios = [r.m_in if r.m_in != 1 else r.m_out for r in rows.values() if len(r.shape) > 1]
    grown = [m for m in ratios if m != 1]
    return Parametrization(
        rows=rows,
        branches=[],
        depth=1.0,
        scheme=rules.as_scheme("mup"),
        gamma0=1.0,
        width=max(set(grown), key=grown.count) if grown else 1.0,
        notes=list(NOTES),
        aliases={name: first[id(p)] for name, p in given.items() if name not in params},
        model=model,
    )


def _shapes(model: nn.Module, base: Any) -> Shapes:
    if base is None:
        marked = {name: getattr(p, "infshape", None) for name, p in model.named_parameters()}
        if any(x is None for x in marked.values()):
            raise InputError(
                "base shapes are needed: the parameters carry no infshape. Call mup.set_base_shapes first, "
                "or pass the .bsh file, a dict of shapes or the base model as base_shapes."
            )
        return {name: tuple(dim.base_dim for dim in x) for name, x in marked.items() if x is not None}
    if isinstance(base, str | os.PathLike):
        shapes = read_base_shapes(base)
    elif isinstance(base, nn.Module):
        here = {name: tuple(p.shape) for name, p in model.named_parameters()}
        there = {name: tuple(p.shape) for name, p in base.named_parameters()}
        shapes = {
            name: tuple(b if a != b else None for a, b in zip(here.get(name, dims), dims, strict=False))
            for name, dims in there.items()
        }
    elif isinstance(base, Mapping):
        shapes = {str(name): tuple(dims) for name, dims in base.items()}
    else:
        raise InputError(
            f"base_shapes must be a .bsh file, a dict of shapes or the base model: got {type(base).__name__}."
        )
    return {name.removeprefix("module."): dims for name, dims in shapes.items()}


def _row(name: str, shape: tuple[int, ...], base: tuple[int | None, ...], owner: nn.Module) -> Row | str:
    """The row of one parameter, or what is wrong with it."""
    if len(base) != len(shape):
        return f"{name} has {len(shape)} dimensions and {len(base)} in the base shapes"
    wide = [(i, shape[i] / b) for i, b in enumerate(base) if b is not None]
    if any(b is not None and b < 1 for b in base):
        return f"{name} must have a base of at least 1 in every dimension: got {base}"
    if len(wide) > 2:
        return f"{name} has {len(wide)} widths, mup's rules and these know at most two"
    readout = hasattr(owner, "output_mult") and hasattr(owner, "width_mult")  # MuReadout, MuSharedReadout
    linear = isinstance(owner, nn.Linear) and name.endswith("weight")
    if type(owner).__name__ == "Conv1D" and len(wide) == 2:
        return f"{name} is stored as (in, out), which mup reads as (out, in): use trimtab.parametrize"
    m_in = m_out = 1.0
    if len(wide) == 2:
        m_out, m_in = wide[0][1], wide[1][1]
        kind, role, scales = "matrix", "hidden", None
    elif not wide:
        kind, role, scales = "scalar", "scalar", rules.Scales()
    elif linear and wide[0][0] == 1 and not readout:
        return (
            f"{name} maps a width to a fixed size and is no MuReadout: use it, or call "
            "trimtab.parametrize(model, base), which takes plain layers"
        )
    else:
        m = wide[0][1]
        m_in, m_out = (m, 1.0) if readout else (1.0, m)
        kind = "matrix" if len(shape) > 1 else "elementwise"
        role = "readout" if readout else "input" if len(shape) > 1 else "elementwise"
        scales = rules.kind_scales("elementwise", 1.0, m)
    assert kind in ("matrix", "elementwise", "scalar")
    scales = scales or rules.kind_scales("matrix", m_in, m_out)
    return Row(
        name=name,
        role=role,
        place="outside",
        branch=None,
        stack=None,
        m_in=m_in,
        m_out=m_out,
        m_L=1.0,
        uses=(),
        init=scales.init,
        u=scales.u,
        s=scales.s,
        rescale=1.0,
        fold=m_in if role == "readout" else 1.0,
        shape=shape,
        base_shape=tuple(d if b is None else b for d, b in zip(shape, base, strict=True)),
        muon=role == "hidden" and len(shape) == 2,
    )
