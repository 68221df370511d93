"""Small models, one per structure, each with what must be found in it written down beforehand.

A case is `build(width, depth)`, an example, and expectations: how many branches at a depth, the kind of each,
the tail of the first branch, roles and places of some parameters, and parts of their (init, u, s) worked out
by hand for width x 2 and depth x 2 (alpha = 1/2) where that is the point of the case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

V, C, D = 11, 5, 6  # vocabulary, classes, input size
X = torch.randn(4, D, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
IDS = torch.randint(0, V, (3, 7), generator=torch.Generator().manual_seed(3))
SEQ = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(4))


@dataclasses.dataclass
class Case:
    build: Callable[[int, int], nn.Module]
    example: Any
    branches: Callable[[int], int] = lambda L: L  # by depth
    kinds: set[str] = dataclasses.field(default_factory=lambda: {"identity"})
    tail: set[str] = dataclasses.field(default_factory=set)  # of the first branch
    roles: dict[str, str] = dataclasses.field(default_factory=dict)
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    numbers: dict[str, tuple[float, float, float]] = dataclasses.field(
        default_factory=dict
    )  # width x 2, depth x 2
    overrides: dict[str, Any] | None = None


CASES: dict[str, Case] = {}


def case(example, **expect):
    def register(build):
        CASES[build.__name__.replace("_", "-")] = Case(build, example, **expect)
        return build

    return register


class Net(nn.Module):
    """stem -> body(h) -> head, where the body is what a case is about."""

    def __init__(self, n, blocks, stem=None, head=None):
        super().__init__()
        self.stem = stem if stem is not None else nn.Linear(D, n)
        self.blocks = nn.ModuleList(blocks)
        self.head = head if head is not None else nn.Linear(n, C)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Block(nn.Module):
    """h + f(h) unless a case says otherwise."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)

    def f(self, h):
        return self.fc(torch.relu(h))

    def forward(self, h):
        return h + self.f(h)


R = 2**-0.5
HIDDEN_TAIL = (R * R, 1 / 4, 1 / 2)  # hidden, tail of a branch: m_in^-1/2 m_L^-1/2, 1/(m m_L), 1/m
INNER = (R, R / 2, R / 2)  # hidden, in a branch before its tail


@case(
    X,
    tail={"blocks.0.fc.weight", "blocks.0.fc.bias"},
    roles={
        "stem.weight": "input",
        "blocks.0.fc.weight": "hidden",
        "head.weight": "readout",
        "head.bias": "elementwise",
    },
    places={"stem.weight": "outside", "blocks.1.fc.bias": "tail", "head.weight": "outside"},
    numbers={
        "stem.weight": (1, 1, 1 / 2),
        "blocks.0.fc.weight": HIDDEN_TAIL,
        "blocks.0.fc.bias": (R, 1 / 2, 1 / 2),
        "head.weight": (1 / 2, 1 / 2, 1),
        "head.bias": (1, 1, 1),
    },
)
def residual_mlp(n, L):
    return Net(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)])


class TwoLayer(Block):
    def f(self, h):
        return self.down(F.gelu(self.up(self.norm(h))))


def two_layer(n, **more):
    return TwoLayer(norm=nn.LayerNorm(n), up=nn.Linear(n, 3 * n), down=nn.Linear(3 * n, n), **more)


@case(
    X,
    tail={"blocks.0.down.weight", "blocks.0.down.bias"},
    places={"blocks.0.norm.weight": "branch", "blocks.0.up.weight": "branch", "blocks.0.down.weight": "tail"},
    numbers={
        "blocks.0.up.weight": INNER,
        "blocks.0.norm.weight": (1, R, R / 2),
        "blocks.0.up.bias": (1, R, R / 2),
        "blocks.0.down.weight": HIDDEN_TAIL,
    },
)
def pre_norm_mlp(n, L):
    return Net(n, [two_layer(n) for _ in range(L)])


class PostNorm(TwoLayer):
    def forward(self, h):
        return self.norm(h + self.down(F.gelu(self.up(h))))


@case(
    X,
    kinds={"post-norm"},
    tail={"blocks.0.down.weight", "blocks.0.down.bias"},
    places={"blocks.0.norm.weight": "stream", "blocks.1.norm.bias": "stream"},
    numbers={"blocks.0.norm.weight": (1, 1 / 2, 1 / 2), "blocks.1.norm.weight": (1, 1 / 2, 1 / 2)},
)
def post_norm(n, L):
    return Net(
        n,
        [PostNorm(norm=nn.LayerNorm(n), up=nn.Linear(n, 3 * n), down=nn.Linear(3 * n, n)) for _ in range(L)],
    )


class OutNorm(Block):
    def f(self, h):
        return self.norm(self.fc(torch.relu(h)))


@case(
    X,
    tail={"blocks.0.norm.weight", "blocks.0.norm.bias"},
    places={"blocks.0.fc.weight": "branch"},
    numbers={"blocks.0.fc.weight": INNER, "blocks.0.norm.weight": (R, 1 / 2, 1 / 2)},
)
def norm_on_branch_output(n, L):
    return Net(n, [OutNorm(fc=nn.Linear(n, n), norm=nn.LayerNorm(n)) for _ in range(L)])


