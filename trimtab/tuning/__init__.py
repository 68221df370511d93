"""Tune small, train big: search at base size, hand over at target size.

In reading order: `space` (hyperparameters as coordinates), `config` (tune.toml), `surface` (a Gaussian
process through log loss), `proposals` (where to look next), `larger` (what to try at a
second size), `search` (rounds over a store), `sensitivity`,
`target` (what each group of the target gets), `snippet` (the same as Python), `result` (what the user gets),
`tuner` (all of it: `trimtab.tune`).
"""
