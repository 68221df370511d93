"""`trimtab new`: a commented sweep.toml that runs as it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trimtab.commands.options import Positional
from trimtab.commands.tune_example import EXAMPLE as TUNE_EXAMPLE
from trimtab.files import create_text

EXAMPLE = """\
# A sweep: does the learning rate of a 3-block network serve one of 24 blocks? `trimtab sweep {name}`, about
# a minute on two cores. Keys behind a "#" are at their defaults, or examples where it says so.
name = "depth"                     # shown in reports; default "sweep"
schemes = ["mup", "depth-mup"]     # of sp, ntk, mup, depth-mup, completep; default ["depth-mup"]
base = [32, 3]                     # [width, depth] of the model that is tuned; required
widths = [32]                      # default: the base's
depths = [3, 6, 12, 24]            # default: the base's
# batches = [64, 256]              # an example: batch sizes; base then names its own, as in docs/horizon.md
# tokens = [12800, 51200]          # an example: examples seen in a run, so that steps = tokens / batch
# horizon = "sde"                  # an example: over batches and tokens the numbers follow this rule
sizes = "product"                  # or "cross": depths at the centre's width and widths at its depth
# centre = [32, 3]                 # of a cross; default: the base
seeds = 3                          # how many, or a list such as [0, 1, 2]
fleet = "auto"                     # small runs train together: "auto" (by size), how many, or 1 (each alone)

[axes]                             # what is swept: any key of [run], as a list of values or as a range
lr = {{ log2 = [-6, 1], step = 1 }}  # 2^-6 ... 2^1; also log10, linear. The base's rate at every size
# momentum = [0.0, 0.9]            # an example
# "model_options.k" = [1, 2]       # an example: an option of the model
# "roles.input.lr" = [0.25, 1.0]   # an example: a multiplier by role

[run]                              # what all runs share
model = "mlp"                      # mlp, resnet, vit, gpt, hf:llama, or your own "file.py:build"
model_options = {{ branch_scale = 0.5773502691896258 }}  # further arguments of build; default none
# overrides = {{}}                   # what trimtab.parametrize takes, as {{ "head.*" = "readout" }}
# roles = {{ input = {{ lr = 0.25 }} }}  # an example: multipliers of lr, init, weight_decay, eps by role
# gamma0 = 1.0                     # richness: how far features move, 1 as in the base

data = "digits"                    # digits, cifar10, fashion-mnist, images, text, teacher,
                                   # or your own data(split, seed, step): "file.py:data"
# data_options = {{}}                # further arguments of the data, as {{ px = 16 }} of cifar10
# loss = "cross-entropy"           # mse, or your own loss(output, batch): "file.py:loss";
                                   # default also: loss beside your build
batch_size = 64

optimizer = "sgd"                  # sgd, adam, adamw, muon
# momentum = 0.0                   # of sgd and muon (there 0 stands for 0.95)
# nesterov = false                 # of sgd
# betas = [0.9, 0.999]             # of adam, adamw, and of muon's adamw
# eps = 1e-8                       # likewise
# weight_decay = 0.0
# rest_lr = 0.1                    # an example: the rate of what muon leaves to adamw; default lr / 10
# clip = 1.0                       # an example: largest gradient norm, alike at every size; default: none

steps = 200
# warmup = 0                       # steps over which the rate rises from 0
# schedule = "constant"            # of the rate: constant, cosine, linear, step
# floor = 0.0                      # where cosine and linear end, as a share of lr
# decay_schedule = "constant"      # of the weight decay: constant, rate (as lr's), cosine, linear

# give_up = 0.5                    # an example: a run no lower than it began at half of its steps ends there
                                   # and counts as diverged; default 0: never

# eval_every = 0                   # steps between evaluations on the test split; 0: at the end only
# eval_examples = 1000             # an example: test examples, 0 none; default: a tenth of the cost
# dtype = "float32"                # float64, or bfloat16 (autocast)
# precision = "bf16"               # an example: another way to say dtype, float32 or bf16
# device = "cpu"                   # cuda, cuda:1, mps, or auto: the first of cuda, mps, cpu that is there
# compile = false                  # torch.compile
# log = "tensorboard:logs"         # an example: also wandb, or your own log(step, metrics): "file.py:log"

[budget]
cell_seconds = 600                 # wall clock of one run; default 3600
# retries = 0                      # of a run that raised
# checkpoint_seconds = 30.0        # between checkpoints of a run

[ray]                              # of one task, with --ray local|auto|HOST:PORT (docs/sweeps.md)
# num_cpus = 1                     # slots of a node it takes; default --threads
# num_gpus = 0                     # GPUs it takes and sees
# memory = 2e9                     # an example: bytes that Ray reserves for it; default none
# files = ["tokens.bin"]           # an example: further files to send to the nodes; default none

[search]
adaptive = false                   # true: not the whole grid, only the runs that decide (docs/sweeps.md)
# runs = 200                       # an example: the budget, runs at most; default none
# flops = 1e15                     # an example: of training, likewise
# hours = 3.0                      # an example: of training, summed over runs
# optimum_octaves = 1.0            # an example: of every optimum's interval; default: the verdict decides
# drift_octaves = 0.2              # width of the drift's interval that is narrow enough
# seeds = 6                        # an example: of one value at most; default: twice those above
# beyond = 8                       # steps past each end of the axis that may be tried
# hp = "lr"                        # an example: the axis that is searched; default lr or the only one
# metric = "train_loss"            # or test_loss
"""


@dataclasses.dataclass
class New:
    """Write a commented sweep.toml that runs as it is in about a minute, or a tune.toml."""

    path: Positional[str]
    """Where to write it; a file that is there is not replaced."""
    tune: bool = False
    """Write a tune.toml instead: `trimtab tune` searches at base size and says what to set at target size."""

    def run(self) -> int:
        path = Path(self.path)
        text, command = (TUNE_EXAMPLE, "tune") if self.tune else (EXAMPLE, "sweep")
        create_text(path, text.format(name=path.name))
        print(f"wrote {path}; run it with: trimtab {command} {path}")
        return 0
