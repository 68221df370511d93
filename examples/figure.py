"""Draw loss against learning rate by depth, mup and depth-mup side by side, from a sweep's store: the README's picture.

trimtab demo && python examples/figure.py trimtab-demo/demo.db docs/depth.svg
"""

import math
import sys

from trimtab.sweeps.store import Store

COLOURS = ("#b7d4ea", "#7fb5da", "#4292c6", "#1f6fb0", "#08306b")  # light to dark with depth, safe for colour-blind readers
WIDTH, HEIGHT, LEFT, TOP = 330, 230, 56, 46
TITLES = {"mup": "width only: the best rate falls", "depth-mup": "with depth scaling: it stays"}
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 1.5, 1.75, 2, 2.25, 2.5, 5, 10)


def curves(runs, scheme):
    """{depth: [(log2 rate, mean loss over seeds)]} of the rates at which every seed trains, at the base's width."""
    mine = runs[(runs.scheme == scheme) & (runs.width == runs.base_width)]
    out = {}
    for depth, cells in mine.groupby("depth"):
        stable = cells.groupby("lr").filter(lambda g: (g.state == "done").all() and not g.collapsed.any())
        out[int(depth)] = [(math.log2(rate), loss) for rate, loss in stable.groupby("lr").train_loss.mean().items()]
    return out


def panel(title, lines, colours, low, high, least, most, shift):
    def place(x, loss):
        y = (math.log(most) - math.log(min(max(loss, least), most))) / (math.log(most) - math.log(least))
        return LEFT + (x - low) / (high - low) * WIDTH, TOP + y * HEIGHT

    parts = [f'<g transform="translate({shift},0)"><text x="{LEFT}" y="26" class="t">{title}</text>']
    parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>')
    for k in range(math.ceil(low), math.floor(high) + 1):
        x, _ = place(k, most)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" class="n" text-anchor="middle">{k}</text>')
    for loss in (t for t in TICKS if least < t < most):
        _, y = place(low, loss)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="n" text-anchor="end">{loss:g}</text>')
    for depth, points in lines.items():
        if points:
            drawn = " ".join("{:.1f},{:.1f}".format(*place(*p)) for p in points)
            parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colours[depth]}" stroke-width="2.2"/>')
            x, loss = min(points, key=lambda p: p[1])
            cx, cy = place(x, loss)
            words = f"<title>depth {depth}: best rate 2^{x:g}, loss {loss:.3f}</title>"
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="5.5" fill="{colours[depth]}" stroke="#fff" stroke-width="1.5">{words}</circle>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 38}" class="n" text-anchor="middle">log2 learning rate</text></g>')
    return "".join(parts)


def main(store, path):
    runs = Store(store).to_pandas()
    lines = {scheme: curves(runs, scheme) for scheme in TITLES}
    depths = sorted({d for by in lines.values() for d in by})
    colours = {d: COLOURS[round(i * (len(COLOURS) - 1) / max(1, len(depths) - 1))] for i, d in enumerate(depths)}
    losses = [loss for by in lines.values() for points in by.values() for _, loss in points]
    least = 0.8 * min(losses) if min(losses) < 0.5 else 0.985 * min(losses)
    most = min(max(losses) * 1.02, 40 * least)
    low, high = math.log2(runs.lr.min()), math.log2(runs.lr.max())
    body = "".join(panel(TITLES[s], by, colours, low, high, least, most, i * (LEFT + WIDTH + 20)) for i, (s, by) in enumerate(lines.items()))
    for i, (depth, colour) in enumerate(colours.items()):
        x, y = LEFT + 90 * i, TOP + HEIGHT + 62
        body += f'<circle cx="{x}" cy="{y}" r="5.5" fill="{colour}"/><text x="{x + 12}" y="{y + 4}" class="n">depth {depth}</text>'
    style = "text{font-family:system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.n{font-size:12px}.grid{stroke:#e6e6e6}.frame{fill:#fff;stroke:#bbb}"
    size = 2 * (LEFT + WIDTH) + 40, TOP + HEIGHT + 84
    label = f"Training loss against learning rate for depths {depths[0]} to {depths[-1]}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-label="{label}">'
    with open(path, "w") as file:
        file.write(f'{head}<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n')


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["trimtab-demo/demo.db", "docs/depth.svg"]))
