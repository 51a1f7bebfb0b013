"""Scikit-learn's 1,797 handwritten digits: small enough to train in a second."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from covey.errors import PlanError

TRAIN = 1437  # four fifths


@cache
def digits(train: bool = True) -> TensorDataset:
    """Return scikit-learn's handwritten digits: x of shape (N, 8, 8) in [0, 1], y the digit.

    Args:
        train: The 1,437 samples to train on; if false, the 360 samples to score.

    >>> x, y = covey.data.digits(train=False).tensors
    >>> x.shape, y.shape
    (torch.Size([360, 8, 8]), torch.Size([360]))
    """
    rows = np.loadtxt(_file(), delimiter=",", dtype=np.float32)
    # The file goes writer by writer; one fixed shuffle puts every writer on both sides.
    order = np.random.default_rng(0).permutation(len(rows))
    rows = rows[order[:TRAIN] if train else order[TRAIN:]]
    x, y = rows[:, :-1].reshape(-1, 8, 8) / 16, rows[:, -1].astype(np.int64)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def _file() -> Path:
    """Scikit-learn's file, read without importing scikit-learn, which takes longer than training on it."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise PlanError("covey.data.digits reads scikit-learn's digits; install it: pip install scikit-learn")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
