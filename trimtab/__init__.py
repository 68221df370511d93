"""Hyperparameters that transfer across the width and the depth of neural networks.

The public names are imported when they are first used: `import trimtab` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab import testing as testing
    from trimtab import theory
    from trimtab import trainers as trainers
    from trimtab.coordinates.checks import check
    from trimtab.coordinates.verdicts import Check
    from trimtab.errors import InputError, OptimizerError, StructureError, TrimtabError
    from trimtab.optima.transfers import Transfer, transfer
    from trimtab.parametrization.horizons.decay import Decay
    from trimtab.parametrization.horizons.horizon import Horizon
    from trimtab.parametrization.mup_projects import from_mup
    from trimtab.parametrization.planning import parametrize
    from trimtab.parametrization.result import Parametrization
    from trimtab.parametrization.rules import Scheme
    from trimtab.refinement.sweeping import sweep
    from trimtab.reporting.page import report
    from trimtab.tuning.result import Tuned
    from trimtab.tuning.tuner import tune

__version__ = "0.1.0"

_HOME = {
    "parametrize": "parametrization.planning",
    "from_mup": "parametrization.mup_projects",
    "check": "coordinates.checks",
    "Check": "coordinates.verdicts",
    "Parametrization": "parametrization.result",
    "Horizon": "parametrization.horizons.horizon",
    "Decay": "parametrization.horizons.decay",
    "Scheme": "parametrization.rules",
    "sweep": "refinement.sweeping",
    "transfer": "optima.transfers",
    "Transfer": "optima.transfers",
    "report": "reporting.page",
    "tune": "tuning.tuner",
    "Tuned": "tuning.result",
    "TrimtabError": "errors",
    "InputError": "errors",
    "StructureError": "errors",
    "OptimizerError": "errors",
}

__all__ = [
    "Check",
    "Decay",
    "Horizon",
    "InputError",
    "OptimizerError",
    "Parametrization",
    "Scheme",
    "StructureError",
    "Transfer",
    "TrimtabError",
    "Tuned",
    "check",
    "from_mup",
    "parametrize",
    "report",
    "sweep",
    "theory",
    "transfer",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in ("theory", "testing", "trainers"):
        return importlib.import_module(f"trimtab.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"trimtab.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "theory", "testing", "trainers"})
