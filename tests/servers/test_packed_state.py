"""What a worker holds, on its way to another one."""

from __future__ import annotations

import pytest
import torch

from covey.servers.packed_state import LARGE, packed, unpacked


@pytest.mark.parametrize("copied", [True, False])
def test_a_state_comes_as_it_was_and_only_large_tensors_may_be_left_in_place(copied: bool) -> None:
    large, small = torch.arange(LARGE // 4, dtype=torch.float32), torch.ones(2, 3)
    whole = torch.tensor([7, 8])
    state = {"params": large, "optimizer": {"step": 3, "mean": small}, "seen": [whole, large + 1]}
    vector = packed(state, copied=copied)
    found = unpacked(vector, "worker 0")
    assert found["optimizer"]["step"] == 3 and torch.equal(found["optimizer"]["mean"], small)
    assert torch.equal(found["params"], large) and torch.equal(found["seen"][0], whole)
    assert torch.equal(found["seen"][1], large + 1)
    in_place = {part.data_ptr() for part in vector.parts}
    assert (large.data_ptr() in in_place) != copied and small.data_ptr() not in in_place
