"""Parts of the scored model on their way to the scorer."""

from __future__ import annotations

import pytest
import torch

from covey.engines.process.snapshot_parts import FEW, divided, joined
from covey.errors import WireError
from covey.vector import Vector


def test_a_part_with_a_range_for_each_row_is_one_tensor_on_its_way() -> None:
    ends = tuple(number for row in range(FEW) for number in (row * 10, row * 10 + 3))
    piece = (ends, (0, 5))
    vector = Vector([torch.randn(3) for _ in range(FEW)] + [torch.randn(5)])
    sent = joined(vector, piece)
    assert [part.numel() for part in sent.parts] == [3 * FEW, 5]
    back = divided(sent, piece)
    assert len(back.parts) == FEW + 1
    assert all(torch.equal(one, other) for one, other in zip(back.parts, vector.parts, strict=True))
    with pytest.raises(WireError, match="numbers belong"):
        divided(Vector([torch.zeros(3), torch.zeros(5)]), piece)


def test_a_part_with_few_ranges_stays_as_it_is() -> None:
    vector, piece = Vector([torch.zeros(3), torch.zeros(5)]), ((0, 3), (2, 7))
    assert joined(vector, piece) is vector and divided(vector, piece) is vector
