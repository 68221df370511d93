"""A Hugging Face Llama, untouched: tuned narrow and shallow, trained wider and deeper. Needs transformers.

    python examples/huggingface_llama.py [--text FILE] [--steps N]

Characters of a text file (this script by default: offline, and small enough to be learned by heart). The
model class, its forward and its checkpoint stay what they are; `save_pretrained` writes an ordinary Llama.
"""

import argparse
from pathlib import Path

import torch
import transformers

import trimtab


def build(width: int, depth: int, vocabulary: int) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def train(model, optimizer, ids: torch.Tensor, steps: int, clip) -> float:
    """The mean training loss of the last ten steps."""
    draw, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        starts = torch.randint(len(ids) - 32, (8,), generator=draw)
        batch = torch.stack([ids[i : i + 32] for i in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        clip(1.0)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / len(losses[-10:])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--text", type=Path, default=Path(__file__))
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--rates", type=float, nargs="*", default=[2.0**-9, 2.0**-8, 2.0**-7, 2.0**-6])
parser.add_argument("--save", type=Path, help="a folder for the trained model")
given = parser.parse_args()
text = given.text.read_text(encoding="utf-8")
letters = sorted(set(text))
ids = torch.tensor([letters.index(c) for c in text])
example = dict(input_ids=ids[None, :32])

losses = {}
for rate in given.rates:
    torch.manual_seed(0)
    small = build(64, 2, len(letters))
    p = trimtab.parametrize(small, build(64, 2, len(letters)), example=example)  # every factor is 1
    losses[rate] = train(small, p.optimizer(torch.optim.AdamW, lr=rate), ids, given.steps, p.clip_grad_norm_)
    print(f" 64 wide, 2 blocks, lr {rate:.5f}: loss {losses[rate]:.3f}")
best = min(losses, key=losses.get)

torch.manual_seed(0)
model = build(256, 8, len(letters))
p = trimtab.parametrize(model, build(64, 2, len(letters)), example=example, scheme="completep")
print(f"\ntried by one step: {p.proof.verdict}; notes: {len(p.notes)}")
loss = train(model, p.optimizer(torch.optim.AdamW, lr=best), ids, given.steps, p.clip_grad_norm_)
print(f"256 wide, 8 blocks, lr {best:.5f} through trimtab: loss {loss:.3f}")
if given.save:
    model.save_pretrained(given.save)
    print(f"saved to {given.save}: an ordinary Llama")