class RMSGain(nn.Module):
    """A norm whose gain is stored as 1 + w."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))

    def forward(self, h):
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight)


@case(
    X,
    tail={"blocks.0.norm.weight"},
    places={"blocks.0.norm.weight": "tail"},
    numbers={"blocks.0.norm.weight": (R, 1 / 2, 1 / 2)},
)
def gain_stored_as_one_plus_w(n, L):
    return Net(n, [OutNorm(fc=nn.Linear(n, n), norm=RMSGain(n)) for _ in range(L)])


class Scaled(TwoLayer):
    def forward(self, h):
        return h + self.gamma * self.f(h)


@case(
    X,
    tail={"blocks.0.gamma"},
    roles={"blocks.0.gamma": "elementwise"},
    numbers={"blocks.0.gamma": (R, 1 / 2, 1 / 2), "blocks.0.down.weight": INNER},
)
def layer_scale(n, L):
    return Net(n, [two_layer(n, gamma=nn.Parameter(torch.full((n,), 0.5))) for _ in range(L)])


CASES["layer-scale"].build = lambda n, L: Net(
    n, [_with(Scaled, n, nn.Parameter(torch.full((n,), 0.5))) for _ in range(L)]
)


def _with(cls, n, gamma):
    return cls(norm=nn.LayerNorm(n), up=nn.Linear(n, 3 * n), down=nn.Linear(3 * n, n), gamma=gamma)


@case(
    X,
    tail={"blocks.0.gamma"},
    roles={"blocks.0.gamma": "elementwise"},
    numbers={"blocks.0.gamma": (1, 1 / 2, 1 / 2), "blocks.0.down.weight": (R, 1 / 2, 1 / 4)},
)
def tiny_layer_scale(n, L):
    """Starts as good as at zero: left there, and what is before it obeys alpha = 1."""
    return Net(n, [_with(Scaled, n, nn.Parameter(torch.full((n,), 1e-6))) for _ in range(L)])


@case(
    X,
    tail={"blocks.0.gamma"},
    roles={"blocks.0.gamma": "scalar"},
    numbers={"blocks.0.gamma": (1, 1 / 2, 1), "blocks.0.up.weight": (R, 1 / 2, 1 / 4)},
)
def rezero(n, L):
    return Net(n, [_with(Scaled, n, nn.Parameter(torch.zeros(()))) for _ in range(L)])


class ConvBlock(Block):
    def f(self, h):
        return self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(h)))))


def conv_block(n):
    return ConvBlock(
        conv1=nn.Conv2d(n, n, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(n),
        conv2=nn.Conv2d(n, n, 3, padding=1, bias=False),
        bn2=nn.BatchNorm2d(n),
    )


def conv_net(n, blocks):
    return Net(
        n,
        blocks,
        nn.Conv2d(3, n, 3, padding=1),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, C)),
    )


@case(
    IMAGES,
    tail={"blocks.0.bn2.weight", "blocks.0.bn2.bias"},
    roles={"stem.weight": "input", "blocks.0.conv1.weight": "hidden", "head.2.weight": "readout"},
    numbers={
        "blocks.0.conv2.weight": INNER,
        "blocks.0.bn2.weight": (R, 1 / 2, 1 / 2),
        "stem.weight": (1, 1, 1 / 2),
    },
)
def conv_ending_in_batch_norm(n, L):
    return conv_net(n, [conv_block(n) for _ in range(L)])


@case(
    IMAGES,
    tail={"blocks.0.bn2.weight", "blocks.0.bn2.bias"},
    numbers={"blocks.0.bn2.weight": (1, 1 / 2, 1 / 2), "blocks.0.conv1.weight": (R, 1 / 2, 1 / 4)},
)
def zero_batch_norm_gain(n, L):
    net = conv_net(n, [conv_block(n) for _ in range(L)])
    for block in net.blocks:
        nn.init.zeros_(block.bn2.weight)
    return net


class GroupedBlock(Block):
    def f(self, h):
        return self.point(torch.relu(self.grouped(self.depth(h))))


@case(
    IMAGES,
    tail={"blocks.0.point.weight", "blocks.0.point.bias"},
    roles={
        "blocks.0.depth.weight": "elementwise",
        "blocks.0.grouped.weight": "hidden",
        "blocks.0.point.weight": "hidden",
    },
    numbers={"blocks.0.depth.weight": (1, R, R / 2), "blocks.0.grouped.weight": INNER},
)
def grouped_and_depthwise_conv(n, L):
    return conv_net(
        n,
        [
            GroupedBlock(
                depth=nn.Conv2d(n, n, 3, padding=1, groups=n),
                grouped=nn.Conv2d(n, n, 3, padding=1, groups=2),
                point=nn.Conv2d(n, n, 1),
            )
            for _ in range(L)
        ],
    )


class Stage(nn.Module):
    """A projection shortcut, then identity blocks, as in a ResNet."""

    def __init__(self, n_in, n, blocks):
        super().__init__()
        self.shortcut = nn.Sequential(nn.Conv2d(n_in, n, 1, stride=2, bias=False), nn.BatchNorm2d(n))
        self.conv1, self.bn1 = nn.Conv2d(n_in, n, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(n)
        self.conv2, self.bn2 = nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)
        self.blocks = nn.ModuleList(conv_block(n) for _ in range(blocks - 1))

    def forward(self, h):
        z = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(h)))))
        h = torch.relu(self.shortcut(h) + z)
        for block in self.blocks:
            h = torch.relu(block(h))
        return h


class ResNet(nn.Module):
    def __init__(self, n, depths):
        super().__init__()
        self.stem = nn.Conv2d(3, n, 3, padding=1, bias=False)
        self.first = nn.ModuleList(conv_block(n) for _ in range(depths[0]))
        self.stages = nn.ModuleList(Stage(n * 2**i, n * 2 ** (i + 1), d) for i, d in enumerate(depths[1:]))
        self.head = nn.Linear(n * 2 ** (len(depths) - 1), C)

    def forward(self, x):
        h = self.stem(x)
        for block in self.first:
            h = torch.relu(block(h))
        for stage in self.stages:
            h = stage(h)
        return self.head(h.mean((2, 3)))


@case(
    IMAGES,
    branches=lambda L: 3 * L,
    kinds={"identity", "projection"},
    tail={"first.0.bn2.weight", "first.0.bn2.bias"},
    places={
        "stages.0.shortcut.0.weight": "outside",
        "stages.0.shortcut.1.weight": "outside",
        "stages.0.bn2.weight": "tail",
        "stages.0.conv1.weight": "branch",
    },
    numbers={"stages.0.shortcut.0.weight": (R, 1 / 2, 1 / 2), "stages.0.conv1.weight": INNER},
)
def staged_resnet(n, L):
    return ResNet(n, [L, L, L])


class Widening(ConvBlock):
    """The first block of a stage, called as the others are; its shortcut is a projection."""

    def __init__(self, n_in, n):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(n_in, n, 3, stride=1 + (n_in != n), padding=1, bias=False),
            nn.BatchNorm2d(n),
        )
        self.conv2, self.bn2 = nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)
        self.shortcut = nn.Conv2d(n_in, n, 1, stride=2, bias=False) if n_in != n else nn.Identity()

    def forward(self, h):
        return self.shortcut(h) + self.f(h)


@case(
    IMAGES,
    branches=lambda L: 2 * L,
    kinds={"identity", "projection"},
    numbers={f"blocks.1.{i}.conv1.weight": INNER for i in range(4)}
    | {"blocks.1.0.shortcut.weight": (R, 1 / 2, 1 / 2), "blocks.1.3.bn2.weight": (R, 1 / 2, 1 / 2)},
)
def stages_of_blocks_called_alike(n, L):
    """The second block keeps its width: its twin is the base's second, not its first, whose fan-in is half as
    large."""
    stages = [
        nn.Sequential(*(Widening(n, n) for _ in range(L))),
        nn.Sequential(*(Widening(n if i == 0 else 2 * n, 2 * n) for i in range(L))),
    ]
    return Net(
        n,
        stages,
        nn.Conv2d(3, n, 3, padding=1),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * n, C)),
    )


class Attention(nn.Module):
    """`heads` fixed, so the head dimension grows; `scale(d)` the constant on the scores."""

    def __init__(self, n, heads=2, kv=None, scale=lambda d: d**-0.5, packed=False, norm=False):
        super().__init__()
        self.heads, self.d, self.scale, self.packed = heads, n // heads, scale, packed
        self.kv = kv or heads
        if packed:
            self.qkv = nn.Linear(n, 3 * n)
        else:
            self.q, self.k, self.v = (
                nn.Linear(n, n),
                nn.Linear(n, self.kv * self.d),
                nn.Linear(n, self.kv * self.d),
            )
        self.qn = nn.LayerNorm(self.d) if norm else nn.Identity()
        self.out = nn.Linear(n, n)

    def forward(self, h, memory=None):
        memory = h if memory is None else memory
        q, k, v = self.qkv(h).chunk(3, -1) if self.packed else (self.q(h), self.k(memory), self.v(memory))
        q, k, v = (t.unflatten(-1, (-1, self.d)).transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
        scores = self.qn(q) @ k.transpose(-1, -2) * self.scale(self.d)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, n, attention=None):
        super().__init__()
        self.n1, self.attn = nn.LayerNorm(n), attention or Attention(n)
        self.n2, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, h):
        h = h + self.attn(self.n1(h))
        return h + self.down(F.gelu(self.up(self.n2(h))))


class LM(nn.Module):
    def __init__(self, n, layers, tied=False):
        super().__init__()
        self.embed, self.pos = nn.Embedding(V, n), nn.Embedding(16, n)
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(n), nn.Linear(n, V, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case(
    IDS,
    branches=lambda L: 2 * L,
    tail={"layers.0.attn.out.weight", "layers.0.attn.out.bias"},
    roles={
        "embed.weight": "input",
        "pos.weight": "elementwise",
        "layers.0.attn.q.weight": "hidden",
        "norm.weight": "elementwise",
        "head.weight": "readout",
    },
    numbers={
        "layers.0.attn.q.weight": (R * R, R / 2 * R, R / 2 / R),
        "layers.0.attn.k.weight": INNER,
        "embed.weight": (1, 1, 1 / 2),
        "pos.weight": (1, 1, 1 / 2),
        "norm.bias": (1, 1, 1 / 2),
    },
)
def pre_norm_transformer(n, L):
    return LM(n, [Layer(n) for _ in range(L)])


F4 = 2**-0.25


@case(
    IDS,
    branches=lambda L: 2 * L,
    tail={"layers.0.attn.out.weight", "layers.0.attn.out.bias"},
    numbers={
        "layers.0.attn.qkv.weight": (R * F4, R / 2 * F4, R / 2 / F4),
        "layers.0.attn.out.weight": (R * R / F4, F4**-1 / 4, F4 / 2),
        "layers.0.attn.out.bias": (R, 1 / 2, 1 / 2),
        "embed.weight": (1, 1, 1 / 2),
        "norm.weight": (1 / 2, 1 / 2, 1),
        "norm.bias": (1 / 2, 1 / 2, 1),
    },
)
def tied_with_packed_attention(n, L):
    return LM(n, [Layer(n, Attention(n, packed=True)) for _ in range(L)], tied=True)


@case(IDS, branches=lambda L: 2 * L, numbers={"layers.0.attn.q.weight": INNER})
def attention_already_over_d(n, L):
    return LM(n, [Layer(n, Attention(n, scale=lambda d: 4 / d)) for _ in range(L)])


@case(IDS, branches=lambda L: 2 * L, numbers={"layers.0.attn.q.weight": (R / 2, R / 4, R)})
def attention_without_scale(n, L):
    return LM(n, [Layer(n, Attention(n, scale=lambda d: 1.0)) for _ in range(L)])


@case(IDS, branches=lambda L: 2 * L, numbers={"layers.0.attn.q.weight": INNER})
def only_the_number_of_heads_grows(n, L):
    return LM(n, [Layer(n, Attention(n, heads=n // 4)) for _ in range(L)])


@case(
    IDS,
    branches=lambda L: 2 * L,
    roles={"layers.0.attn.k.weight": "readout"},
    numbers={"layers.0.attn.k.weight": (1 / 2, R / 2, R), "layers.0.attn.q.weight": INNER},
)
def one_key_head_for_all(n, L):
    """n_kv d_head stays fixed: keys and values are internal readouts."""
    return LM(n, [Layer(n, Attention(n, heads=n // 4, kv=1)) for _ in range(L)])


@case(
    IDS,
    branches=lambda L: 2 * L,
    roles={"layers.0.attn.qn.weight": "elementwise"},
    numbers={"layers.0.attn.qn.weight": (R, R * R, R / 2 / R), "layers.0.attn.q.weight": INNER},
)
def norm_on_queries(n, L):
    return LM(n, [Layer(n, Attention(n, norm=True)) for _ in range(L)])


class TorchLayers(nn.Module):
    def __init__(self, n, L, norm_first):
        super().__init__()
        self.embed = nn.Embedding(V, n)
        layer = nn.TransformerEncoderLayer(n, 2, 2 * n, dropout=0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, L, enable_nested_tensor=False)
        for p in self.encoder.parameters():  # TransformerEncoder copies one draw into every layer
            if p.ndim > 1:
                nn.init.xavier_uniform_(p)
        self.head = nn.Linear(n, V)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


@case(
    IDS,
    branches=lambda L: 2 * L,
    tail={"encoder.layers.0.self_attn.out_proj.weight", "encoder.layers.0.self_attn.out_proj.bias"},
    places={"encoder.layers.0.norm1.weight": "branch"},
)
def torch_encoder_pre_norm(n, L):
    return TorchLayers(n, L, True)


@case(
    IDS,
    branches=lambda L: 2 * L,
    kinds={"post-norm"},
    tail={"encoder.layers.0.self_attn.out_proj.weight", "encoder.layers.0.self_attn.out_proj.bias"},
    places={"encoder.layers.0.norm1.weight": "stream", "encoder.layers.1.norm2.weight": "stream"},
)
def torch_encoder_post_norm(n, L):
    return TorchLayers(n, L, False)


class Parallel(nn.Module):
    def __init__(self, n, together):
        super().__init__()
        self.norm, self.attn, self.up, self.down, self.together = (
            nn.LayerNorm(n),
            Attention(n),
            nn.Linear(n, 2 * n),
            nn.Linear(2 * n, n),
            together,
        )

    def forward(self, h):
        z = self.norm(h)
        a, m = self.attn(z), self.down(F.gelu(self.up(z)))
        return h + (a + m) if self.together else h + a + m


@case(
    IDS,
    branches=lambda L: L,
    kinds={"parallel"},
    tail={"layers.0.attn.out.weight", "layers.0.attn.out.bias", "layers.0.down.weight", "layers.0.down.bias"},
)
def parallel_branches_summed_first(n, L):
    return LM(n, [Parallel(n, True) for _ in range(L)])


@case(
    IDS,
    branches=lambda L: 2 * L,
    kinds={"identity", "parallel"},
    tail={"layers.0.attn.out.weight", "layers.0.attn.out.bias"},
    places={"layers.0.norm.weight": "branch"},
)
def parallel_branches_added_in_turn(n, L):
    return LM(n, [Parallel(n, False) for _ in range(L)])


class Decoder(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n1, self.self_attn, self.n2, self.cross = (
            nn.LayerNorm(n),
            Attention(n),
            nn.LayerNorm(n),
            Attention(n),
        )

    def forward(self, h, memory):
        h = h + self.self_attn(self.n1(h))
        return h + self.cross(self.n2(h), memory)


class Seq2Seq(nn.Module):
    def __init__(self, n, L):
        super().__init__()
        self.source, self.target = nn.Embedding(V, n), nn.Embedding(V, n)
        self.encoder, self.enc_norm = nn.ModuleList(Layer(n) for _ in range(L)), nn.LayerNorm(n)
        self.decoder, self.dec_norm = nn.ModuleList(Decoder(n) for _ in range(L)), nn.LayerNorm(n)
        self.head = nn.Linear(n, V)

    def forward(self, source, target):
        m, h = self.source(source), self.target(target)
        for layer in self.encoder:
            m = layer(m)
        m = self.enc_norm(m)
        for layer in self.decoder:
            h = layer(h, m)
        return self.head(self.dec_norm(h))


@case(
    (IDS, IDS),
    branches=lambda L: 4 * L,
    tail={"encoder.0.attn.out.weight", "encoder.0.attn.out.bias"},
    places={
        "decoder.0.cross.k.weight": "branch",
        "decoder.0.cross.out.weight": "tail",
        "dec_norm.weight": "outside",
    },
    numbers={"enc_norm.weight": (1, 1, 1 / 2), "decoder.0.cross.k.weight": INNER},
)
def encoder_decoder(n, L):
    return Seq2Seq(n, L)


class PostNormEncoderDecoder(nn.Module):
    """No norm of its own at the end of the encoder: its last block's norm is what the decoder reads."""

    def __init__(self, n, L):
        super().__init__()
        self.embed = nn.Embedding(V, n)
        self.encoder = nn.ModuleList(
            PostNorm(norm=nn.LayerNorm(n), up=nn.Linear(n, 2 * n), down=nn.Linear(2 * n, n)) for _ in range(L)
        )
        self.decoder = nn.ModuleList(Block(cross=Attention(n), norm=nn.LayerNorm(n)) for _ in range(L))
        self.head = nn.Linear(n, V)

    def forward(self, source, target):
        memory, h = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            h = layer.norm(h + layer.cross(h, memory))
        return self.head(h)


