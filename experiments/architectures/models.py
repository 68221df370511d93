"""A residual recurrent network and a residual graph convolution, in plain torch, with their data from the
digits.

recurrent   h^{l+1}_t = h^l_t + c O_l s_t,   s_t = tanh(W_l h^l_t + V_l s_{t-1})       rows of the image are
the time steps
graph       h^{l+1}   = h^l + c A relu(h^l) W_l                                        A: the 8 nearest
neighbours, normalised
"""

import functools

import torch
from sklearn.datasets import load_digits
from torch import nn

NODES, LABELLED = 600, 300


def matrix(fan_in, fan_out, gain=1.0):
    layer = nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(layer.weight, std=gain * fan_in**-0.5)
    return layer


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.read, self.keep, self.out = matrix(width, width), matrix(width, width, 0.7), matrix(width, width)

    def forward(self, h):
        s, out = torch.zeros_like(h[:, 0]), []
        driven = self.read(h)
        for t in range(h.shape[1]):
            s = torch.tanh(driven[:, t] + self.keep(s))
            out.append(s)
        return self.out(torch.stack(out, 1))


class RNN(nn.Module):
    def __init__(self, width, depth, scale):
        super().__init__()
        self.stem, self.head, self.scale = matrix(8, width), matrix(width, 10), scale
        self.layers = nn.ModuleList(Recurrent(width) for _ in range(depth))

    def forward(self, x):
        h = self.stem(x.flatten(1).unflatten(1, (8, 8)))
        for layer in self.layers:
            h = h + self.scale * layer(h)
        return self.head(torch.tanh(h[:, -1]))


def rnn(width, depth, *, scale=0.5):
    return RNN(width, depth, scale)


@functools.cache
def graph():
    """(features, labels, normalised adjacency) of the first 600 digits."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x[:NODES], dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    near = torch.cdist(x, x).topk(9, largest=False).indices
    a = torch.zeros(NODES, NODES).scatter_(1, near, 1.0)
    a = ((a + a.T) > 0).float()
    degree = a.sum(1).rsqrt()
    return x, torch.tensor(y[:NODES]), degree[:, None] * a * degree[None, :]


class GCN(nn.Module):
    def __init__(self, width, depth, scale):
        super().__init__()
        self.register_buffer("adjacency", graph()[2].clone(), persistent=False)
        self.stem, self.head, self.scale = matrix(64, width), matrix(width, 10), scale
        self.layers = nn.ModuleList(matrix(width, width, 2**0.5) for _ in range(depth))

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = h + self.scale * (self.adjacency @ layer(torch.relu(h)))
        return self.head(torch.relu(h))


def gcn(width, depth, *, scale=3**-0.5):
    return GCN(width, depth, scale)


def nodes(split, seed, step):
    """All nodes at once: the first half is labelled for training, the second for the test."""
    x, y, _ = graph()
    target = y.clone()
    target[LABELLED:] = -100
    if split != "train":
        target = y.clone()
        target[:LABELLED] = -100
    return x, target


def example():
    return graph()[0]
