"""What each parameter gets: initial scale, learning rate, weight decay and eps, relative to a base model.

Reading order: `planning` (`trimtab.parametrize`, the whole way), `requirements` (what is asked of its
arguments), `comparison/` (what each parameter is), `rules` (what each role gets: pure arithmetic), `folds/`
(attention, tied heads, constants), `parameters` (the rows of the table), `initialization/` (the law the
weights were drawn from), `result` (`Parametrization`), `saving` (as JSON), `optimizers/` (families and laws,
groups, clipping), `horizons/` (batch, length, decay, multipliers per role), `exports/` (other tools' words),
`mup_projects` (projects on microsoft/mup), `proof/` (tried by one step), `table` and `notes` (what is
printed).
"""
