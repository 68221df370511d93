"""What a model computes, read from one recorded forward: no class and no family of models is named anywhere.

Reading order: `trace` (values and operations), `recorder` (writes them down in a normal form), `recording`
(one forward, nothing of the model changed), `inputs` (an example where none is given), `operations` (what
each ATen operation does to a scale), `uses` (which values are activations, how parameters act on them),
`tails` (where a multiplier folds) and `proofs` (by numbers), `residuals` and `branches` (branches and
stacks), `graph` (places, readouts, products of activations).
"""
