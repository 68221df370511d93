"""Draw loss against learning rate, plain beside trimtab, one row per size axis: the README's picture.

trimtab demo && python examples/figure.py trimtab-demo/demo.db docs/demo.svg
"""

import math
import sys

import trimtab
from trimtab.commands.demo import NAMES

# Light to dark with size, safe for colour-blind readers.
COLOURS = ("#9ecae1", "#5ba3d0", "#2f7dbb", "#11539a", "#08203f")
WIDTH, HEIGHT, LEFT, TOP = 330, 220, 66, 46
ROW, COLUMN = TOP + HEIGHT + 84, LEFT + WIDTH + 20
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
STYLE = "text{font-family:system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.n{font-size:12px}"
STYLE += ".grid{stroke:#e6e6e6}.frame{fill:#fff;stroke:#bbb}.dot{stroke:#fff;stroke-width:1.5}"


def title(t, name):
    """What the panel shows, from the line through the fitted optima and the verdict."""
    first, last = (t.optima.iloc[i] for i in (0, -1))
    moved = t.drift.slope * math.log2(last[t.over] / first[t.over])
    words = {
        "transfers": "the best rate stays",
        "drifts": f"the best rate {'falls' if moved < 0 else 'rises'} {2 ** abs(moved):.1f}-fold",
        "cannot tell": "the runs cannot tell",
    }
    return f"{name}: {words[t.verdict]}"


def curves(t):
    """{size: [(log2 rate, mean loss over seeds)]} of the rates at which every seed trains."""
    fine = t.points[t.points["fine"]]
    by = fine.groupby(t.over)
    return {int(size): [(math.log2(r), y) for r, y in zip(c[t.hp], c["mean"], strict=True)] for size, c in by}


class Panel:
    """One frame: axes, a line per size, and a dot at each size's fitted optimum."""

    def __init__(self, rates, losses):
        self.low, self.high = rates
        self.least, self.most = losses

    def place(self, x, loss):
        span = math.log(self.most) - math.log(self.least)
        y = (math.log(self.most) - math.log(min(max(loss, self.least), self.most))) / span
        return LEFT + (x - self.low) / (self.high - self.low) * WIDTH, TOP + y * HEIGHT

    def frame(self, words):
        yield f'<text x="{LEFT}" y="30" class="t">{words}</text>'
        yield f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>'
        bottom = TOP + HEIGHT
        for k in range(math.ceil(self.low), math.floor(self.high) + 1):
            x, _ = self.place(k, self.most)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" class="grid"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 18}" class="n" text-anchor="middle">{k}</text>'
        for loss in (v for v in TICKS if self.least < v < self.most):
            _, y = self.place(self.low, loss)
            yield f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="n" text-anchor="end">{loss:g}</text>'
        middle = LEFT + WIDTH / 2
        yield f'<text x="{middle}" y="{bottom + 36}" class="n" text-anchor="middle">log2 learning rate</text>'
        turned = f'transform="translate(16,{TOP + HEIGHT / 2}) rotate(-90)"'
        yield f'<text {turned} class="n" text-anchor="middle">training loss</text>'

    def lines(self, t, colours):
        for size, points in curves(t).items():
            shown = [p for p in points if p[1] <= self.most]
            drawn = " ".join("{:.1f},{:.1f}".format(*self.place(*p)) for p in shown)
            yield f'<polyline points="{drawn}" fill="none" stroke="{colours[size]}" stroke-width="2.2"/>'
        for row in t.optima.to_dict("records"):
            if not math.isfinite(row["loss"]):
                continue
            (x, y), colour = self.place(row["log2"], row["loss"]), colours[row[t.over]]
            words = f"{t.over} {row[t.over]}: best rate {row['optimum']:.3g}, loss {row['loss']:.3g}"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{colour}" class="dot">'
            yield f"<title>{words}</title></circle>"


def row(store, over):
    """The plain network and trimtab's over one axis, and which colour is which size."""
    both = [trimtab.transfer(store, over=over, scheme=scheme) for scheme in NAMES]
    sizes = [int(s) for s in both[0].optima[over]]
    spread = max(1, len(sizes) - 1)
    colours = {s: COLOURS[round(i * (len(COLOURS) - 1) / spread)] for i, s in enumerate(sizes)}
    losses = [y for t in both for points in curves(t).values() for _, y in points]
    rates = [x for t in both for points in curves(t).values() for x, _ in points]
    panel = Panel((min(rates), max(rates)), (0.8 * min(losses), min(1.1 * max(losses), 40 * min(losses))))
    parts = []
    for i, (t, name) in enumerate(zip(both, NAMES.values(), strict=True)):
        body = "".join([*panel.frame(title(t, name)), *panel.lines(t, colours)])
        parts.append(f'<g transform="translate({i * COLUMN},0)">{body}</g>')
    for i, (size, colour) in enumerate(colours.items()):
        x, y = LEFT + 100 * i, TOP + HEIGHT + 62
        parts.append(f'<circle cx="{x + 5}" cy="{y}" r="5.5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 4}" class="n">{over} {size}</text>')
    return "".join(parts)


def main(store, path):
    rows = [row(store, over) for over in ("width", "depth")]
    body = "".join(f'<g transform="translate(0,{i * ROW})">{parts}</g>' for i, parts in enumerate(rows))
    wide, high = 2 * COLUMN, len(rows) * ROW
    label = "Training loss against learning rate over width and over depth, the plain network and trimtab"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" role="img"'
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{head} aria-label="{label}"><style>{STYLE}</style>')
        file.write(f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n')


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["trimtab-demo/demo.db", "docs/demo.svg"]))
