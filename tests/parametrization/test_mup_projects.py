"""Projects on microsoft/mup move in: the same weights train the same way with and without mup.

mup itself is the truth where it is installed (`pip install --no-deps mup`).
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from trimtab.parametrization.mup_projects import read_base_shapes

FILE = """\
# This is a base shape file encoded in yaml
# - `null` indicates a dimension is "finite", i.e. a non-"width" dimension
embed.weight:
-   null
-   16
hidden.bias:
-   16
hidden.weight:
-   16
-   16
head.bias:
-   null
head.weight:
-   null
-   16
temperature: []
"""
SHAPES = {
    "embed.weight": (None, 16),
    "hidden.bias": (16,),
    "hidden.weight": (16, 16),
    "head.bias": (None,),
    "head.weight": (None, 16),
    "temperature": (),
}


def test_the_file_is_read_without_yaml(tmp_path):
    path = tmp_path / "base.bsh"
    path.write_text(FILE)
    assert read_base_shapes(path) == SHAPES
    path.write_text(FILE + "evil: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(trimtab.InputError, match="line 17 must be"):
        read_base_shapes(path)
    path.write_text("# nothing\n")
    with pytest.raises(trimtab.InputError, match="names no parameter"):
        read_base_shapes(path)


class Net(nn.Module):
    """Two hidden layers over an embedding; `head` is the readout's class."""

    def __init__(self, n, head=nn.Linear):
        super().__init__()
        self.embed = nn.Embedding(11, n)
        self.up, self.down = nn.Linear(n, 3 * n), nn.Linear(3 * n, n)
        self.norm = nn.LayerNorm(n)
        self.head = head(n, 5)

    def forward(self, x):
        h = self.embed(x).mean(1)
        return self.head(self.norm(h + self.down(torch.tanh(self.up(h)))))


def train(model, optimizer, steps=8):
    losses = []
    for step in range(steps):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randint(0, 11, (32, 4), generator=g), torch.randint(0, 5, (32,), generator=g)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture
def mup():
    return pytest.importorskip("mup", reason="mup is not installed")


def with_mup(mup, n=64):
    torch.manual_seed(0)
    model = Net(n, mup.MuReadout)
    base = mup.make_base_shapes(Net(16, mup.MuReadout), Net(32, mup.MuReadout))
    return mup.set_base_shapes(model, base).double(), base


CASES = [
    ("MuAdamW", torch.optim.AdamW, dict(lr=1e-2, weight_decay=0.1, eps=1e-30)),
    ("MuAdam", torch.optim.Adam, dict(lr=1e-2, eps=1e-30)),
    ("MuSGD", torch.optim.SGD, dict(lr=0.1, weight_decay=0.01, momentum=0.9)),
]


@pytest.mark.parametrize(("name", "cls", "hyper"), CASES, ids=[c[0] for c in CASES])
def test_side_by_side(mup, name, cls, hyper):
    """mup's optimizer, from_mup's on the same model, and parametrize's on a plain model: one trajectory."""
    model, _ = with_mup(mup)
    theirs = train(model, getattr(mup, name)(model.parameters(), **hyper))
    model, _ = with_mup(mup)
    p = trimtab.from_mup(model)
    ours = train(model, p.optimizer(cls, **hyper))
    torch.manual_seed(0)
    plain = Net(64)
    base = Net(16)
    q = trimtab.parametrize(plain, base, scheme="mup", example=torch.zeros(2, 4, dtype=torch.long))
    moved = train(plain.double(), q.optimizer(cls, **hyper))
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert moved == pytest.approx(theirs, rel=1e-6)
    assert theirs[-1] != pytest.approx(theirs[0], rel=1e-3)  # something was learned


def test_numbers_from_file_dict_model_and_attributes(mup, tmp_path):
    model, shapes = with_mup(mup)
    path = str(tmp_path / "base.bsh")
    mup.save_base_shapes(shapes, path)
    p = trimtab.from_mup(model)
    by_dict = {name: tuple(d.base_dim for d in s) for name, s in shapes.items()}
    for other in (path, by_dict, Net(16, mup.MuReadout)):
        assert trimtab.from_mup(model, other) == p
    assert p["up.weight"].u == 1 / 4 and p["head.weight"].role == "readout"
    assert any("eps" in note for note in p.notes)
    p.export("torchtitan", lr=1e-3)
    p.check(p.optimizer(torch.optim.AdamW, lr=1e-3))


def test_what_does_not_fit_is_said():
    model = Net(64)
    with pytest.raises(trimtab.InputError, match="carry no infshape.*bsh"):
        trimtab.from_mup(model)
    shapes = {name: tuple(w.shape) for name, w in Net(16).named_parameters()}
    shapes["head.weight"], shapes["head.bias"] = (None, 16), (None,)
    with pytest.raises(trimtab.InputError, match="head.weight maps a width to a fixed size"):
        trimtab.from_mup(model, shapes)
    del shapes["norm.weight"]
    with pytest.raises(trimtab.InputError, match="norm.weight is in the model and has no base shape"):
        trimtab.from_mup(model, shapes)
    with pytest.raises(trimtab.InputError, match="got int"):
        trimtab.from_mup(model, 7)
