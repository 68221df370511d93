"""Optimizers nobody here has seen: the law is measured, and holds on a real network 16 times as wide."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hidden_change import Net, X, ratio

import trimtab
from trimtab import OptimizerError
from trimtab.parametrization.optimizers.families import factors_for
from trimtab.parametrization.optimizers.lookup import family, law_of
from trimtab.parametrization.rules import kind_scales


class Toy(torch.optim.Optimizer):
    """lr times a direction that a subclass makes of the gradient, decay decoupled."""

    def __init__(self, params, lr=1e-3, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * self.direction(p, p.grad, state))


def toy(name, direction, base=Toy):
    return type(name, (base,), {"direction": staticmethod(direction)})


def orthogonal(p, g, state):
    if g.ndim < 2:
        return g.sign()
    u, _, v = torch.linalg.svd(g.flatten(1), full_matrices=False)
    return (u @ v).reshape(g.shape)


def factored(p, g, state):
    if g.ndim < 2:
        return g.sign()
    rows, columns = g.square().flatten(1).mean(1), g.square().flatten(1).mean(0)
    return g / (rows[:, None] * columns / rows.mean()).sqrt().reshape(g.shape)


def by_rows(p, g, state):
    return g / g.flatten(1).norm(dim=1).view(-1, *[1] * (g.ndim - 1)) if g.ndim > 1 else g.sign()


def by_columns(p, g, state):
    return g / g.norm(dim=0, keepdim=True) if g.ndim > 1 else g.sign()


LAWS = {  # direction, law, powers of rows and columns, a rate that moves the net
    "whole": (lambda p, g, state: g / g.norm(), "whole tensor", (0.5, 0.5), 3e-2),
    "orthogonal": (orthogonal, "spectral", (0.5, 0.5), 3e-2),
    "by-rows": (by_rows, "row", (0.0, 0.5), 3e-3),
    "by-columns": (by_columns, "column", (0.5, 0.0), 3e-3),
    "factored": (factored, "averaged", (0.0, 0.0), 1e-3),
    "centred": (lambda p, g, state: (g - g.mean()).sign(), "averaged", (0.0, 0.0), 1e-3),
    "by-size": (lambda p, g, state: g.sign() * g.numel() ** -0.5, "whole tensor", (0.5, 0.5), 3e-2),
    "relative": (lambda p, g, state: g.sign() * p.norm() / g.numel() ** 0.5, "averaged", (0.0, 0.0), 1e-2),
}


QUICK = ("whole", "by-rows")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in LAWS]
)
def test_the_law_of_a_step_that_mixes_entries(name):
    """The shape is found, and the hidden matrices move the output alike at 16 times the width."""
    direction, law, powers, lr = LAWS[name]
    cls = toy(name, direction)
    found = family(cls, {}, lr)
    assert found.shape.name == law and (found.shape.rows, found.shape.columns) == powers
    assert found.rate == ("u/init" if name == "relative" else "u") and found.decay == "decoupled"
    assert 1 / 1.5 < ratio(cls, lr) < 1.5


def test_an_elementwise_rate_is_wrong_for_a_spectral_step():
    """By AdamW's factors a U V^T step moves the output by 1/16 at 16 times the width."""
    cls = toy("orthogonal", orthogonal)

    def groups(p, model):
        return [
            {"params": g["params"], "lr": g["lr"]}
            for g in p.groups(torch.optim.AdamW, 3e-2, only="blocks.*", weight_decay=0.0)
        ]

    assert ratio(cls, 3e-2, groups=groups) < 0.1


def test_the_evidence_is_said():
    law = law_of(toy("whole", LAWS["whole"][0]), {})
    assert [e.dims for e in law.evidence] == [1, 2, 4] and law.precision == "float64"
    assert all(e.fold <= 1e-6 and e.others > 0.1 for e in law.evidence)
    assert "whole tensor step" in str(law) and "rows^-0.50 columns^-0.50" in str(law)
    assert law_of(torch.optim.AdamW, {}).evidence == ()


class MyMuon(torch.optim.Muon):
    pass


@pytest.mark.parametrize("fn", ["original", pytest.param("match_rms_adamw", marks=pytest.mark.slow)])
def test_a_measured_muon_is_torchs_own(fn):
    """Matrices only, bfloat16 inside, its own factor on the shape, an eps beside the norm of the matrix."""
    hyper = {"adjust_lr_fn": fn}
    mine, known = family(MyMuon, hyper, 1e-2), family(torch.optim.Muon, hyper)
    assert (mine.rate, mine.decay, mine.eps, mine.shape) == (known.rate, known.decay, known.eps, known.shape)
    hidden = kind_scales("matrix", 4.0, 2.0)
    assert factors_for(mine, hidden, (64, 128), (32, 32)) == factors_for(known, hidden, (64, 128), (32, 32))


