"""The rules as algebra: properties by the thousand, and a proof that each exponent is noticed."""

import dataclasses
import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from trimtab import InputError
from trimtab.parametrization import rules
from trimtab.parametrization.optimizers import families
from trimtab.parametrization.optimizers.families import FAMILIES, factors
from trimtab.parametrization.rules import Scales, kind_scales, place_scales, richness_scales

ratio = st.floats(0.05, 50)
alphas = st.floats(0, 2)
kinds = st.sampled_from(["matrix", "elementwise", "scalar"])
places = st.sampled_from(["outside", "branch", "tail", "stream"])
many = settings(max_examples=1000, deadline=None)


def close(a, b):
    return all(
        math.isclose(x, y, rel_tol=1e-9)
        for x, y in zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    )


@many
@given(kinds, places, alphas)
def test_base_is_the_identity(kind, place, alpha):
    assert (
        kind_scales(kind, 1.0, 1.0)
        == place_scales(place, 1.0, alpha)
        == richness_scales(None, 1.0)
        == Scales()
    )
    for family in FAMILIES.values():
        assert factors(family, Scales()) == families.Factors()


@many
@given(kinds, ratio, ratio, places, ratio, ratio, alphas)
def test_rules_compose_over_sizes(kind, a, b, place, c, d, alpha):
    """Going from base to a middle size and on is going there at once (fan-in and fan-out growing alike)."""
    assert close(kind_scales(kind, a, a) * kind_scales(kind, b, b), kind_scales(kind, a * b, a * b))
    assert close(
        place_scales(place, c, alpha) * place_scales(place, d, alpha), place_scales(place, c * d, alpha)
    )


@many
@given(ratio, ratio, ratio, ratio)
def test_folding_changes_no_effective_number(init, u, s, a):
    """Storing a theta: the start and the update grow by a, the gradient shrinks by a; torch's powers of a
    follow."""
    plain, folded = Scales(init, u, s), Scales(init, u, s).fold(a)
    powers = {
        "SGD": (2, -2, 0),
        "Adam": (1, -2, -1),
        "AdamW": (1, -1, -1),
        "NAdam": (1, -2, -1),
        "RMSprop": (1, -2, -1),
        "Adamax": (1, -2, -1),
        "Adagrad": (1, -2, -1),
        "Adadelta": (2, -2, -2),
        "Lion": (1, -1, 0),
        "Muon": (1, -1, -1),
    }
    assert powers.keys() == FAMILIES.keys()
    for name, (lr, decay, eps) in powers.items():
        before, after = factors(FAMILIES[name], plain), factors(FAMILIES[name], folded)
        assert math.isclose(after.lr / before.lr, a**lr, rel_tol=1e-9)
        assert math.isclose(after.weight_decay / before.weight_decay, a**decay, rel_tol=1e-9)
        assert math.isclose(after.eps / before.eps, a**eps, rel_tol=1e-9)


@many
@given(ratio, ratio, ratio)
def test_decay_per_step_is_the_same_at_every_size(init, u, s):
    for name in ("AdamW", "Lion", "Muon", "SGD"):
        f = factors(FAMILIES[name], Scales(init, u, s), entry=0.3, norm=2.0)
        assert math.isclose(f.lr * f.weight_decay, 1.0, rel_tol=1e-9)


@many
@given(st.floats(1, 50), st.floats(1, 50))
def test_forward_and_backward_sizes(m_in, m_out):
    """A matrix at init keeps activations (fan_in init^2 <= 1) and, when it shrinks, does not blow up
    gradients; an update of size u coherent with its input moves the output by fan_in u = 1 at every size."""
    scales = kind_scales("matrix", m_in, m_out)
    assert m_in * scales.init**2 <= 1 + 1e-9
    assert math.isclose(m_in * scales.u, 1.0, rel_tol=1e-9)
    assert math.isclose(m_out * scales.s, 1.0, rel_tol=1e-9)


