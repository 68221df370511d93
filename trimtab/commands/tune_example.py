"""The example that `trimtab new --tune` writes."""

from __future__ import annotations

EXAMPLE = """\
# A tune: find the hyperparameters of a network of width 64, say what to set at width 512: `trimtab tune
# {name}`, about two minutes on two cores. Keys behind a "#" are at their defaults, or examples where it
# says so.
name = "digits"                    # shown in reports; default "tune"
base = [64, 3]                     # [width, depth] of the model that is tuned; required
target = [512, 3]                  # of the model that is going to be trained; required
scheme = "depth-mup"               # sp, ntk, mup, depth-mup, completep
# trials = 96                      # points that are tried at most, fewer if nothing more is to be gained
# seeds = 1                        # runs of each point: more points say more than more seeds
# per_round = 16                   # points proposed at once
# finalists = 12                   # points that are compared at the end, spread over those that tie
# final_size = "auto"              # where: "auto" (twice the base if the target is 4 times), "base", [128, 3]
# final_seeds = 4                  # fresh seeds of the better half, so that the best is not just the luckiest
# metric = "train_loss"            # or test_loss
# method = "refine"                # or "optuna": pip install 'trimtab[optuna]'
# seed = 0                         # of the proposals
# fleet = "auto"                   # small runs train together: "auto" (by size), how many, or 1 (each alone)

[search]                           # each {{ log2 = [low, high] }}, or {{ from = low, to = high }}
lr = {{ log2 = [-12, -3] }}          # 2^-12 to 2^-3: the base's rate
gamma0 = {{ log2 = [-4, 2] }}        # richness: how far features move
"roles.input.lr" = {{ log2 = [-4, 3] }}  # the input's rate over that of the rest
# weight_decay = {{ log2 = [-10, 0] }}    # an example, as are those below
# beta2 = {{ log2 = [-10, -3] }}     # of 1 - beta2; beta1 and momentum likewise
# warmup = {{ from = 0.0, to = 0.3 }}  # a fraction of the steps

[run]                              # what all runs share: keys as in sweep.toml, which `trimtab new` explains
model = "mlp"                      # mlp, resnet, vit, gpt, hf:llama, or your own build(width, depth)
data = "digits"                    # digits, cifar10, fashion-mnist, images, text, teacher,
                                   # or your own: "file.py:data"
optimizer = "adamw"                # sgd, adam, adamw, muon
batch_size = 64
steps = 100
schedule = "cosine"                # of the rate: constant, cosine, linear, step
eval_examples = 0                  # no test split is looked at

[confirm]                          # try the answer at a size in between
size = [256, 3]
# seeds = 4

[budget]
cell_seconds = 600                 # wall clock of one run; default 3600
"""
