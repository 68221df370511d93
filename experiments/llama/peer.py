"""The mup package beside trimtab on the same untouched models: what it says of them, and its rate over width.

    TRIMTAB_DATA=... python experiments/llama/peer.py     some minutes; writes peer.csv, mup_width.csv

`peer.csv`: each model as Hugging Face builds it, then with its readout replaced by `MuReadout`, over width
and over depth; the first line of what is raised. `mup_width.csv`: the Llama with that readout, trained under
`MuAdamW` with the question's batches, schedule and rates, in the columns of the other tables.
"""

import math
from pathlib import Path

import mup
import numpy as np
import pandas as pd
import torch

from trimtab.runs.config import RunConfig
from trimtab.runs.losses import cross_entropy, forward
from trimtab.runs.published_models import load_published
from trimtab.runs.results import smooth
from trimtab.runs.tasks import prepare

HERE = Path(__file__).resolve().parent
MODELS = {
    "llama": ("lm_head", dict(vocab_size=65, num_attention_heads=2, num_key_value_heads=2)),
    "vit": ("classifier", dict(image_size=8, patch_size=4, num_labels=10, num_attention_heads=2)),
}
RUN = dict(
    model="hf:llama",
    model_options={"num_attention_heads": 2, "num_key_value_heads": 2},
    data="text",
    data_options={"context": 32},
    batch_size=16,
    optimizer="adamw",
    steps=120,
    warmup=10,
    schedule="linear",
    eval_examples=0,
)
WIDTHS, RATES, SEEDS = (32, 64, 128), 2.0 ** np.arange(-9, -4.9, 0.5), range(10)


def with_readout(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """The model with its last layer in the package's class, weights kept."""
    old = getattr(model, name)
    new = mup.MuReadout(old.in_features, old.out_features, bias=old.bias is not None)
    new.load_state_dict(old.state_dict())
    setattr(model, name, new)
    return model


def tried(name: str, size: tuple[int, int], readout: bool) -> str:
    """What `set_base_shapes` says of a model of this size against a base of (32, 2)."""
    head, fields = MODELS[name]
    build = load_published(name)[0]
    change = with_readout if readout else lambda model, _: model
    model, base, other = (change(build(*s, **fields), head) for s in (size, (32, 2), (64, 2)))
    try:
        mup.set_base_shapes(model, base, delta=other)
    except Exception as error:  # the table is of what it raises
        text = (str(error).strip() or "no text").splitlines()[0]
        # what follows a brace is a set of all new names, in another order each time
        return f"{type(error).__name__}: {text.partition(' {')[0].partition('. To resolve')[0]}"
    return "runs"


def trained(width: int, lr: float, seed: int, task: dict) -> dict:
    """One run of the Llama under MuAdamW."""
    config = RunConfig(**task, width=width, depth=2, base=(32, 2), scheme="sp", lr=lr, seed=seed)
    made = prepare(config)
    model = with_readout(made.start(seed), "lm_head")
    build, fields = load_published("llama")[0], MODELS["llama"][1]
    others = [with_readout(build(w, 2, **fields), "lm_head") for w in (32, 64)]
    mup.set_base_shapes(model, others[0], delta=others[1])
    optimizer = mup.MuAdamW(model.parameters(), lr=lr, weight_decay=0.0)
    begun = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step in range(config.steps):
        warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
        left = (config.steps - step) / max(1, config.steps - config.warmup)
        for group, rate in zip(optimizer.param_groups, begun, strict=True):
            group["lr"] = rate * min(warm, left)
        batch = made.batch(seed, step)
        loss = cross_entropy(forward(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    end = float(smooth(np.array(losses), config.steps)[-1])
    done = math.isfinite(end)
    row = dict(scheme="mup 1.0.0", width=width, depth=2, seed=seed, lr=float(f"{lr:.6g}"))
    row |= dict(state="done" if done else "diverged", train_loss=float(f"{end:.6g}") if done else None)
    return row | dict(initial_loss=float(f"{losses[0]:.6g}"), collapsed=not done or end >= losses[0])


def main(widths=WIDTHS, rates=RATES, seeds=SEEDS, task=None, out: Path = HERE) -> None:
    torch.set_num_threads(1)
    said = [
        dict(model=f"hf:{name}", readout="MuReadout" if readout else "untouched", over=over)
        | dict(says=tried(name, size, readout))
        for name in MODELS
        for readout in (False, True)
        for over, size in (("width 32 to 128", (128, 2)), ("depth 2 to 4", (32, 4)))
    ]
    pd.DataFrame(said).to_csv(out / "peer.csv", index=False)
    runs = [trained(w, float(lr), s, task or RUN) for w in widths for lr in rates for s in seeds]
    pd.DataFrame(runs).to_csv(out / "mup_width.csv", index=False)


if __name__ == "__main__":
    main()