@case(
    (IDS, IDS),
    branches=lambda L: 2 * L,
    kinds={"post-norm"},
    places={f"encoder.{i}.norm.weight": "stream" for i in range(4)},
    numbers={
        f"{stack}.{i}.norm.weight": (1, 1 / 2, 1 / 2) for i in range(4) for stack in ("encoder", "decoder")
    },
)
def post_norm_encoder_decoder(n, L):
    return PostNormEncoderDecoder(n, L)


class Cut(Block):
    """One projection makes what grows and what does not (latent and rotary keys; a state space's inputs and
    B, C)."""

    def f(self, h):
        large, small = self.both(self.norm(h)).split([h.shape[-1], 8], -1)
        return self.out(F.silu(large) * self.spread(small))


@case(
    X,
    tail={"blocks.0.out.weight", "blocks.0.out.bias"},
    roles={"blocks.0.both.weight": "hidden", "blocks.0.spread.weight": "input"},
    numbers={"blocks.0.both.weight": INNER, "blocks.0.spread.weight": (1, R, R / 2)},
)
def rows_that_grow_beside_rows_that_do_not(n, L):
    return Net(
        n,
        [
            Cut(
                norm=nn.LayerNorm(n),
                both=nn.Linear(n, n + 8, bias=False),
                spread=nn.Linear(8, n),
                out=nn.Linear(n, n),
            )
            for _ in range(L)
        ],
    )


