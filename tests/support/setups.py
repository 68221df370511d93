"""Set-ups written by hand, without trimtab: multipliers in the forward, rates per parameter; right, or with
one bug each."""

import torch
from nets import ResidualMLP, Transformer
from torch import nn

BASE = (32, 4)
BUGS = {  # bug -> (part of the first culprit's module, part of its cause)
    "unscaled readout": ("head", "readout"),
    "wrong attention scale": ("attn.q", "attention scale"),
    "forgotten branch": ("blocks", "not scaled with depth"),
    "double depth init": ("blocks", "scaled twice"),
    "bias with the wrong rate": ("bias", "bias"),
    "tied head unscaled": ("head", "tied head"),
    "embeddings scaled by mistake": ("embed", "embedding"),
    "decay not scaled with width": ("weight", "decay not scaled with width"),
}


def transformer(bug="", alpha=0.5):
    """(build, optimizer) of a pre-norm transformer under depth-mup (alpha 1/2) or completep (1)."""

    def build(n, L):
        m, m_L = n / BASE[0], L / BASE[1]
        c = m_L**-alpha
        d = n // 4
        model = Transformer(
            n,
            L,
            tied="tied" in bug,
            c=(c, 1.0 if bug == "forgotten branch" else c),
            out=1.0 if bug in ("unscaled readout", "tied head unscaled") else 1 / m,
        )
        for layer in model.layers:
            layer.attn.scale = d**-0.5 if bug == "wrong attention scale" else (BASE[0] // 4) ** 0.5 / d
            if bug == "double depth init":
                with torch.no_grad():
                    layer.attn.out.weight *= m_L**-0.5
                    layer.down.weight *= m_L**-0.5
        if bug != "unscaled readout" and "tied" not in bug:
            nn.init.normal_(model.head.weight, std=BASE[0] ** -0.5)
        return model

    def optimizer(model, n, L, lr=2e-3, decay=0.1):
        m, m_L = n / BASE[0], L / BASE[1]
        groups = []
        for name, p in model.named_parameters():
            rate = 1.0
            if name.startswith("layers."):
                rate = m_L ** (alpha - 1) / (m if p.ndim == 2 else 1)
            if (
                name.endswith("bias")
                and bug == "bias with the wrong rate"
                and "norm" not in name
                and ".n" not in name
            ):
                rate /= m
            if name.startswith("embed") and bug == "embeddings scaled by mistake":
                rate /= m
            groups.append(
                dict(
                    params=[p],
                    lr=lr * rate,
                    weight_decay=decay if bug == "decay not scaled with width" else decay / rate,
                )
            )
        return torch.optim.AdamW(groups)

    return build, optimizer


def mlp(bug="", cls=torch.optim.Adam):
    """(build, optimizer) of a residual MLP, one matrix per branch, under depth-mup."""

    def build(n, L):
        m, m_L = n / BASE[0], L / BASE[1]
        model = ResidualMLP(n, L, c=1.0 if bug == "forgotten branch" else m_L**-0.5)
        with torch.no_grad():
            for block in model.blocks:
                block.fc.weight *= m_L**-0.5 if bug == "double depth init" else 1.0
                block.fc.bias.zero_()
            model.head.weight *= 1.0 if bug == "unscaled readout" else m**-0.5
            model.stem.weight *= m**-0.5 if bug == "embeddings scaled by mistake" else 1.0
            model.stem.bias.zero_()
        return model

    def optimizer(model, n, L):
        m, m_L = n / BASE[0], L / BASE[1]
        adam = cls is not torch.optim.SGD
        groups = []
        for name, p in model.named_parameters():
            if name == "head.weight":
                rate = 1.0 if bug == "unscaled readout" else 1 / m
            elif name == "head.bias":
                rate = 1.0
            elif name.startswith("blocks"):
                rate = m_L**-0.5 * (
                    (1 / m if p.ndim == 2 else 1.0) if adam else (1.0 if p.ndim == 2 else m) * m_L**0.5
                )
            else:
                rate = 1.0 if adam else m
            if name.endswith("bias") and bug == "bias with the wrong rate" and name != "head.bias":
                rate /= m
            decay = 0.1 if bug == "decay not scaled with width" else 0.1 / rate
            groups.append(
                dict(
                    params=[p],
                    lr=(2e-3 if adam else 0.1) * rate,
                    weight_decay=decay if cls is torch.optim.AdamW else 0.0,
                )
            )
        return cls(groups)

    return build, optimizer
