"""Proof by one step: what was read from the structure is also tried, one backward in the base and one in the
model.

Reading order: `trial` (the two passes, and `p.prove`), `backward` (one pass that leaves nothing behind),
`coherence` (where the wanted ratio is not 1), `packs` (tensors judged in parts), `deep_limit` (a base far
from its limit), `kinds` (which parameters are judged as one), `rows` (what is said of each), `verdicts` (good
or wrong, and the likely cause), `starting` (the pair that optimizers are tried on).
"""
