"""The 1797 handwritten digits that come with scikit-learn: 8x8, ten classes, nothing to download.

The last fifth in a fixed shuffled order is the test set. Pixels are standardised by the training set's mean
and deviation.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch

from trimtab.data.batches import Tensors
from trimtab.data.catalogue import shape_of


def read() -> Tensors:
    """The embedded digits."""
    shape = shape_of("digits", {})
    assert shape is not None and shape.train is not None
    table = _table()
    images, labels = table[:, :-1], table[:, -1].astype(int)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(images))
    images, labels = images[order].reshape(-1, 1, 8, 8), labels[order]
    x = torch.from_numpy((images - images[: shape.train].mean()) / images[: shape.train].std()).float()
    y = torch.from_numpy(labels).long()
    return Tensors(shape, (x[: shape.train], y[: shape.train]), (x[shape.train :], y[shape.train :]))


def _table() -> np.ndarray:
    """scikit-learn's own file, 64 pixels and the label a row; read without importing scikit-learn, which
    takes two seconds."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():  # a later version may keep it elsewhere
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return np.column_stack([images, labels])
    with gzip.open(path, "rt") as file:
        return np.loadtxt(file, delimiter=",")
