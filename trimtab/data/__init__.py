"""Data sets. A batch is a pure function of (seed, step): nothing is kept between steps, so a run can be
resumed, and a member of a fleet sees what it would see alone.

Reading order: `catalogue` (names, options and shapes, without torch), `batches` (order and augmentation),
then a file for each: `digits`, `cifar10`, `fashion_mnist`, `folders` (images by class), `text`, `teacher`;
`opening` finds the reader of a name. Where sets lie: `places`. How they get there (`trimtab data get`):
`sources` (addresses and checksums), `downloads`, `archives`, `fetching`.
"""
