"""Errors that say the law, the values and the next step.

Every refusal in trimtab is a `TrimtabError`. The command line turns any of them
into a message without a traceback and exit code 2.
"""

from __future__ import annotations


class TrimtabError(Exception):
    """Base of all errors trimtab raises on purpose."""


class InputError(TrimtabError, ValueError):
    """An argument breaks a law that could be checked before any work."""


class StructureError(TrimtabError):
    """What the model computes could not be told, or not be proven by numbers."""


class LawError(StructureError):
    """The law the weights were drawn from could not be told from this draw; another draw may tell."""


class OptimizerError(TrimtabError):
    """The optimizer does not fold, is not known, or has lost its factors."""


def faults(title: str, problems: list[str]) -> InputError:
    """One error for all faults found, so that the user fixes them in one go.

    >>> print(faults("2 faults in sweep.toml", ["lr: must be > 0", "depth: must be >= 1"]))
    2 faults in sweep.toml
      - lr: must be > 0
      - depth: must be >= 1
    """
    return InputError("\n".join([title, *(f"  - {problem}" for problem in problems)]))