@many
@given(ratio, alphas)
def test_depth_adds_up(m_L, alpha):
    """L branches of variance init^2 (tail) add to O(1) at alpha = 1/2, and their coherent updates to O(1) at
    any alpha: L x (tail's update) = 1 and L x (inner update) x (branch scale) = 1."""
    tail, inner = place_scales("tail", m_L, alpha), place_scales("branch", m_L, alpha)
    assert math.isclose(m_L * tail.u, 1.0, rel_tol=1e-9)
    assert math.isclose(m_L * inner.u * tail.init, 1.0, rel_tol=1e-9)
    assert math.isclose(inner.s, tail.init, rel_tol=1e-9)
    if alpha == 0.5:
        assert math.isclose(m_L * tail.init**2, 1.0, rel_tol=1e-9)


@many
@given(ratio)
def test_richness(gamma0):
    """f moves by the readout's own update, by features' updates times 1/gamma0: both O(1), features by
    gamma0."""
    readout, rest = richness_scales("weight", gamma0), richness_scales(None, gamma0)
    assert math.isclose(rest.u * readout.init, readout.u, rel_tol=1e-9)
    assert math.isclose(rest.u / rest.s, gamma0**2, rel_tol=1e-9)  # eta = eta_0 gamma^2


larger = st.floats(1, 50)


@many
@given(
    kinds,
    larger,
    larger,
    places,
    larger,
    alphas,
    larger,
    st.booleans(),
    st.sampled_from(["weight", "bias", None]),
    larger,
)
def test_there_and_back_is_one(kind, m_in, m_out, place, m_L, alpha, uses, zero_tail, readout, gamma):
    """Shrinking is the inverse of growing, for every number, whatever the kind, the place and the
    richness."""

    def scales(power):
        depth = place_scales(place, m_L**power, alpha, uses=uses**power, zero_tail=zero_tail)
        return kind_scales(kind, m_in**power, m_out**power) * depth * richness_scales(readout, gamma**power)

    assert close(scales(1) * scales(-1), Scales())
    for family in FAMILIES.values():
        there, back = (factors(family, scales(k), entry=m_in**k, norm=m_out**k) for k in (1, -1))
        assert close(
            families.Factors(
                there.lr * back.lr, there.weight_decay * back.weight_decay, there.eps * back.eps
            ),
            families.Factors(),
        )


@pytest.mark.parametrize(
    ("m_in", "m_out", "init"),
    [(1 / 8, 1 / 8, 8**0.5), (1 / 8, 1, 8), (1, 1 / 8, 1), (1 / 9, 1 / 4, 9 / 2), (1 / 4, 1 / 9, 2)],
)
def test_a_smaller_matrix_by_hand(m_in, m_out, init):
    assert kind_scales("matrix", m_in, m_out).init == pytest.approx(init, rel=1e-12)


@pytest.mark.parametrize(("m_in", "m_out"), [(2, 1 / 2), (1 / 2, 2), (1.01, 0.99)])
def test_growing_one_way_and_shrinking_the_other_has_no_rule(m_in, m_out):
    with pytest.raises(InputError, match="fan-in is .* and the fan-out"):
        kind_scales("matrix", m_in, m_out)
    assert kind_scales("matrix", m_in, m_out, init=0.3) == Scales(0.3, 1 / m_in, 1 / m_out)


