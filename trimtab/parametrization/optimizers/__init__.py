"""From numbers per parameter to an optimizer: its law, its groups, and the check that they are still there.

Reading order: `families` (the known ones: pure arithmetic), `lookup` (which law a class follows: known, or
measured), `trials` with `fold_trials`, `shape_trials` and `company_trials` (the measurements), `groups`
(parameter groups and their check), `factors` (size, batch, length and decay together), `clipping`, `wrapped`
(the parameters inside DDP, FSDP2, compile).
"""
