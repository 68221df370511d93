"""The finite twin against plain torch: autograd, torch.optim.SGD, Jacobians."""

import math

import numpy as np
import pytest
import torch

from trimtab.errors import InputError
from trimtab.theory import lazy, simulate
from trimtab.theory.finite import Networks, init_fluctuation
from trimtab.theory.problem import problem

PHI = {"tanh": torch.tanh, "relu": torch.relu, "erf": torch.erf}
T = 12


class Plain(torch.nn.Module):
    """The network of docs/theory.md, equation (1), the ordinary way, started at the twin's weights."""

    def __init__(
        self, x, y, *, width, seed, depth, activation, gamma0=1.0, alpha=0.5, beta=1.0, loss="mse", **_
    ):
        super().__init__()
        task = problem(x, y, depth=depth, activation=activation, lr=1.0, steps=1, loss=loss)
        start = Networks(task, width, [seed], torch.float64)
        self.first, self.readout = (torch.nn.Parameter(p[0].clone()) for p in (start.first, start.readout))
        self.hidden = torch.nn.ParameterList(p.clone() for p in start.hidden[0])
        self.phi, self.branch, self.scale = PHI[activation], beta * depth**-alpha, gamma0 * width

    def forward(self, x):
        width = len(self.first)
        h = x @ self.first.T / math.sqrt(x.shape[1])
        for weight in self.hidden:
            h = h + self.branch * width**-0.5 * self.phi(h) @ weight.T
        return self.phi(h) @ self.readout.T / self.scale


