"""Adaptive sweeps: fewer runs for the same verdict.

In reading order: `lattice` (the values that may be tried), `policy` (which runs to ask for next: pure),
`walk` (the policy over a store, replayed round by round), `sweeping` (`trimtab.sweep`: a grid or an adaptive
sweep, as the file says). It lies above `optima`, whose intervals it asks, and above `sweeps`, whose driver
runs its rounds.
"""