class Nested(nn.Module):
    """A residual network in a residual block; inside, the depth stays."""

    def __init__(self, n):
        super().__init__()
        self.inner, self.out = nn.ModuleList(two_layer(n) for _ in range(2)), nn.Linear(n, n)

    def forward(self, h):
        z = h
        for block in self.inner:
            z = block(z)
        return h + self.out(z)


@case(
    X,
    branches=lambda L: 3 * L,
    places={"stem.weight": "outside"},
    numbers={
        "stem.weight": (1, 1, 1 / 2),
        "blocks.0.out.weight": HIDDEN_TAIL,
        "blocks.0.inner.0.down.weight": INNER,
        "blocks.0.inner.0.up.weight": INNER,
    },
)
def residual_in_residual(n, L):
    return Net(n, [Nested(n) for _ in range(L)])


class Reversible(nn.Module):
    """Two streams, each the input of the other's branches."""

    def __init__(self, n, L):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(D, n), nn.Linear(D, n), nn.Linear(2 * n, C)
        self.f, self.g = (
            nn.ModuleList(
                TwoLayer(norm=nn.LayerNorm(n), up=nn.Linear(n, 2 * n), down=nn.Linear(2 * n, n))
                for _ in range(L)
            )
            for _ in range(2)
        )

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        for f, g in zip(self.f, self.g, strict=True):
            a = a + f.f(b)
            b = b + g.f(a)
        return self.head(torch.cat([a, b], -1))