def train(
    x, y, *, lr, steps, gamma0=1.0, alpha=0.5, loss="mse", momentum=0.0, weight_decay=0.0, batches=None, **kw
):
    net = Plain(x, y, gamma0=gamma0, alpha=alpha, loss=loss, **kw)
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    square, rho = gamma0**2 * kw["width"], kw["depth"] ** (2 * alpha - 1)
    groups = [{"params": [net.first, net.readout], "rho": 1.0}, {"params": list(net.hidden), "rho": rho}]
    for group in groups:
        group["weight_decay"] = weight_decay / square / group["rho"]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum)
    zero = net(x).detach()
    outputs = []
    for rate in [*np.broadcast_to(lr, (steps,)).tolist(), None]:
        f = net(x) - zero
        outputs.append(f.detach())
        if rate is None:
            break
        chosen = slice(None) if batches is None else batches[len(outputs) - 1]
        f, target = f[chosen], y[chosen]
        value = {
            "mse": lambda f=f, target=target: ((f - target.reshape(f.shape)) ** 2).sum(1).mean() / 2,
            "logistic": lambda f=f, target=target: torch.nn.functional.soft_margin_loss(f[:, 0], target),
            "softmax": lambda f=f, target=target: torch.nn.functional.cross_entropy(f, target.long()),
        }[loss]()
        for group in optimizer.param_groups:
            group["lr"] = rate * square * group["rho"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return torch.stack(outputs).numpy(), net


CASES = {
    "plain": {},
    "relu, rich": {"activation": "relu", "gamma0": 2.0},
    "everything linear": {
        "momentum": 0.8, "weight_decay": 0.1, "alpha": 0.9, "beta": 1.3, "gamma0": 2.0,
        "lr": np.linspace(0.1, 0.3, T), "batches": [[t % 3, (t + 1) % 3] for t in range(T)],
    },
    "repeated point": {"batches": [[0, 0, 1]] * T},
    "logistic": {"loss": "logistic", "y": [1.0, -1.0, 1.0]},
    "softmax": {"loss": "softmax", "y": [0, 1, 2], "activation": "relu"},
    "two outputs": {"y": [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]], "activation": "erf", "momentum": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_trains_as_torch_does(name, x, y):
    case = {"y": y, "depth": 3, "activation": "tanh", "lr": 0.3, "steps": T, "width": 24} | CASES[name]
    target = case.pop("y")
    expected, _ = train(x, target, seed=3, **case)
    found = simulate(x, target, seeds=[3], **case)
    np.testing.assert_allclose(found.f.reshape(expected.shape), expected, atol=1e-12)


def jacobian_kernel(net, x, square, rho):
    rows = []
    for f in net(x)[:, 0]:
        rows.append(torch.autograd.grad(f, list(net.parameters()), retain_graph=True))
    weights = [square * (rho if i >= 2 else 1.0) for i in range(len(rows[0]))]
    return torch.stack(
        [
            torch.stack([sum(w * (p * q).sum() for w, p, q in zip(weights, a, b, strict=True)) for b in rows])
            for a in rows
        ]
    )


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_ntk_is_the_jacobian_gram_before_and_after_training(x, y, alpha):
    case = {
        "depth": 3,
        "activation": "tanh",
        "lr": 0.3,
        "steps": T,
        "width": 24,
        "alpha": alpha,
        "gamma0": 1.7,
    }
    found = simulate(x, y, seeds=[5], **case)
    for time, net in ((0, Plain(x, y, seed=5, **case)), (T, train(x, y, seed=5, **case)[1])):
        expected = (
            jacobian_kernel(net, torch.as_tensor(x), 1.7**2 * 24, 3 ** (2 * alpha - 1)).detach().numpy()
        )
        np.testing.assert_allclose(found.ntk[time], expected, rtol=1e-10)


def test_test_points_are_only_looked_at(x, y):
    case = {"depth": 2, "activation": "tanh", "lr": 0.3, "steps": 6, "width": 30}
    alone, watched = simulate(x, y, seeds=3, **case), simulate(x, y, seeds=3, x_test=x[1:], **case)
    np.testing.assert_allclose(watched.f, alone.f, atol=1e-13)
    np.testing.assert_allclose(watched.f_test, alone.f[:, 1:], atol=1e-13)


def test_batches_of_seeds_and_float32_change_nothing(x, y):
    case = {"depth": 2, "activation": "relu", "lr": 0.3, "steps": 6, "width": 40}
    together, single = (
        simulate(x, y, seeds=4, **case),
        [simulate(x, y, seeds=[s], **case).f for s in range(4)],
    )
    np.testing.assert_allclose(together.f, np.mean(single, 0), atol=1e-13)
    np.testing.assert_allclose(together.stderr.f, np.std(single, 0, ddof=1) / 2, atol=1e-13)
    assert np.asarray(together.stderr).shape == together.f.shape


def test_starts_at_the_lazy_kernel(x, y):
    """NTK at init, L = 16, within the ensemble's noise of the infinite network (plus 2/N for the O(1/N)
    mean)."""
    found = simulate(x, y, width=300, seeds=30, depth=16, activation="relu", lr=0.1, steps=1)
    theory = lazy(x, depth=16, activation="relu")
    error = np.hypot(4 * found.stderr.ntk[0], 2 / 300 * np.abs(theory.ntk))
    assert (np.abs(found.ntk[0] - theory.ntk) < error).all()


@pytest.mark.parametrize("depth", [1, 4])
def test_fluctuations_at_init_have_their_closed_form(depth):
    """N Var(H^{L+1}) / E[H]^2 = 2 + (4 + 2/L) / (1 + 1/L)^2 if linear (docs/theory.md, equation (45))."""
    seeds = 1200
    found = simulate(
        np.ones((1, 3)), [0.0], width=100, seeds=seeds, depth=depth, activation="linear", lr=1e-9, steps=1
    )
    expected = init_fluctuation(depth)
    ratio = found.variance.phi[-1, 0, 0, 0, 0] / (1 + 1 / depth) ** (2 * depth)
    # a variance of n near-normal draws has relative error sqrt(2/n); its own mean is right to O(1/N)
    assert ratio == pytest.approx(expected, rel=4 * math.sqrt(2 / seeds) + 5 / 100)


def test_divergence_is_a_result(x, y):
    found = simulate(x, y, width=20, seeds=2, depth=2, activation="linear", lr=50.0, steps=30)
    assert (
        found.diverged is not None
        and np.isinf(found.loss[found.diverged :]).all()
        and np.isfinite(found.loss[: found.diverged]).all()
    )


def test_bad_input():
    with pytest.raises(InputError, match="width.*\n.*seeds.*\n.*depth.*\n.*responses"):
        simulate(
            [[1.0]],
            [1.0],
            width=0,
            seeds=0,
            depth=math.inf,
            activation="tanh",
            lr=0.1,
            steps=2,
            responses=False,
        )
