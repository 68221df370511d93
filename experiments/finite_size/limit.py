"""How far networks of width N and depth L are from the infinite one: `trimtab limit`, its numbers kept as
limit.json and table.csv.

python experiments/finite_size/limit.py        about ten minutes on one core
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
ASKED = "--width 32,64,128,256 --depth 4,8,16,inf --activation relu --lr 0.2 --steps 10 --points 4 --networks 128 --samples 4000 --rates 0.1,0.2,0.28,0.4,0.57,0.8,1.13"  # noqa: E501


def main():
    out = subprocess.run(
        [sys.executable, "-m", "trimtab.cli", "limit", *ASKED.split(), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if out.returncode not in (0, 1, 3):
        raise SystemExit(out.stderr)
    found = json.loads(out.stdout)
    table = pd.DataFrame(found.pop("table"))
    for key in ("curves", "kernels"):
        found.pop(key)
    found["optimum"].pop("curves")
    (HERE / "limit.json").write_text(json.dumps({"asked": ASKED, **found}, indent=1) + "\n", encoding="utf-8")
    table.round(6).to_csv(HERE / "table.csv", index=False)


if __name__ == "__main__":
    main()