class Mixed(Toy):
    """Spectral on matrices, sign on the rest, and a fast mode that must be switched on: `train()`."""

    on = False

    def train(self):
        self.on = True

    def direction(self, p, g, state):
        assert self.on
        return orthogonal(p, g, state)


def test_vectors_have_a_law_of_their_own_from_groups_to_check():
    found = family(Mixed, {})
    assert found.shape.name == "spectral" and found.vectors is not None
    assert found.vectors.shape.name == "elementwise" and found.vectors.rate == "u"
    model = Net(64)
    p = trimtab.parametrize(model, Net(32), example=X)
    f = p.factors(Mixed)
    assert f["blocks.0.up.weight"]["lr"] == pytest.approx(2 * p["blocks.0.up.weight"].u)
    assert f["stem.bias"]["lr"] == pytest.approx(p["stem.bias"].u)
    o = p.optimizer(Mixed, lr=1e-2)
    p.check(o)


class Single(Toy):
    """Keeps float32 inside, and takes nothing else."""

    def direction(self, p, g, state):
        if p.dtype != torch.float32:
            raise TypeError("float32 only")
        m = state.setdefault("m", torch.zeros_like(p)).mul_(0.9).add_(g, alpha=0.1)
        v = state.setdefault("v", torch.zeros_like(p)).mul_(0.99).addcmul_(g, g, value=0.01)
        return m / v.sqrt()


def test_an_optimizer_is_tried_in_its_own_precision():
    law = law_of(Single, {})
    assert law.precision == "float32" and law.family.rate == "u"


# -- refused -------------------------------------------------------------------------------------------------


class DAdaptation(Toy):
    """Sign steps times a distance estimated over all parameters, as D-Adaptation does."""

    def __init__(self, params, lr=1.0, weight_decay=0.0):
        super().__init__(params, lr, weight_decay)
        self.d, self.above = 1e-6, 0.0

    @torch.no_grad()
    def step(self, closure=None):
        below = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p].setdefault("s", torch.zeros_like(p))
                self.above += self.d * group["lr"] * float((p.grad * s).sum())
                s.add_(p.grad, alpha=self.d * group["lr"])
                below += float(s.abs().sum())
        self.d = max(self.d, self.above / below)
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.d * p.grad.sign())


class Prodigy(Toy):
    """The same for each tensor by itself: its distance has the units of the parameter, and lr does not."""

    def direction(self, p, g, state):
        first = state.setdefault("first", p.clone())
        state["above"] = state.get("above", 0.0) + float((g * (first - p)).sum())
        state["below"] = state.get("below", 0.0) + float(g.abs().sum())
        state["d"] = max(state.get("d", 1e-6), state["above"] / state["below"])
        return state["d"] * g.sign()


def bound(p, g, state):
    """AdaBound: a normalised rate that is clipped to what SGD at 0.1 would have, closer with every step."""
    t = state["step"]
    v = state.setdefault("v", torch.zeros_like(p)).mul_(0.999).addcmul_(g, g, value=0.001)
    rate = (v / (1 - 0.999 ** min(t, 10**6))).sqrt().reciprocal()
    return rate.clamp(100 * (1 - 1 / (1e-3 * t + 1)), 100 * (1 + 1 / (1e-3 * t))) * g


def rectified(p, g, state):
    """RAdam: plain at first, normalised later."""
    return g if state["step"] <= 5 else g.sign()


def trust(p, g, state):
    """LARS with the usual fallback: a tensor at zero has no size to be a part of."""
    size = float(p.norm())
    return g / g.norm() * (size if size else 1.0)


def at_size(p, g, state):
    return g / g.norm() if min(g.shape) >= 128 and g.ndim == 2 else g.sign()


def averaged(p, g, state):
    """A mean of the parameter that starts at zero: it moves whatever the rate."""
    mean = state.setdefault("mean", torch.zeros_like(p)).lerp_(p, 0.5).sub_(1e-3 * g)
    return (p - mean) / 1e-3


