"""What a worker holds, on its way to another one."""

from __future__ import annotations

import msgspec
import pytest
import torch

from covey.errors import WireError
from covey.servers.packed_state import LARGE, packed, unpacked
from covey.vector import Vector


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


@pytest.mark.parametrize("start", [-3, -1, 4, 5])
def test_a_tensor_that_is_not_within_its_part_is_refused(start: int) -> None:
    """Two numbers of a part of five: the state says that they begin elsewhere."""
    told, numbers = packed({"mean": torch.tensor([1.0, 2.0]), "other": torch.ones(3)}).parts
    tree, tensors = msgspec.msgpack.decode(told.numpy().tobytes())
    assert [tuple(one[1:]) for one in tensors] == [(0, 0, [2]), (0, 2, [3])]
    tensors[0][2] = start
    wrong = torch.frombuffer(bytearray(msgspec.msgpack.encode((tree, tensors))), dtype=torch.uint8)
    with pytest.raises(WireError, match="worker 0 sent a state that cannot be read: .* is not where it should be"):
        unpacked(Vector([wrong, numbers]), "worker 0")
