"""Find a parametrization's parameters in a wrapped model: DDP, FSDP2, torch.compile, an EMA copy.

Wrappers add prefixes to names. All parameters must be found under *one* prefix: from the end, a head and an
auxiliary head are called alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from trimtab.errors import InputError
from trimtab.parametrization.parameters import Row
from trimtab.torch_internals import WRAPPER_PREFIXES

PREFIXES = ("module.", *WRAPPER_PREFIXES)


def parameters_inside(
    model: nn.Module, rows: Mapping[str, Row], aliases: Mapping[str, str], known: Iterable[nn.Module]
) -> dict[str, nn.Parameter]:
    """{row's name: parameter}, in the order of the rows.

    Args:
        aliases: second names of tied parameters.
        known: models met before; where a wrapper holds several copies, the one that is theirs is meant.

    Raises:
        InputError: a parameter is missing, has another shape, or several copies fit.
    """
    given = dict(model.named_parameters(remove_duplicate=False))
    plain = {strip(name): name for name in given} | {name: name for name in given}
    also: dict[str, list[str]] = {name: [name] for name in rows}
    for alias, name in aliases.items():
        also[name].append(alias)
    first = next(iter(rows), "")
    starts = (p[: -len(n)] for n in also.get(first, []) for p in plain if p.endswith("." + n))
    matches: dict[str, dict[str, nn.Parameter]] = {}
    for prefix in dict.fromkeys(["", *starts]):
        named = {
            name: next((plain[prefix + n] for n in also[name] if prefix + n in plain), None) for name in rows
        }
        matches[prefix] = {name: given[n] for name, n in named.items() if n is not None}
    whole = {prefix: m for prefix, m in matches.items() if len(m) == len(rows)}
    if not whole:
        most = max(matches.values(), key=len)
        missing = [name for name in rows if name not in most]
        raise InputError(
            "the model given must be the one parametrized, or a wrapper of it: "
            f"{len(missing)} of {len(rows)} parameters are not in {type(model).__name__}, "
            f"the first is {missing[0]}."
        )
    found = _the_one(whole, known, type(model).__name__)
    for name, q in found.items():
        if tuple(q.shape) != rows[name].shape:
            raise InputError(
                f"the model given must have the size that was parametrized: {name} is {tuple(q.shape)} there "
                f"and {rows[name].shape} here. Parametrize that model against its base."
            )
    return found


def _the_one(
    whole: Mapping[str, dict[str, nn.Parameter]], known: Iterable[nn.Module], kind: str
) -> dict[str, nn.Parameter]:
    """Of the places where all parameters are found, the one that is meant."""
    met = {id(p) for inner in known for p in inner.parameters()}
    own = [m for m in whole.values() if all(id(p) in met for p in m.values())]
    different = {tuple(id(p) for p in m.values()): m for m in own or whole.values()}
    if len(different) > 1:
        inside = [prefix.rstrip(".") or "itself" for prefix in whole]
        raise InputError(
            f"which of the copies in {kind} is meant is ambiguous: {', '.join(inside)}. Pass that one as "
            "model=."
        )
    return next(iter(different.values()))


def strip(name: str) -> str:
    """A wrapped parameter's own name.

    >>> strip("_orig_mod.module.layers.0._checkpoint_wrapped_module.weight")
    'layers.0.weight'
    """
    for prefix in PREFIXES:
        name = name.replace("." + prefix, ".")
        while name.startswith(prefix):
            name = name[len(prefix) :]
    return name
