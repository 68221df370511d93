"""All benchmarks, their results and their page.

    python benchmarks/run.py                 run all (make bench), keep the rows, write docs/benchmarks.md
    python benchmarks/run.py step theory     run these anew, keep the others' rows
    python benchmarks/run.py --page          only the page, from benchmarks/results.json

Each benchmark runs in a process of its own. benchmarks/results.json holds every ratio with the machine, the
date and the versions it was measured with; nothing on the page is typed by hand.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from records import Row, version

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE.parent / "docs" / "benchmarks.md"
TITLES = {
    "step": "A training step, and the plan",
    "planning": "Planning large models on the meta device",
    "fleet": "Many small runs at once",
    "sweep": "Sixty runs, by runner",
    "target": "Finding the target's learning rate",
    "theory": "The infinite network against ensembles of finite ones",
    "report": "The page of a sweep",
}
PACKAGES = ("torch", "numpy", "mup", "unit-scaling", "optuna", "ray", "transformers")
HEAD = """# Benchmarks

Written by `make bench` (`python benchmarks/run.py`) from `benchmarks/results.json`; nothing here is typed by
hand.

A ratio is the peer's cost over trimtab's, so above 1 trimtab is ahead. Both sides run in turns in one
script, so that load on the machine slows both: one process with one thread is counted in processor time,
several processes in wall time. The absolute numbers are medians on that machine. The
interval is for the median ratio: at least 95 % where there are six or more repetitions (n), the range of the
repetitions where there are fewer. *Equal*: the median is within 2 % of 1, or the interval contains 1 and is
within 10 % of it. *Cannot tell*: the interval contains 1 and is wider, or there are fewer than three
repetitions. *Not compared*: the peer does not do this, or did not run.
"""


def machine() -> dict[str, str]:
    """What decides timings, without the machine's name."""
    found = [
        line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")
    ]
    memory = [int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "processor": found[0] if found else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory[0] / 2**20:.0f} GB" if memory else "unknown",
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def measure(name: str, tiny: bool = False) -> dict[str, Any]:
    """One benchmark's rows with where and when."""
    stamp = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "machine": machine()}
    versions = {package: version(package) or "not installed" for package in PACKAGES}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(out), *["--tiny"] * tiny]
        subprocess.run(command, check=True)
        rows = json.loads(out.read_text())
    return {**stamp, "versions": {"python": platform.python_version(), **versions}, "rows": rows}


def read(kept: Mapping[str, Any]) -> Row:
    """A row as it was written."""
    spread = kept["spread"]
    return Row(**{**kept, "ratios": tuple(kept["ratios"]), "spread": tuple(spread) if spread else None})


def _lines_of(results: Mapping[str, Any]) -> str:
    """JSON with one line per row, so that a change of one is one line in a diff."""
    kept = []
    for name, result in results.items():
        rows = ",\n  ".join(json.dumps(row) for row in result["rows"])
        about = json.dumps({key: value for key, value in result.items() if key != "rows"})
        kept.append(f'{json.dumps(name)}: {about[:-1]}, "rows": [\n  {rows}\n]}}')
    return "{\n" + ",\n".join(kept) + "\n}\n"


def page(results: Mapping[str, Any]) -> str:
    """The page, and a summary of all verdicts first."""
    rows = [read(row) for name in TITLES for row in results.get(name, {"rows": []})["rows"]]
    counts = {kind: sum(row.verdict == kind for row in rows) for kind in VERDICTS}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    lines = [HEAD, f"**{len(rows)} rows: {said}.**", ""]
    for name, title in TITLES.items():
        if name in results:
            lines += [f"## {title}", "", _where(name, results[name]), "", *_table(results[name]["rows"]), ""]
    return "\n".join(lines).rstrip() + "\n"


VERDICTS = ("ahead", "equal", "behind", "cannot tell", "not compared")


def _where(name: str, result: Mapping[str, Any]) -> str:
    about, versions = result["machine"], result["versions"]
    named = ", ".join(f"{package} {number}" for package, number in versions.items())
    return (
        f"`python benchmarks/{name}.py`, {result['date']}: {about['processor']}, {about['cores']} cores, "
        f"{about['memory']}, {about['system']}, load at the start {about['load']}; {named}."
    )


def _table(rows: list[Mapping[str, Any]]) -> list[str]:
    lines = ["| work | peer | trimtab | peer | ratio | n | verdict | |", "|---|---|---|---|---|---|---|---|"]
    for row in map(read, rows):
        low, high = row.interval
        ratio = f"{row.ratio:.3g} ({low:.3g} to {high:.3g})" if row.ratios else "-"
        theirs = "-" if row.theirs is None else f"{row.theirs:.3g} {row.unit}"
        cells = (row.what, row.peer, f"{row.ours:.3g} {row.unit}", theirs, ratio, len(row.ratios) or "-")
        lines.append(f"| {' | '.join(map(str, cells))} | **{row.verdict}** | {_cell(row.why)} |")
    return lines


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    unknown = set(names) - set(TITLES)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [] if "--page" in sys.argv else names or TITLES:
        print(f"== {name}", flush=True)
        results[name] = measure(name)
        RESULTS.write_text(_lines_of(results))
    PAGE.write_text(page(results))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
