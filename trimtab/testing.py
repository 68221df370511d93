"""For your own tests: fail the build when hyperparameters stop to transfer.

def test_it_transfers():
    trimtab.testing.assert_transfers(build, [64, 128, 256], [2, 4, 8], base=(64, 2), data=data)
"""

from __future__ import annotations

from typing import Any

from trimtab.coordinates.checks import check
from trimtab.coordinates.verdicts import Check


def assert_transfers(
    build: Any, widths: Any, depths: Any, *, inconclusive: bool = False, **options: Any
) -> Check:
    """Raise AssertionError, with the culprits in the message, unless the coordinate check passes.

    Args:
        build, widths, depths, options: as for `trimtab.check`.
        inconclusive: let a check pass that neither passes nor fails.

    Returns:
        the check.
    """
    __tracebackhide__ = True
    found = check(build, widths, depths, **options)
    if found.verdict == "FAIL" or (found.verdict == "INCONCLUSIVE" and not inconclusive):
        raise AssertionError(
            f"hyperparameters do not transfer\n{found}"
            if found.verdict == "FAIL"
            else f"whether hyperparameters transfer could not be told\n{found}"
        )
    return found
