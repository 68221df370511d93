"""Published families move alike at every size: slopes of the first five steps within 0.15 over 4x width and
8x depth.

AdamW 1e-3, mean of three seeds; `movement` has the set-up and says what in it matters.
"""

import pytest

pytest.importorskip("transformers", reason="the [hf] extra is not installed")

from movement import BUILDS, DEPTHS, IDS, WIDTHS, slopes

import trimtab

pytestmark = pytest.mark.slow

QUICK = {
    ("gpt2", "width", "depth-mup"),
    ("llama", "depth", "depth-mup"),
    ("llama", "depth", "completep"),
    ("llama", "width", "sp"),
    ("llama", "depth", "sp"),
}


def every(*runs):
    cases = [(name, axis, scheme) for name in BUILDS for axis, scheme in runs]
    return [case if case in QUICK else pytest.param(*case, marks=pytest.mark.full) for case in cases]


@pytest.mark.parametrize(
    ("name", "axis", "scheme"), every(("width", "depth-mup"), ("depth", "depth-mup"), ("depth", "completep"))
)
def test_flat(name, axis, scheme):
    found = slopes(name, WIDTHS if axis == "width" else DEPTHS, scheme)
    assert found.abs().max() <= 0.15, found


@pytest.mark.parametrize(("name", "axis", "scheme"), every(("width", "sp"), ("depth", "sp")))
def test_plain_torch_is_not_flat(name, axis, scheme):
    found = slopes(name, WIDTHS if axis == "width" else DEPTHS, scheme)
    assert not found.abs().max() <= 0.3, found  # diverged counts too


@pytest.mark.parametrize(
    ("name", "choices", "said"),
    [("llama", {}, False), ("llama", dict(embeddings=1.0), True), ("gemma2", dict(gain=1.0), True)],
)
def test_a_base_made_by_its_branches_is_named(name, choices, said):
    """At alpha = 1 the random part of the branches falls with depth; at 1/2 it does not."""
    build = BUILDS[name][0]
    notes = {
        s: trimtab.parametrize(
            build(64, 4, **choices), build(64, 2, **choices), scheme=s, example=dict(input_ids=IDS[:2])
        ).notes
        for s in ("completep", "depth-mup")
    }
    assert any("random part" in note for note in notes["completep"]) == said
    assert not any("random part" in note for note in notes["depth-mup"])
