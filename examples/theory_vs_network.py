"""The infinite network beside finite ones: what does a wide, deep residual network do while it learns?

    python examples/theory_vs_network.py [-o page.html]

Four points, a ReLU network of infinite width with eight branches, and ensembles of finite networks trained by
the same gradient descent: the distance to the limit falls with the width.
"""

import argparse

import numpy as np

from trimtab import theory

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("-o", "--out", help="an HTML page with the figure")
parser.add_argument("--widths", type=int, nargs="*", default=[32, 64, 128, 256])
parser.add_argument("--seeds", type=int, default=32)
parser.add_argument("--samples", type=int, default=8000)
given = parser.parse_args()

draw = np.random.default_rng(0)
x = draw.standard_normal((4, 16))
x *= 4 / np.linalg.norm(x, axis=1, keepdims=True)  # |x|^2 = dimension
y = np.array([1.0, -1.0, 1.0, -1.0])
problem = dict(depth=8, activation="relu", lr=0.1, steps=30)

limit = theory.solve(x, y, **problem, samples=given.samples)
lazy = theory.lazy(x, depth=8, activation="relu")
print(f"loss of the infinite network: {limit.loss[0]:.4f} at the start, {limit.loss[-1]:.4f} after 30 steps")
moved = np.linalg.norm(limit.ntk[-1] - limit.ntk[0]) / np.linalg.norm(limit.ntk[0])
start = np.linalg.norm(limit.ntk[0] - lazy.ntk) / np.linalg.norm(lazy.ntk)
print(
    f"its tangent kernel starts {100 * start:.1f} % from the closed form and moves by {100 * moved:.0f} %\n"
)
curves = {"infinite": limit.loss}
for width in given.widths:
    finite = theory.simulate(x, y, width=width, seeds=given.seeds, **problem)
    distance = np.abs(finite.loss - limit.loss).max() / limit.loss[0]
    curves[f"width {width}"] = finite.loss
    print(f"width {width:4}: loss {finite.loss[-1]:.4f}, off by at most {100 * distance:.1f} % of the start")
if given.out:
    import plotly.graph_objects as go

    figure = go.Figure([go.Scatter(y=loss, name=name) for name, loss in curves.items()])
    figure.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log", template="simple_white")
    figure.write_html(given.out, include_plotlyjs=True)
    print(f"wrote {given.out}")
