"""Data sets. A batch is a pure function of (seed, step): nothing is kept between steps, so a run can be
resumed, and a member of a fleet sees what it would see alone.

Reading order: `catalogue` (names, options and shapes, without torch), `batches` (order and augmentation),
then
a file for each: `digits`, `cifar10`, `folders` (images by class), `text`, `teacher`; `opening` finds the
reader of a name.
"""
