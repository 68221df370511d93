"""How far networks of width N and depth L are from the infinite one: `trimtab limit`, its numbers kept as
limit*.json and table.csv.

    python experiments/finite_size/limit.py [NAME ...]        about fifteen minutes on one core for all three

`limit`: ReLU and the best rate. `limit-width`: tanh, whose errors are small enough that thousands of narrow
networks tell the exponents of the mean. `limit-depth`: the infinitely wide ReLU network over depth; the
finite ones that the command also trains are too few to say anything and are left out.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
ASKED = {
    "limit": "--width 32,64,128,256 --depth 4,8,16,inf --activation relu --lr 0.2 --steps 10 --points 4 "
    "--networks 128 --samples 4000 --rates 0.1,0.2,0.28,0.4,0.57,0.8,1.13",
    "limit-width": "--width 16,32,64,128 --depth 2,4,8 --activation tanh --lr 0.25 --steps 10 --points 2 "
    "--networks 8192 --samples 128000",
    "limit-depth": "--width 16 --depth 4,8,16,32,inf --activation relu --lr 0.05 --steps 10 --points 2 "
    "--networks 16 --samples 128000",
}


def measure(name: str, asked: str, out: Path = HERE) -> None:
    """One call of the command; its numbers without the curves."""
    done = subprocess.run(
        [sys.executable, "-m", "trimtab.cli", "limit", *asked.split(), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 3):
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout)
    table = pd.DataFrame(found.pop("table"))
    for key in ("curves", "kernels"):
        found.pop(key)
    if found.get("optimum"):
        found["optimum"].pop("curves")
    if name == "limit":
        table.round(6).to_csv(out / "table.csv", index=False)
    if name == "limit-depth":
        found["rates"] = [rate for rate in found["rates"] if rate["axis"] == "depth"]
        found["verdict"] = None  # it was of the finite networks too
    text = json.dumps({"asked": asked, **found}, indent=1)
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or ASKED:
        measure(name, ASKED[name])
