"""Do published families move alike at every size? AdamW 1e-3, three seeds, steps 1 to 5, 4x width and 8x depth.

    python experiments/families_flat.py                  all six families from a base 64 wide and 2 blocks deep
    python experiments/families_flat.py --base 512 gpt2  some of them, over width from a wider base
    python experiments/families_flat.py --embeddings 50  with embeddings this many times larger in model and base

Prints the slope of log RMS change against log size, on a fixed batch, of the residual stream (input of the final norm or
pooling) and of the logits, under depth-mup, completep and sp. LOG.md has what was seen.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from families import FAMILIES

import trimtab

STREAM = {"gpt2": "transformer.ln_f", "llama-gqa": "model.norm", "gemma2": "model.norm", "qwen3": "model.norm", "vit": "vit.layernorm", "resnet": "resnet.pooler"}
WIDTHS = [(64, 2), (128, 2), (256, 2)]
DEPTHS = [(64, 2), (64, 4), (64, 8), (64, 16)]


def change(name, size, base, scheme, seed, embeddings, steps=5):
    plain, example, _, _ = FAMILIES[name]

    def build(width, depth):
        model = plain(width, depth)
        with torch.no_grad():
            for key, q in model.named_parameters():
                if "embed_tokens" in key or "wte" in key:
                    q.mul_(embeddings)
        return model

    torch.manual_seed(seed)
    model = build(*size).train()
    overrides = {"*norm*.weight": {"weight_decay": 0}} if name.startswith("gemma2") else None
    p = trimtab.parametrize(model, build(*base), scheme=scheme, example=example, overrides=overrides)
    optimizer = p.optimizer(torch.optim.AdamW, lr=1e-3)
    seen = {}
    model.get_submodule(STREAM[name]).register_forward_pre_hook(lambda _, args: seen.update(h=args[0].detach().clone()))
    target = example.get("input_ids", torch.tensor([0, 1])).flatten()

    def look():
        with torch.no_grad():
            logits = model(**example).logits
        return seen["h"], logits

    start, out = look(), []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(**example).logits
        F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target).backward()
        optimizer.step()
        out.append([(a - b).pow(2).mean().sqrt().item() for a, b in zip(look(), start, strict=True)])
    return torch.tensor(out)


def slopes(name, sizes, scheme, embeddings=1.0, seeds=3):
    rows = [torch.stack([change(name, size, sizes[0], scheme, seed, embeddings) for seed in range(seeds)]).mean(0).log() for size in sizes]
    x = torch.tensor([math.log(2.0) * i for i in range(len(sizes))])
    x = x - x.mean()
    return (torch.stack(rows) * x[:, None, None]).sum(0) / x.square().sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(STREAM))
    parser.add_argument("--base", type=int, help="only over width, from this one")
    parser.add_argument("--embeddings", type=float, default=1.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    axes = [("width", "depth-mup"), ("depth", "depth-mup"), ("depth", "completep"), ("width", "sp"), ("depth", "sp")]
    widths = [(given.base * k, 2) for k in (1, 2, 4)] if given.base else WIDTHS
    for name in given.names:
        for axis, scheme in axes[:1] if given.base else axes:
            found = slopes(name, widths if axis == "width" else DEPTHS, scheme, given.embeddings)
            stream, logits = ([f"{v:+.2f}" for v in found[:, i].tolist()] for i in (0, 1))
            print(f"{name:10s} {axis} {scheme:10s} stream {' '.join(stream)}   logits {' '.join(logits)}", flush=True)


if __name__ == "__main__":
    main()