@case(
    X,
    branches=lambda L: 2 * L,
    kinds={"identity", "projection"},
    numbers={
        f"{k}.{i}.{m}.weight": v
        for k in "fg"
        for i in range(4)
        for m, v in (("up", INNER), ("down", HIDDEN_TAIL))
    }
    | {"a.weight": (1, 1, 1 / 2), "b.weight": (1, 1, 1 / 2)},
)
def reversible(n, L):
    return Reversible(n, L)


class Averaging(nn.Module):
    """Linear attention: queries are a softmax over the features, so the product with the memory is an
    average, not a sum."""

    def __init__(self, n):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = (
            nn.LayerNorm(n),
            nn.Linear(n, n),
            nn.Linear(n, n),
            nn.Linear(n, n),
            nn.Linear(n, n),
        )

    def forward(self, h):
        z = self.norm(h)
        return h + self.out(self.q(z).softmax(-1) @ (self.k(z).softmax(-2).transpose(-1, -2) @ self.v(z)))


@case(
    SEQ, numbers={"blocks.0.q.weight": INNER, "blocks.0.v.weight": INNER, "blocks.0.out.weight": HIDDEN_TAIL}
)
def attention_that_averages_features(n, L):
    return Net(n, [Averaging(n) for _ in range(L)])


class Mixture(nn.Module):
    """A router over four experts kept in 3-D tensors; every expert takes part."""

    def __init__(self, n, experts=4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(n), nn.Linear(n, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, n, 2 * n) * n**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * n, n) * (2 * n) ** -0.5)

    def forward(self, h):
        z = self.norm(h)
        p = self.router(z).softmax(-1)
        y = torch.einsum("bi,eij->ebj", z, self.up).relu()
        y = torch.einsum("ebj,ejk->ebk", y, self.down)
        return h + torch.einsum("be,ebk->bk", p, y)


