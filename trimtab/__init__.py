"""Hyperparameters that transfer across the width and the depth of neural networks.

The public names are imported when they are first used: `import trimtab` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab import testing as testing
    from trimtab import theory
    from trimtab.coordinates import check
    from trimtab.errors import InputError, OptimizerError, StructureError, TrimtabError
    from trimtab.parametrization import Parametrization
    from trimtab.planning import parametrize
    from trimtab.rules import Scheme
    from trimtab.verdicts import Check

__version__ = "0.1.0"

_HOME = {
    "parametrize": "planning",
    "check": "coordinates",
    "Check": "verdicts",
    "Parametrization": "parametrization",
    "Scheme": "rules",
    "TrimtabError": "errors",
    "InputError": "errors",
    "StructureError": "errors",
    "OptimizerError": "errors",
}

__all__ = ["Check", "InputError", "OptimizerError", "Parametrization", "Scheme", "StructureError", "TrimtabError", "check", "parametrize", "theory"]


def __getattr__(name: str) -> Any:
    if name in ("theory", "testing"):
        return importlib.import_module(f"trimtab.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"trimtab.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "theory", "testing"})
