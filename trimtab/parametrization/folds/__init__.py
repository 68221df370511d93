"""Multipliers that belong to no single rule: attention, constants of the model's own, tied readouts.

Reading order: `folding` (a multiplier put into parameters), `attention`, `constants`
(`unit_vectors`, `lengths`: where they are wanted), `normalised_weights`, `collecting` (all of
them).
"""
