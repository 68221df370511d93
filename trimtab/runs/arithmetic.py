"""Within what two runs of one configuration have the same bits: the same torch, instruction sets, BLAS mode,
threads and device.

Across these they agree to rounding. A store keeps the class with every result and says when a resume crosses
it. MKL's products depend on where in memory a matrix lies unless MKL_CBWR is set before its first call;
`environment` does that.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

SETS = ("avx512f", "avx2", "avx", "sse4_1")  # what oneDNN and MKL tell apart


def environment(threads: int) -> dict[str, str]:
    """Environment of a process whose numbers must not depend on memory addresses; the user's own settings
    come first."""
    wanted = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return wanted | {"MKL_CBWR": os.environ.get("MKL_CBWR", "AUTO,STRICT")}


def arithmetic(threads: int, device: str = "cpu", mkl: str | None = None) -> str:
    """The class of rounding of this process, in words.

    >>> "torch" in arithmetic(1) and arithmetic(1) != arithmetic(2)
    True
    """
    import torch

    from trimtab.runs import devices

    name = "cpu" if device == "cpu" else devices.find(device).label
    chosen = [
        f"{key} {os.environ[key]}"
        for key in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
        if key in os.environ
    ]
    mode = mkl or os.environ.get("MKL_CBWR", "as it likes")
    blas = f"MKL {mode}" if torch.backends.mkl.is_available() else "another BLAS"
    parts = [
        f"torch {torch.__version__}",
        f"{name} {_processor()}",
        f"ATen {torch.backends.cpu.get_cpu_capability()}",
        *chosen,
        blas,
    ]
    return ", ".join([*parts, f"{threads} thread{'s' if threads != 1 else ''}"])


def _processor() -> str:
    """Maker and widest instruction set, which is what kernels are chosen by."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    facts = dict(
        line.split(":", 1) for line in text.split("\n\n")[0].replace("\t", "").splitlines() if ":" in line
    )
    flags = facts.get("flags", "").split()
    return " ".join(
        [platform.machine(), facts.get("vendor_id", "").strip(), next((s for s in SETS if s in flags), "")]
    ).strip()
