"""A weight that is normalised does not follow the size of what it is made of: its gain takes the start."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from skips import Add, Net, X, flatness
from torch import nn
from torch.nn.utils import parametrizations

import trimtab
from trimtab.errors import StructureError

BASE, WIDE, DEEP = (64, 2), (256, 2), (64, 8)


class Standardised(nn.Module):
    """Weight standardisation by hand: each row without its mean and deviation, times fan-in^-1/2, a gain."""

    def __init__(self, n, m, inside=False, gain=True):
        super().__init__()
        self.weight, self.inside = nn.Parameter(torch.randn(m, n) / n**0.5), inside
        self.g = nn.Parameter(torch.ones(m, 1)) if gain else 1.0

    def forward(self, x):
        n = x.shape[-1]
        var, mean = torch.var_mean(self.weight, dim=1, keepdim=True)
        centred = self.weight - mean
        if self.inside:  # as NFNets write it
            return F.linear(x, centred * torch.rsqrt((var * n).clamp(min=1e-6)) * self.g)
        return F.linear(x, centred / (var.sqrt() + 1e-6) / n**0.5 * self.g)


def weight_norm(n, m):
    return parametrizations.weight_norm(nn.Linear(n, m))


def spectral_norm(n, m):
    return parametrizations.spectral_norm(nn.Linear(n, m))


LAYERS = {
    "weight norm": weight_norm,
    "spectral norm": spectral_norm,
    "standardised": Standardised,
    "standardised inside": lambda n, m: Standardised(n, m, inside=True),
}


class Branch(nn.Module):
    def __init__(self, n, layer, last):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), layer(n, n), last(n, n)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(self.norm(h))))


def in_branches(layer):
    last = nn.Linear if layer is spectral_norm else layer  # a branch must end in what follows its size
    return lambda n, L: Net(n, [Branch(n, layer, last) for _ in range(L)])


def as_head(layer):
    def build(n, L):
        net = Net(n, [Add(n) for _ in range(L)])
        net.head = layer(n, net.head.out_features)
        return net

    return build


def planned(build, size, **more):
    torch.manual_seed(0)
    model = build(*size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trimtab.parametrize(model, build(*BASE), example=X, **more)


@pytest.mark.parametrize("size", [WIDE, DEEP], ids=["wide", "deep"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_normalised_layer_of_a_branch_is_right_as_it_is(layer, size):
    p = planned(in_branches(LAYERS[layer]), size)
    assert p.proof.verdict != "wrong", "\n".join(map(str, p.proof))
    if size is WIDE:
        matrix = next(n for n in p if n.startswith("blocks.0.up") and p[n].role == "hidden")
        assert p[matrix].u == pytest.approx(BASE[0] / size[0])


@pytest.mark.parametrize("layer", [n for n in LAYERS if n != "spectral norm"])
def test_the_gain_of_a_normalised_readout_takes_its_start(layer):
    p = planned(as_head(LAYERS[layer]), WIDE)
    assert p.proof.verdict == "good", "\n".join(map(str, p.proof))
    gain = next(n for n in p if n in ("head.g", "head.parametrizations.weight.original0"))
    # 1/m is wanted, m^-1/2 is there; a variance over N - 1 is off by 1/N
    assert (p[gain].init, p[gain].u) == pytest.approx((0.5, 0.5), rel=1 / BASE[0])


def test_richness_goes_into_the_gain_of_a_normalised_readout():
    p = planned(as_head(weight_norm), BASE, gamma0=2.0)
    assert p["head.parametrizations.weight.original0"].init == pytest.approx(0.5)


def test_a_normalised_readout_without_a_gain_is_refused():
    with pytest.raises(StructureError, match="needs a gain to carry its start"):
        planned(as_head(lambda n, m: Standardised(n, m, gain=False)), WIDE)
    with pytest.raises(StructureError, match="needs a gain to carry its start"):
        planned(as_head(spectral_norm), WIDE)


@pytest.mark.parametrize("layer", ["weight norm", "standardised"])
def test_five_steps_change_the_outputs_alike(layer):
    for size in (WIDE, DEEP):
        assert all(1 / 1.5 < r < 1.5 for r in flatness(as_head(LAYERS[layer]), size, BASE))
