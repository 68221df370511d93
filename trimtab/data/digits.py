"""The 1797 handwritten digits that come with scikit-learn: 8x8, ten classes, nothing to download.

The last fifth in a fixed shuffled order is the test set. Pixels are standardised by the training set's mean and deviation.
"""

from __future__ import annotations

import numpy as np
import torch

from trimtab.data.source import Tensors
from trimtab.zoo import shape_of


def read() -> Tensors:
    """The embedded digits."""
    from sklearn.datasets import load_digits

    shape = shape_of("digits", {})
    assert shape is not None and shape.train is not None
    images, labels = load_digits(return_X_y=True)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(images))
    images, labels = images[order].reshape(-1, 1, 8, 8), labels[order]
    x = torch.from_numpy((images - images[: shape.train].mean()) / images[: shape.train].std()).float()
    y = torch.from_numpy(labels).long()
    return Tensors(shape, (x[: shape.train], y[: shape.train]), (x[shape.train :], y[shape.train :]))
