"""Planning large models on the meta device: seconds and peak memory against layers and parameters.

    python benchmarks/planning.py            8B (32 layers) and 70B (80 layers) Llama shapes
    python benchmarks/planning.py 8B

The guarantees: 8B under 15 s and 2 GB, 70B under 60 s. Needs the [hf] extra; nothing is downloaded.
"""

import os
import resource
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import trimtab

SIZES = {"1B": (2048, 16, 32, 8, 8192), "8B": (4096, 32, 32, 8, 14336), "70B": (8192, 80, 64, 8, 28672)}
BASE = (256, 4, 4, 2, 896)


def build(width, depth, heads, kv_heads, hidden):
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
    )
    return transformers.LlamaForCausalLM(config)


def main(names):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    base = build(*BASE)
    example = dict(input_ids=torch.randint(0, 1000, (2, 8)))
    for name in names or SIZES:
        with torch.device("meta"):
            model = build(*SIZES[name])
        start = time.perf_counter()
        p = trimtab.parametrize(model, base, example=example, apply=False)
        seconds = time.perf_counter() - start
        billions = sum(q.numel() for q in model.parameters()) / 1e9
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{name:>4}: {billions:5.1f} B parameters, {SIZES[name][1]:3d} layers, {len(p.branches):3d} "
            f"branches: {seconds:5.1f} s, peak {peak:.2f} GB (all of this process)"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