REFUSED = {
    "a mean of the parameter": (toy("Mean", averaged), 1e-3, "proportional to lr|known laws"),
    "d-adaptation": (DAdaptation, 1.0, "must not depend on other tensors"),
    "prodigy": (Prodigy, 1.0, "none of the known laws"),
    "prodigy at a small rate": (Prodigy, 1e-3, "none of the known laws"),
    "adabound": (toy("AdaBound", bound), 1e-3, "none of the known laws"),
    "radam": (toy("RAdam", rectified), 1e-3, "none of the known laws"),
    "lars": (toy("LARS", trust), 1e-2, "none of the known laws"),
    "norm clipping": (toy("Clip", lambda p, g, s: g / max(1.0, float(g.norm()))), 1e-2, "none of the known"),
    "large only": (toy("Large", at_size), 1e-3, "one power of each dimension"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_law_is_refused_with_what_was_measured(name):
    cls, lr, words = REFUSED[name]
    with pytest.raises(OptimizerError, match=words) as refused:
        family(cls, {}, lr)
    assert "Use one of SGD" in str(refused.value) and any(c.isdigit() for c in str(refused.value))


class SAM(Toy):
    """Climbs by rho before it descends: two gradients a step."""

    def step(self, closure):
        closure()
        with torch.no_grad():
            moves = [(p, 0.05 * p.grad / p.grad.norm()) for g in self.param_groups for p in g["params"]]
            for p, e in moves:
                p.add_(e)
        closure()
        with torch.no_grad():
            for p, e in moves:
                p.sub_(e).sub_(1e-3 * p.grad)


def test_two_gradients_a_step_are_refused():
    with pytest.raises(OptimizerError, match="one gradient a step"):
        family(SAM, {})


class Deaf(Toy):
    """Takes a closure, as torch's signature has it, and never asks it; without gradients it does nothing."""

    def step(self, closure=None):
        if all(p.grad is not None for group in self.param_groups for p in group["params"]):
            super().step()


def test_a_closure_that_is_never_asked_gives_nothing_more():
    """It used to be refused, for standing still where gradients come by closure."""
    found = family(toy("Signs", lambda p, g, state: g.sign(), Deaf), {}, 1e-3)
    assert found.rate == "u" and found.decay == "decoupled" and found.shape.name == "elementwise"


class OwnAdafactor(torch.optim.Adafactor):
    pass


def test_adafactor_does_not_fold():
    """Its step is a part of the parameter, but at least 1e-3: what starts at zero does not fold."""
    with pytest.raises(OptimizerError, match="absolute units"):
        family(OwnAdafactor, {})
    with pytest.raises(OptimizerError, match="1e-3"):
        family(torch.optim.Adafactor, {})


def test_many_dimensions_are_asked_about():
    found = family(toy("orthogonal", orthogonal), {})
    with pytest.raises(OptimizerError, match="1, 2 and 4 dimensions"):
        found.of((8, 16, 16))
    assert family(torch.optim.AdamW, {}).of((8, 16, 16)).rate == "u"


def test_a_law_is_measured_once():
    made = 0

    class Counted(Toy):
        def __init__(self, *args, **more):
            nonlocal made
            made += 1
            super().__init__(*args, **more)

        def direction(self, p, g, state):
            return g.sign()

    family(Counted, {}, 1e-3)
    once = made
    family(Counted, {}, 1e-3)
    assert made == once > 0
    family(Counted, {}, 2e-3)
    assert made > once


def test_the_table_is_in_step_with_the_code():
    """The rows of torch's own optimizers in docs/optimizers.md are what the script writes today."""
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location(
        "optimizer_table", root / "experiments" / "optimizer_table.py"
    )
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    written = (root / "docs" / "optimizers.md").read_text()
    rows = [table.row(f"torch.optim.{name}", cls) for name, cls in table.classes("torch.optim").items()]
    assert len(rows) >= 14 and sum(good for good, _ in rows) >= 9
    for _, line in rows:
        assert line in written


class Handed(torch.optim.AdamW):
    """A subclass that hands on what it is given: its signature names no eps."""

    def __init__(self, params, **hyper):
        super().__init__(params, **hyper)


class Fixed(torch.optim.AdamW):
    """Decay and eps are fixed in the constructor."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr=lr, eps=1e-6, weight_decay=0.1)


@pytest.mark.parametrize("cls", [Handed, Fixed])
def test_numbers_that_only_the_groups_show_are_scaled_too(cls):
    torch.manual_seed(0)
    base, model = (torch.nn.Sequential(torch.nn.Linear(4, n), torch.nn.Linear(n, 2)) for n in (16, 64))
    p = trimtab.parametrize(model, base, example=torch.randn(8, 4))
    optimizer = p.optimizer(cls, lr=0.1)
    head = next(g for g in optimizer.param_groups if g["params"][0] is model[1].weight)
    first = cls([torch.zeros(1, requires_grad=True)]).param_groups[0]
    assert head["lr"] == pytest.approx(0.1 / 4)
    assert head["weight_decay"] == pytest.approx(first["weight_decay"] * 4)
    assert head["eps"] == pytest.approx(first["eps"] * p["1.weight"].s)
    assert optimizer.param_groups[0]["eps"] != head["eps"]