@case(
    X,
    tail={"blocks.0.down"},
    roles={"blocks.0.router.weight": "readout", "blocks.0.up": "hidden"},
    places={"blocks.0.router.weight": "branch", "blocks.0.down": "tail"},
    numbers={"blocks.0.router.weight": (1 / 2, R / 2, R), "blocks.0.up": INNER, "blocks.0.down": HIDDEN_TAIL},
)
def mixture_of_experts(n, L):
    return Net(n, [Mixture(n) for _ in range(L)])


class Sparse(nn.Module):
    """Experts as modules, each token to one of them: some are not visited by the example."""

    def __init__(self, n, experts=8):
        super().__init__()
        self.router = nn.Linear(n, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)) for _ in range(experts)
        )

    def forward(self, h):
        weight, index = self.router(h).softmax(-1).max(-1)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows = torch.where(index == e)[0]
            if len(rows):
                out = out.index_add(0, rows, weight[rows, None] * expert(h[rows]))
        return h + out


EXPERTS = {
    "0.weight": INNER,
    "0.bias": (1, R, R / 2),
    "2.weight": HIDDEN_TAIL,
    "2.bias": (R, 1 / 2, 1 / 2),
}  # visited or not


@case(
    X,
    roles={"blocks.0.router.weight": "readout"},
    places={"blocks.0.router.weight": "branch"},
    numbers={f"blocks.{b}.experts.{e}.{k}": v for b in (0, 3) for e in range(8) for k, v in EXPERTS.items()},
)
def experts_not_all_visited(n, L):
    return Net(n, [Sparse(n) for _ in range(L)])


class Shared(nn.Module):
    """One block run `depth` times (ALBERT, a loop)."""

    def __init__(self, n, L):
        super().__init__()
        self.stem, self.block, self.L, self.head = nn.Linear(D, n), two_layer(n), L, nn.Linear(n, C)

    def forward(self, x):
        h = self.stem(x)
        for _ in range(self.L):
            h = self.block(h)
        return self.head(h)


@case(
    X,
    tail={"block.down.weight", "block.down.bias"},
    places={"block.up.weight": "branch", "block.down.weight": "tail"},
    numbers={"block.up.weight": (R, 1 / 2, 1 / 2), "block.down.weight": (R / 2, 1 / 4, 1)},
)
def shared_layers(n, L):
    return Shared(n, L)


