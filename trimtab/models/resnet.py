"""Conv ResNet of the paper's experiments (arXiv 2309.16620, figure 1): one width everywhere, three stages.

    stem 3x3  ->  [ h + c norm(conv(relu(h))) ] x depth/3  ->  pool, conv  ->  [ ... ]  ->  pool, conv  ->  [
    ... ]  ->  relu, mean, linear

The norm sits inside the branch, at its end. The convolutions between stages are not residual.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from trimtab.models.parts import GAIN, conv3, linear

STAGES = 3


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of each pixel."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


NORMS = {"none": lambda width: nn.Identity(), "batch": nn.BatchNorm2d, "layer": ChannelNorm}


class Branch(nn.Module):
    """relu, 3x3 convolution, norm; k times."""

    def __init__(self, width: int, k: int, norm: str):
        super().__init__()
        self.convs = nn.ModuleList(conv3(width, width, gain=GAIN["relu"]) for _ in range(k))
        self.norms = nn.ModuleList(NORMS[norm](width) for _ in range(k))

    def forward(self, h: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = norm(conv(h.relu()))
        return h


class ResNet(nn.Module):
    """See the file's picture."""

    def __init__(
        self,
        width: int,
        depth: int,
        channels: int,
        classes: int,
        k: int,
        norm: str,
        skip: bool,
        branch_scale: float,
    ):
        super().__init__()
        self.stem = conv3(channels, width)
        self.stages = nn.ModuleList(
            nn.ModuleList(Branch(width, k, norm) for _ in range(depth // STAGES)) for _ in range(STAGES)
        )
        self.between = nn.ModuleList(conv3(width, width) for _ in range(STAGES - 1))
        self.head = linear(width, classes)
        self.skip, self.branch_scale = skip, branch_scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for i, stage in enumerate(self.stages):
            if i:
                h = self.between[i - 1](functional.max_pool2d(h, 2))
            for branch in stage:  # type: ignore[attr-defined]
                h = h + self.branch_scale * branch(h) if self.skip else self.branch_scale * branch(h)
        return self.head(h.relu().mean((2, 3)))


def build(
    width: int,
    depth: int,
    *,
    channels: int = 3,
    classes: int = 10,
    k: int = 1,
    norm: str = "none",
    skip: bool = True,
    branch_scale: float = 1.0,
) -> nn.Module:
    """A conv ResNet with `depth` branches over three stages; images of at least 4 pixels a side.

    >>> sum(p.numel() for p in build(16, 3).parameters())
    12112
    """
    return ResNet(width, depth, channels, classes, k, norm, skip, branch_scale)
