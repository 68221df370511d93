"""Draw docs/depth.svg, the README's picture, from the runs of the demo: loss against rate by depth, two panels.

trimtab demo && python examples/figure.py trimtab-demo/demo.db docs/depth.svg
"""

import math
import sys

from trimtab.sweeps.store import Store

DEPTHS = (3, 6, 12, 24, 48)
COLOURS = ("#b7d4ea", "#7fb5da", "#4292c6", "#1f6fb0", "#08306b")  # light to dark with depth, safe for colour-blind readers
WIDTH, HEIGHT, LEFT, TOP = 330, 230, 56, 46
LEAST, MOST = 0.015, 0.8
LOW, HIGH = math.log(LEAST), math.log(MOST)


def place(rate, loss):
    x = LEFT + (math.log2(rate) + 6) / 7.5 * WIDTH
    y = TOP + (HIGH - math.log(min(max(loss, LEAST), MOST))) / (HIGH - LOW) * HEIGHT
    return x, y


def panel(title, curves, shift):
    parts = [f'<g transform="translate({shift},0)"><text x="{LEFT}" y="26" class="t">{title}</text>']
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>')
    for k in range(-6, 2):
        x, _ = place(2.0**k, 0.1)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" class="grid"/><text x="{x:.1f}" y="{TOP + HEIGHT + 18}" class="n" text-anchor="middle">{k}</text>'
        )
    for loss in (0.02, 0.05, 0.1, 0.2, 0.5):
        _, y = place(1.0, loss)
        parts.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/><text x="{LEFT - 8}" y="{y + 4:.1f}" class="n" text-anchor="end">{loss:g}</text>'
        )
    for (layers, losses), colour in zip(curves.items(), COLOURS, strict=True):
        if not losses:
            continue
        points = [place(r, v) for r, v in losses]
        parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="{colour}" stroke-width="2.2"/>')
        rate, loss = min(losses, key=lambda p: p[1])
        x, y = place(rate, loss)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{colour}" stroke="#fff" stroke-width="1.5"><title>depth {layers}: best rate 2^{math.log2(rate):g}, loss {loss:.3f}</title></circle>'
        )
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 38}" class="n" text-anchor="middle">log2 learning rate</text></g>')
    return "".join(parts)


def main(store, path):
    runs = Store(store).to_pandas()
    shifts = {"mup": 0, "depth-mup": LEFT + WIDTH + 20}
    titles = {"mup": "width only: the best rate falls", "depth-mup": "with depth scaling: it stays"}
    body = ""
    for scheme, shift in shifts.items():
        curves = {}
        for depth in DEPTHS:
            mine = runs[(runs.scheme == scheme) & (runs.width == 32) & (runs.depth == depth)]
            stable = mine.groupby("lr").filter(lambda g: (g.state == "done").all() and not g.collapsed.any())
            curves[depth] = list(stable.groupby("lr").train_loss.mean().items())
        body += panel(titles[scheme], curves, shift)
    legend = "".join(
        f'<circle cx="{LEFT + 90 * i}" cy="{TOP + HEIGHT + 62}" r="5.5" fill="{c}"/><text x="{LEFT + 12 + 90 * i}" y="{TOP + HEIGHT + 66}" class="n">depth {d}</text>'
        for i, (d, c) in enumerate(zip(DEPTHS, COLOURS, strict=True))
    )
    style = "text{font-family:system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.n{font-size:12px}.grid{stroke:#e6e6e6}.frame{fill:#fff;stroke:#bbb}"
    size = 2 * (LEFT + WIDTH) + 40, TOP + HEIGHT + 84
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-label="Training loss against learning rate for depths 3 to 48"><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{body}{legend}</svg>\n'
        )


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["trimtab-demo/demo.db", "docs/depth.svg"]))
