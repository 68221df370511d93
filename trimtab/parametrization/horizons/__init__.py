"""Beyond size: batch, training length, weight decay and multipliers per role. Pure arithmetic, no torch.

Reading order: `rules` (records of exponents with their sources), `horizon` (`trimtab.Horizon`), `decay`,
`multipliers` (per
role), `calculator` (what each role gets, without a model), `table` (what is printed).
"""
