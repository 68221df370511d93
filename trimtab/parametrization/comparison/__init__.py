"""A model beside its base: which tensor is which, what each parameter is, how much it has grown.

Reading order: `models` (both compared: all of it), `names` (names without block numbers), `places`,
`branch_pairing`, `pairing` (twins), `layer_pairing` (where there are no branches), `overrides` (the user's
word), `ratios` (width), `depths` (depth), `roles` (what each parameter is), `meta_buffers` (constants that
the meta device hides).
"""