class OwnMultiplier(Block):
    def forward(self, h):
        return h + self.c * self.f(h)


@case(X, numbers={"blocks.0.fc.weight": (R, R / 2, R / 2)})
def own_multiplier_over_sqrt_depth(n, L):
    """The model divides by sqrt(L) itself: what is wanted is there, the stored tail is only told so."""
    return Net(n, [OwnMultiplier(fc=nn.Linear(n, n), c=L**-0.5) for _ in range(L)])


@case(X, numbers={"blocks.0.fc.weight": HIDDEN_TAIL})
def own_constant_multiplier(n, L):
    return Net(n, [OwnMultiplier(fc=nn.Linear(n, n), c=0.3) for _ in range(L)])


class Minus(Block):
    def forward(self, h):
        return h - self.f(h)


@case(X, tail={"blocks.0.fc.weight", "blocks.0.fc.bias"}, numbers={"blocks.0.fc.weight": HIDDEN_TAIL})
def subtracted_branch(n, L):
    return Net(n, [Minus(fc=nn.Linear(n, n)) for _ in range(L)])


class DeepNorm(TwoLayer):
    def forward(self, h):
        return self.norm(self.keep * h + self.down(F.gelu(self.up(h))))


@case(
    X,
    kinds={"scaled"},
    tail={"blocks.0.down.weight", "blocks.0.down.bias"},
    numbers={"blocks.0.down.weight": (R * R * F4**-1, F4**-1 / 4, F4 / 2)},
)
def weight_on_the_skip(n, L):
    """DeepNorm: the skip times (2L)^1/4. What counts is the branch relative to it."""
    return Net(
        n,
        [
            DeepNorm(
                norm=nn.LayerNorm(n), up=nn.Linear(n, 3 * n), down=nn.Linear(3 * n, n), keep=(2 * L) ** 0.25
            )
            for _ in range(L)
        ],
    )


class WeightNormed(Block):
    def __init__(self, n):
        super().__init__(fc=nn.utils.parametrizations.weight_norm(nn.Linear(n, n)))


@case(
    X,
    tail={"blocks.0.fc.parametrizations.weight.original0", "blocks.0.fc.bias"},
    roles={
        "blocks.0.fc.parametrizations.weight.original0": "elementwise",
        "blocks.0.fc.parametrizations.weight.original1": "hidden",
    },
)
def weight_norm(n, L):
    return Net(n, [WeightNormed(n) for _ in range(L)])


