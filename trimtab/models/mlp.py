"""Residual MLP: the network of the paper's theory (arXiv 2309.16620, section 2).

    h^1 = W^0 x        h^{l+1} = h^l + c W_k phi( ... W_1 phi(h^l))    l = 1..depth        f = w
    phi(h^{depth+1})

`c` is `branch_scale`, a plain constant of the model, the same at every depth. `skip=False` drops the h^l.
"""

from __future__ import annotations

from torch import Tensor, nn

from trimtab.models.parts import ACTIVATIONS, GAIN, linear


class Branch(nn.Module):
    """phi, then a matrix, k times; a LayerNorm in front if asked for."""

    def __init__(self, width: int, k: int, activation: str, norm: str):
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.Identity()
        self.layers = nn.ModuleList(linear(width, width, gain=GAIN[activation]) for _ in range(k))
        self.activation = ACTIVATIONS[activation]

    def forward(self, h: Tensor) -> Tensor:
        h = self.norm(h)
        for layer in self.layers:
            h = layer(self.activation(h))
        return h


class MLP(nn.Module):
    """See the file's equation. Inputs of any shape are flattened."""

    def __init__(
        self,
        width: int,
        depth: int,
        inputs: int,
        classes: int,
        k: int,
        activation: str,
        norm: str,
        skip: bool,
        branch_scale: float,
    ):
        super().__init__()
        self.stem = linear(inputs, width)
        self.branches = nn.ModuleList(Branch(width, k, activation, norm) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if norm == "layer" else nn.Identity()
        self.head = linear(width, classes)
        self.activation, self.skip, self.branch_scale = ACTIVATIONS[activation], skip, branch_scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x.flatten(1))
        for branch in self.branches:
            h = h + self.branch_scale * branch(h) if self.skip else self.branch_scale * branch(h)
        return self.head(self.activation(self.norm(h)))


def build(
    width: int,
    depth: int,
    *,
    inputs: int = 64,
    classes: int = 10,
    k: int = 1,
    activation: str = "relu",
    norm: str = "none",
    skip: bool = True,
    branch_scale: float = 1.0,
) -> nn.Module:
    """A residual MLP with `depth` branches of `k` matrices.

    >>> sum(p.numel() for p in build(32, 3).parameters())
    5440
    """
    return MLP(width, depth, inputs, classes, k, activation, norm, skip, branch_scale)
