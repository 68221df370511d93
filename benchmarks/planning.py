"""Planning large models on the meta device: Llama shapes of 1, 8 and 70 billion parameters, beside mup.

    python benchmarks/planning.py

Guarantees: 8B under 15 s and 2 GB, 70B under 60 s. Needs the [hf] extra; nothing is downloaded. mup 1.0.0
refuses Llama's head, so what is timed of it is `set_base_shapes` with that check off, against a base of the
same depth, which is all it can compare.
"""

from __future__ import annotations

import os
import resource
import statistics
from collections.abc import Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from records import Row, compare, in_turns, main, version

import trimtab

# width, depth, heads, key and value heads, hidden width
SIZES = {"1B": (2048, 16, 32, 8, 8192), "8B": (4096, 32, 32, 8, 14336), "70B": (8192, 80, 64, 8, 28672)}
BASE = (256, 4, 4, 2, 896)
TINY = {"tiny": (64, 2, 2, 1, 128)}
LESS = (
    "mup compares shapes: no forward, no branches, no depth, no init law, nothing verified; with its check "
    "on it refuses this model: "
)


def build(width: int, depth: int, heads: int, kv_heads: int, hidden: int) -> torch.nn.Module:
    """A Llama of this shape; narrow ones only stand in for it in tests, with few words."""
    config = transformers.LlamaConfig(
        vocab_size=128256 if width >= BASE[0] else 1024,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
    )
    return transformers.LlamaForCausalLM(config)


def on_meta(*sizes: int) -> torch.nn.Module:
    with torch.device("meta"):
        return build(*sizes)


def refusal(model: torch.nn.Module, shapes: list[torch.nn.Module]) -> str:
    """mup's own words on this model."""
    import mup

    try:
        mup.set_base_shapes(model, shapes[0], delta=shapes[1], rescale_params=False)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return "it does not"


def planning_rows(name: str, sizes: tuple[int, ...], base: torch.nn.Module, rounds: int) -> Iterator[Row]:
    model, example = on_meta(*sizes), dict(input_ids=torch.randint(0, 1000, (2, 8)))
    billions = sum(q.numel() for q in model.parameters()) / 1e9
    what = f"plan Llama {name} ({billions:.1f} B parameters, {sizes[1]} layers)"
    sides: dict[str, Callable[[], object]] = {
        "trimtab": lambda: trimtab.parametrize(model, base, example=example, apply=False)
    }
    peers = {}
    if version("mup"):
        import mup

        shapes = [on_meta(BASE[0] * k, sizes[1], *BASE[2:4], BASE[4] * k) for k in (1, 2)]
        name = f"mup {version('mup')}, its check off, width only"
        peers[name] = LESS + refusal(on_meta(*sizes), shapes)
        off = dict(rescale_params=False, do_assert=False)
        sides[name] = lambda: mup.set_base_shapes(model, shapes[0], delta=shapes[1], **off)
    taken = in_turns(sides, rounds)
    yield from compare(taken, what, peers, 1, "s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    why = (
        f"mup needs a base of the same depth; this one has {BASE[1]} layers. Peak memory so far {peak:.2f} GB"
    )
    peer = f"mup {version('mup') or '1.0.0'}, over depth"
    yield Row(what=what, peer=peer, unit="s", ours=statistics.median(taken["trimtab"]), why=why)


def rows(tiny: bool = False) -> Iterator[Row]:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    base = build(*((32, 2, 2, 1, 64) if tiny else BASE))
    for name, sizes in (TINY if tiny else SIZES).items():
        yield from planning_rows(name, sizes, base, 1 if tiny else 3)


if __name__ == "__main__":
    main(rows)
