"""Do published families move alike at every size? AdamW 1e-3, three seeds, steps 1 to 5, 4x width and 8x
depth.

    python experiments/families_flat.py      all six: over width from a base 128 wide, over depth from one 64
                                             wide, 2 blocks
    python experiments/families_flat.py --as-published llama  with the base as its config draws it
    python experiments/families_flat.py --first 10            other seeds
    python experiments/families_flat.py --base 64 gpt2        over width from another base

Prints the slope of log RMS change against log size, on a fixed batch, of the residual stream (input of the
final norm or pooling) and of the logits, under depth-mup, completep and sp. `tests/support/movement.py` has
the set-up, LOG.md what was seen.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from movement import BUILDS, DEPTHS, SEEDS, WIDTHS, slopes

AXES = [
    ("width", "depth-mup"),
    ("depth", "depth-mup"),
    ("depth", "completep"),
    ("width", "sp"),
    ("depth", "sp"),
]
PUBLISHED = {
    "llama": dict(embeddings=1.0),
    "qwen3": dict(embeddings=1.0),
    "gemma2": dict(gain=1.0, std=0.02),
    "resnet": dict(gain=1.0),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(BUILDS))
    parser.add_argument("--base", type=int, default=WIDTHS[0][0])
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--as-published", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + SEEDS)
    for name in given.names:
        choices = PUBLISHED.get(name, {}) if given.as_published else {}
        for axis, scheme in AXES:
            sizes = [(given.base * k, 2) for k in (1, 2, 4)] if axis == "width" else DEPTHS
            found = slopes(name, sizes, scheme, seeds, **choices)
            stream, logits = ([f"{v:+.2f}" for v in found[:, i].tolist()] for i in (0, 1))
            print(
                f"{name:7s} {axis} {scheme:10s} stream {' '.join(stream)}   logits {' '.join(logits)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
