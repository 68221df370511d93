"""Draw the layers of the package from the import contract in pyproject.toml.

    python experiments/layers.py        writes docs/layers.svg

A package imports only what lies below it (`lint-imports` holds it to that). Packages side by side do not
import each other, but for those joined by a colon in the contract.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "layers.svg"
CONTRACT = "Data flows one way"
IDEAS = {
    "cli": "the command line",
    "commands": "one file per command: its options and what it does",
    "testing": "for users' own tests",
    "trainers": "guards of trainers' optimizers",
    "reporting": "the page",
    "limits": "finite runs against theory",
    "tuning": "tune small, train big",
    "refinement": "adaptive sweeps",
    "optima": "best rates, drift, verdict",
    "sweeps": "many runs that lose nothing",
    "coordinates": "the coordinate check",
    "runs": "one run, alone or in a fleet",
    "models": "reference models",
    "data": "batches by (seed, step)",
    "parametrization": "what each parameter gets",
    "structure": "what a model computes",
    "theory": "the infinite network",
    "files": "where files are found and written",
    "torch_internals": "private parts of torch, each with its reason",
    "errors": "faults as data",
}
WIDTH, HEIGHT, GAP = 760, 46, 8


def layers() -> list[list[str]]:
    """The packages by layer, the top first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [c["layers"] for c in contracts if c["name"] == CONTRACT]
    return [
        [name.strip().removeprefix("trimtab.") for name in layer.replace(":", "|").split("|")]
        for layer in found
    ]


def picture() -> str:
    """The layers as SVG, text and all."""
    rows = layers()
    total = len(rows) * (HEIGHT + GAP) + GAP
    shapes = []
    for i, names in enumerate(rows):
        wide = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for k, name in enumerate(names):
            x, y = GAP + k * (wide + GAP), GAP + i * (HEIGHT + GAP)
            shapes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{HEIGHT}" rx="6" fill="#f2f6f5" '
                'stroke="#1f9e89"/>'
                f'<text x="{x + wide / 2:.0f}" y="{y + 19}" text-anchor="middle" '
                f'font-weight="600">{name}</text>'
                f'<text x="{x + wide / 2:.0f}" y="{y + 36}" text-anchor="middle" font-size="12" fill="#555">'
                f"{html.escape(IDEAS[name])}</text>"
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" '
        f'height="{total}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="The layers of the '
        "package: each "
        'imports only what lies below it">\n'
        f'<rect width="{WIDTH}" height="{total}" fill="#fff"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
