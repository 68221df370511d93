"""What each parameter gets: initial scale, learning rate, weight decay and eps, relative to a base model.

Reading order:

- `planning` (`trimtab.parametrize`: the whole way), `requirements` (what is asked of its arguments);
- which tensor is which in the base: `names`, `places`, `branch_pairing`, `pairing`, `meta_buffers` (constants
  that the meta device hides);
- what each parameter is: `overrides` (the user's word), `ratios` (width), `depths` (depth), `roles` (all of
  it);
- what it gets: `rules` (pure arithmetic), `folding`, `attention`, `constants` and `folds` (what belongs
  to no single rule), `parameters` (the rows of the table);
- the law the weights were drawn from: `init_laws`, `base_draws`, `init_measurement`;
- an optimizer's law: `optimizers`, `optimizer_trials`;
- batch and length: `horizon_rules`, `horizon`, `horizon_table`, `decay` (pure arithmetic), `multipliers` (by
  role), `carrying` (all that multiplies an optimizer's numbers), `calculator` (what each role gets, without a
  model);
- `result` (`Parametrization`), `groups`, `clipping`, `wrapped` (the optimizer's groups), `table` and `notes`
  (what is printed).
"""
