"""The digits are scikit-learn's, split once and for all."""

from __future__ import annotations

import sys

import pytest
import torch

from covey.data import digits
from covey.errors import PlanError


def test_the_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    x = torch.cat([digits(train=True).tensors[0], digits(train=False).tensors[0]])
    ours = sorted(x.flatten(1).mul(16).int().tolist())
    assert ours == sorted(load_digits().data.astype(int).tolist())


def test_shapes_types_and_range() -> None:
    for train, size in ((True, 1437), (False, 360)):
        x, y = digits(train=train).tensors
        assert (x.shape, x.dtype, y.shape, y.dtype) == ((size, 8, 8), torch.float32, (size,), torch.int64)
        assert (x.min().item(), x.max().item()) == (0, 1)
        assert y.bincount().min() > 0.05 * size, "every digit is on both sides"


def test_digits_are_read_once() -> None:
    assert digits(train=True) is digits(train=True)


def test_without_scikit_learn_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["covey.data.digits"], "find_spec", lambda name: None)
    digits.cache_clear()
    with pytest.raises(PlanError, match="pip install scikit-learn"):
        digits()
