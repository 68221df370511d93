"""What each parameter gets: initial scale, learning rate, weight decay and eps, relative to a base model.

Reading order: `planning` (`trimtab.parametrize`, the whole way), `pairing` (which tensor is which in the base), `roles` (what
each parameter is), `rules` (what each role gets: pure arithmetic), `folds` (attention, tied heads, constants of the model's
own), `parameters` (the rows of the table), `init_laws` and `init_measurement` (the law the weights were drawn from), `optimizers`
and `optimizer_trials` (an optimizer's law), `horizon_rules`, `horizon` and `decay` (batch, length and what decay keeps: pure),
`multipliers` (by role), `carrying` (all that multiplies an optimizer's numbers), `calculator` (without a model), `meta_buffers` (constants that the meta device hides), `result` (`Parametrization`:
groups, clipping, check, JSON), `table` and `notes` (what is printed).
"""
