"""torch_geometric: eight graph networks on one small ring with chords."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from foreign.batches import CLASSES, Foreign
from torch import nn

NODES, INPUTS = 48, 12
G = torch.Generator().manual_seed(4)
X = torch.randn(NODES, INPUTS, generator=G)
_RING = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
_CHORDS = torch.randint(0, NODES, (2, 2 * NODES), generator=G)
_ONE_WAY = torch.cat([_RING, _CHORDS], 1)
EDGES = torch.cat([_ONE_WAY, _ONE_WAY.flip(0)], 1)
DEGREES = torch.bincount(torch.bincount(EDGES[1], minlength=NODES))
_SMOOTH = (X + torch.zeros_like(X).index_add(0, EDGES[1], X[EDGES[0]])) @ torch.randn(
    INPUTS, CLASSES, generator=G
)
LABELS = _SMOOTH.argmax(-1)


def _of(name, **options):
    def build(n, depth):
        import torch_geometric.nn as graph

        return getattr(graph, name)(INPUTS, n, depth, CLASSES, **options)

    return build


def gcn2(n, depth):
    """GCNII: every layer adds a share of the first (arXiv 2007.02133)."""
    import torch_geometric.nn as graph

    class GCN2(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(INPUTS, n), nn.Linear(n, CLASSES)
            self.layers = nn.ModuleList(
                graph.GCN2Conv(n, alpha=0.1, theta=0.5, layer=i + 1) for i in range(depth)
            )

        def forward(self, x, edge_index):
            h = x0 = self.stem(x).relu()
            for layer in self.layers:
                h = layer(h, x0, edge_index).relu()
            return self.head(h)

    return GCN2()


def deep_gcn(n, depth):
    """DeeperGCN's residual blocks (arXiv 2006.07739), as in the package's own example."""
    import torch_geometric.nn as graph

    class DeepGCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(INPUTS, n), nn.Linear(n, CLASSES)
            self.layers = nn.ModuleList(
                graph.DeepGCNLayer(
                    graph.GENConv(n, n, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer"),
                    nn.LayerNorm(n),
                    nn.ReLU(),
                    block="res+",
                )
                for _ in range(depth)
            )

        def forward(self, x, edge_index):
            h = self.stem(x)
            for layer in self.layers:
                h = layer(h, edge_index)
            return self.head(self.layers[0].act(self.layers[0].norm(h)))

    return DeepGCN()


def transformer_conv(n, depth):
    """Graph transformer layers with a residual of their own."""
    import torch_geometric.nn as graph

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(INPUTS, n), nn.Linear(n, CLASSES)
            self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(depth))
            self.layers = nn.ModuleList(graph.TransformerConv(n, n // 4, heads=4) for _ in range(depth))

        def forward(self, x, edge_index):
            h = self.stem(x)
            for norm, layer in zip(self.norms, self.layers, strict=True):
                h = h + layer(norm(h), edge_index).relu()
            return self.head(h)

    return Transformer()


def _loss(out):
    return F.cross_entropy(out, LABELS)


def _model(name, build, **options):
    return Foreign("torch_geometric", name, build, dict(x=X, edge_index=EDGES), _loss, (64, 4), **options)


MODELS = [
    _model("GCN", _of("GCN")),
    _model("GAT", _of("GAT", heads=4)),
    _model("GraphSAGE", _of("GraphSAGE")),
    _model("GIN", _of("GIN", norm="batch_norm")),
    _model("PNA", _of("PNA", aggregators=["mean", "max", "std"], scalers=["identity"], deg=DEGREES)),
    _model("EdgeCNN", _of("EdgeCNN", norm="batch_norm")),
    _model("GCN2", gcn2),
    _model("DeepGCN", deep_gcn),
    _model("TransformerConv", transformer_conv),
]