class Conv1D(nn.Module):
    """GPT-2's layer: the weight is stored (in, out)."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(n_in, n_out) * 0.02),
            nn.Parameter(torch.zeros(n_out)),
        )

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


@case(
    X,
    tail={"blocks.0.down.weight", "blocks.0.down.bias"},
    roles={"head.weight": "readout", "stem.weight": "input"},
    numbers={"head.weight": (1 / 2, 1 / 2, 1), "stem.weight": (1, 1, 1 / 2), "blocks.0.up.weight": INNER},
)
def weights_stored_in_out(n, L):
    blocks = [TwoLayer(norm=nn.LayerNorm(n), up=Conv1D(n, 3 * n), down=Conv1D(3 * n, n)) for _ in range(L)]
    return Net(n, blocks, Conv1D(D, n), Conv1D(n, C))


class InPlace(Block):
    def forward(self, h):
        z = self.f(h)
        z += h
        return z


@case(X, tail={"blocks.0.fc.weight", "blocks.0.fc.bias"}, numbers={"blocks.0.fc.weight": HIDDEN_TAIL})
def added_in_place(n, L):
    return Net(n, [InPlace(fc=nn.Linear(n, n)) for _ in range(L)])


@case(X, tail={"1.fc.weight", "1.fc.bias"}, roles={"0.weight": "input"})
def numbered_sequential(n, L):
    """The base's number 3 is a head, the deeper model's number 3 a block."""
    return nn.Sequential(nn.Linear(D, n), *[Block(fc=nn.Linear(n, n)) for _ in range(L)], nn.Linear(n, C))


class EmbedScale(LM):
    def forward(self, ids):
        h = self.embed(ids) * self.embed.weight.shape[1] ** 0.5
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case(IDS, branches=lambda L: 2 * L, numbers={"embed.weight": (R, R, R)})
def embedding_times_sqrt_width(n, L):
    net = EmbedScale(n, [Layer(n) for _ in range(L)])
    del net.pos
    return net


class ScaledHead(LM):
    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h) * h.shape[-1] ** -0.5)


@case(
    IDS,
    branches=lambda L: 2 * L,
    numbers={"embed.weight": (1, 1, 1 / 2), "norm.weight": (R, R, R), "norm.bias": (R, R, R)},
)
def tied_head_times_width_to_minus_half(n, L):
    """T5: half of the readout multiplier 1/m is in the model already."""
    net = ScaledHead(n, [Layer(n) for _ in range(L)], tied=True)
    del net.pos
    return net


class SharedAttention(nn.Module):
    def __init__(self, n, L):
        super().__init__()
        self.embed, self.layer, self.L, self.norm, self.head = (
            nn.Embedding(V, n),
            Layer(n),
            L,
            nn.LayerNorm(n),
            nn.Linear(n, V),
        )

    def forward(self, ids):
        h = self.embed(ids)
        for _ in range(self.L):
            h = self.layer(h)
        return self.head(self.norm(h))


@case(
    IDS,
    branches=lambda L: 2 * L,
    tail={"layer.attn.out.weight", "layer.attn.out.bias"},
    numbers={
        "layer.attn.q.weight": (R * R, R / 2, 1 / 2 / R),
        "layer.attn.k.weight": (R, 1 / 2, 1 / 2),
        "layer.attn.out.weight": (R / 2, 1 / 4, 1),
    },
)
def shared_attention_layers(n, L):
    """The attention factor is folded once, however often the layer runs."""
    return SharedAttention(n, L)


class ByHand(nn.Module):
    def __init__(self, n, L):
        super().__init__()
        self.body = Net(n, [Block(fc=nn.Linear(n, n)) for _ in range(L)], head=nn.Identity())
        self.w = nn.Parameter(torch.full((n,), n**-0.5))

    def forward(self, x):
        return (self.body(x) * self.w).sum(-1)


@case(X, roles={"w": "readout"}, numbers={"w": (1 / 2, 1 / 2, 1)})
def readout_written_by_hand(n, L):
    return ByHand(n, L)


# -- no residual branch at all -------------------------------------------------------------------------------


@case(
    X,
    branches=lambda L: 0,
    kinds=set(),
    roles={"0.weight": "input", "2.weight": "hidden", "4.weight": "readout"},
)
def plain_mlp(n, L):
    return nn.Sequential(nn.Linear(D, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, C))


@case(
    IMAGES,
    branches=lambda L: 0,
    kinds=set(),
    roles={"0.weight": "input", "3.weight": "hidden", "7.weight": "readout"},
)
def vgg(n, L):
    return nn.Sequential(
        nn.Conv2d(3, n, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(n, n, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(n, C),
    )


class Recurrent(nn.Module):
    def __init__(self, n, cls):
        super().__init__()
        self.rnn, self.head = cls(D, n, batch_first=True), nn.Linear(n, C)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


RNN_ROLES = {
    "rnn.weight_ih_l0": "input",
    "rnn.weight_hh_l0": "hidden",
    "head.weight": "readout",
    "rnn.bias_hh_l0": "elementwise",
}
RNN_NUMBERS = {"rnn.weight_ih_l0": (1, 1, 1 / 2), "rnn.weight_hh_l0": (R, 1 / 2, 1 / 2)}


@case(SEQ, branches=lambda L: 0, kinds=set(), roles=RNN_ROLES, numbers=RNN_NUMBERS)
def lstm(n, L):
    return Recurrent(n, nn.LSTM)


@case(SEQ, branches=lambda L: 0, kinds=set(), roles=RNN_ROLES, numbers=RNN_NUMBERS)
def gru(n, L):
    return Recurrent(n, nn.GRU)


@case(SEQ, branches=lambda L: 0, kinds=set(), roles=RNN_ROLES, numbers=RNN_NUMBERS)
def elman_rnn(n, L):
    return Recurrent(n, nn.RNN)


class Dense(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b, self.c, self.head = (
            nn.Linear(D, n),
            nn.Linear(D + n, n),
            nn.Linear(D + 2 * n, n),
            nn.Linear(n, C),
        )

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.cat([x, h], -1)
        h = torch.cat([h, torch.relu(self.b(h))], -1)
        return self.head(torch.relu(self.c(h)))


@case(X, branches=lambda L: 0, kinds=set(), roles={"head.weight": "readout"})
def dense_concatenation(n, L):
    return Dense(n)


class Highway(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.h1, self.h2, self.t = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, x):
        t = torch.sigmoid(self.t(x))
        return t * self.h2(torch.relu(self.h1(x))) + (1 - t) * x


@case(X, branches=lambda L: 0, kinds=set())
def highway_gates(n, L):
    return Net(n, [Highway(n) for _ in range(2)])


class TwoTowers(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(D, n), nn.ReLU(), nn.Linear(n, n))
        self.b = nn.Sequential(nn.Linear(D, n), nn.Tanh(), nn.Linear(n, n))
        self.head = nn.Linear(n, C)

    def forward(self, x):
        return self.head(torch.relu(self.a(x) + self.b(x)))


@case(X, branches=lambda L: 0, kinds=set())
def two_tower_sum(n, L):
    return TwoTowers(n)


class WideAndDeep(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.wide, self.deep = (
            nn.Linear(D, C),
            nn.Sequential(nn.Linear(D, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, C)),
        )

    def forward(self, x):
        return self.wide(x) + self.deep(x)


@case(X, branches=lambda L: 0, kinds=set(), overrides={"deep.*": "skip"}, roles={"deep.4.weight": "readout"})
def wide_and_deep_said_to_be_towers(n, L):
    return WideAndDeep(n)
