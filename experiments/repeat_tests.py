"""Process, signal and fleet tests again and again on several instruction sets, beside load.

    python experiments/repeat_tests.py rounds.csv --rounds 100   # goes on where the file ends

A round runs the quick tests of FILES under the next of three sets, three at a time, then one of their slow
tests in turn, beside two busy processes (`--load 0`: none, where the machine is busy anyway). A line a round:
the set, the slow test, how many passed and failed, the load of the machine. What failed is kept beside the
file, as rounds.csv.N.log.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

from same_numbers import beside

ROOT = Path(__file__).parent.parent
FILES = (
    "tests/runs/test_fleet.py",
    "tests/sweeps/test_same_numbers.py",
    "tests/sweeps/test_crashes.py",
    "tests/commands/test_program.py",
)
SETS: dict[str, dict[str, str]] = {
    "as it is": {},
    "SSE4.1": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}
COLUMNS = ("round", "set", "slow_test", "passed", "failed", "load")


def pytest(*arguments: str, env: dict[str, str]) -> str:
    """What pytest says of these tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | env
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout


def slow_tests() -> list[str]:
    said = pytest("--collect-only", "-m", "slow and not full", *FILES, env={})
    return [line for line in said.splitlines() if "::" in line]


def count(said: str, word: str) -> int:
    """How many tests ended so, from pytest's last line.

    >>> count("2 failed, 34 passed in 79.25s", "passed")
    34
    """
    found = re.findall(rf"(\d+) {word}", said.strip().splitlines()[-1] if said.strip() else "")
    return int(found[0]) if found else 0


def one_round(number: int, slow: list[str], path: Path, load: int) -> dict[str, object]:
    name = list(SETS)[number % len(SETS)]
    # the sets and the slow tests have a common cycle unless one of them is shifted by a full turn
    chosen = slow[(number + number // (len(SETS) * len(slow))) % len(slow)]
    with beside(load):
        quick = pytest("-n", "3", "-m", "not slow and not full", *FILES, env=SETS[name])
        other = pytest("-m", "slow", chosen, env=SETS[name])
    failed = sum(count(said, word) for said in (quick, other) for word in ("failed", "error", "errors"))
    passed = count(quick, "passed") + count(other, "passed")
    if failed or not passed:
        path.with_name(f"{path.name}.{number}.log").write_text(quick + other)
    values = (number, name, chosen.split("::")[1], passed, failed, f"{os.getloadavg()[0]:.1f}")
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--load", type=int, default=2)
    given = parser.parse_args()
    path, slow = given.path, slow_tests()
    done = len(list(csv.DictReader(path.open()))) if path.exists() else 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for number in range(done, given.rounds):
            row = one_round(number, slow, path, given.load)
            writer.writerow(row)
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