# (what, arguments, (init, u, s) or (lr, decay, eps)): worked out by hand from
# docs/theory.md, equations (7), (9), (10) and (12).
BY_HAND = [
    ("kind", ("matrix", 4.0, 4.0), (1 / 2, 1 / 4, 1 / 4)),
    ("kind", ("matrix", 4.0, 1.0), (1 / 4, 1 / 4, 1)),
    ("kind", ("matrix", 1.0, 4.0), (1, 1, 1 / 4)),
    ("kind", ("matrix", 4.0, 9.0), (1 / 2, 1 / 4, 1 / 9)),
    ("kind", ("matrix", 9.0, 4.0), (2 / 9, 1 / 9, 1 / 4)),
    ("kind", ("elementwise", 1.0, 4.0), (1, 1, 1 / 4)),
    ("kind", ("scalar", 1.0, 1.0), (1, 1, 1)),
    ("place", ("tail", 16.0, 0.5), (1 / 4, 1 / 16, 1)),
    ("place", ("tail", 16.0, 1.0), (1 / 16, 1 / 16, 1)),
    ("place", ("branch", 16.0, 0.5), (1, 1 / 4, 1 / 4)),
    ("place", ("branch", 16.0, 1.0), (1, 1, 1 / 16)),
    ("place", ("stream", 16.0, 0.5), (1, 1 / 16, 1)),
    ("place", ("outside", 16.0, 0.5), (1, 1, 1)),
    ("richness", ("weight", 4.0), (1 / 4, 1, 1)),
    ("richness", ("bias", 4.0), (1, 1, 1)),
    ("richness", (None, 4.0), (1, 4, 1 / 4)),
    ("SGD", (2.0, 3.0, 5.0), (3 / 5, 5 / 3, 1)),
    ("Adam", (2.0, 3.0, 5.0), (3, 5 / 2, 5)),
    ("AdamW", (2.0, 3.0, 5.0), (3, 1 / 3, 5)),
    ("Adadelta", (2.0, 3.0, 5.0), (3 / 5, 5 / 2, 25)),
    ("Lion", (2.0, 3.0, 5.0), (3, 1 / 3, 1)),
]


def compute(what, arguments):
    if what in FAMILIES:
        return dataclasses.astuple(factors(FAMILIES[what], Scales(*arguments)))
    function = {"kind": kind_scales, "place": place_scales, "richness": richness_scales}[what]
    return dataclasses.astuple(function(*arguments))


@pytest.mark.parametrize(("what", "arguments", "expected"), BY_HAND)
def test_numbers_by_hand(what, arguments, expected):
    assert compute(what, arguments) == pytest.approx(expected, rel=1e-12)


def notices():
    """Would the numbers worked out by hand notice the rules as they are now?"""
    return any(
        compute(what, arguments) != pytest.approx(expected, rel=1e-9) for what, arguments, expected in BY_HAND
    )


@pytest.mark.parametrize("field", ["init", "u", "s"])
@pytest.mark.parametrize(
    ("function", "key"),
    [
        *itertools.product(["kind_scales"], ["matrix", "elementwise"]),
        *itertools.product(["place_scales"], ["branch", "tail", "stream"]),
        ("richness_scales", "weight"),
        ("richness_scales", None),
    ],
)
def test_every_exponent_is_noticed(monkeypatch, function, key, field):
    """Perturb one exponent of one row by 0.1: a number worked out by hand must disagree."""
    original = getattr(rules, function)

    def perturbed(first, *rest, **more):
        scales = original(first, *rest, **more)
        if first != key:
            return scales
        m = rest[-1] if function == "kind_scales" else rest[0]
        return dataclasses.replace(scales, **{field: getattr(scales, field) * m**0.1})

    assert not notices()
    monkeypatch.setitem(globals(), function, perturbed)
    assert notices()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adadelta", "Lion"])
@pytest.mark.parametrize("field", ["lr", "weight_decay", "eps"])
def test_every_factor_is_noticed(monkeypatch, name, field):
    original = families.factors

    def perturbed(family, scales, **more):
        f = original(family, scales, **more)
        return (
            dataclasses.replace(f, **{field: getattr(f, field) * scales.u**0.1}) if family.name == name else f
        )

    monkeypatch.setitem(globals(), "factors", perturbed)
    assert notices()


def test_shared_layers_cancel():
    assert place_scales("branch", 8.0, 0.5, uses=8.0) == Scales(1.0, 1.0, 1.0)
    assert place_scales("tail", 8.0, 0.5, uses=8.0) == Scales(1 / 8, 1 / 8, 8.0)


def test_zero_tails():
    assert place_scales("tail", 4.0, 0.5, zero_tail=True) == Scales(1.0, 1 / 4, 1.0)
    assert place_scales("branch", 4.0, 0.5, zero_tail=True) == place_scales("branch", 4.0, 1.0)
