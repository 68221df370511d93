"""A model beside its base: which tensor is which, what each parameter is, how much it has grown.

Reading order: `names` (names without block numbers), `places`, `branch_pairing`, `pairing` (twins),
`overrides` (the user's
word), `ratios` (width), `depths` (depth), `roles` (all of it), `meta_buffers` (constants that the meta device
hides).
"""
