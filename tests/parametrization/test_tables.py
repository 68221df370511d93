"""What is printed of a plan: like blocks on one line, however they are called, and a base that is no base."""

import torch
from torch import nn

import trimtab

X = torch.randn(4, 5)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, h):
        return h + self.mlp(h)


class Named(nn.Module):
    """Blocks that are attributes: b0, b1, ..."""

    def __init__(self, width, depth):
        super().__init__()
        self.stem, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.names = [f"b{i}" for i in range(depth)]
        for name in self.names:
            setattr(self, name, Block(width))

    def forward(self, x):
        h = self.stem(x)
        for name in self.names:
            h = getattr(self, name)(h)
        return self.head(h)


def test_blocks_that_are_attributes_share_a_line():
    shown = str(trimtab.parametrize(Named(64, 4), Named(32, 2), example=X))
    assert "b#.mlp.2.weight x 4" in shown and "b1.mlp" not in shown and "b#.mlp.0.weight x 4" in shown


def test_a_model_smaller_than_its_base_is_said():
    """Legal, since shrinking is the inverse of growing, and most often the two were swapped."""
    small, large = (Named(32, 2), Named(64, 4))
    notes = trimtab.parametrize(small, large, example=X, apply=False).notes
    assert any("smaller than its base" in note for note in notes)
    for width, depth in ((64, 4), (64, 2), (32, 2)):
        notes = trimtab.parametrize(Named(width, depth), Named(32, 2), example=X).notes
        assert not any("smaller than its base" in note for note in notes)
