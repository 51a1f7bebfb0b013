"""Sums of roles on one GPU: who cannot take part in them is found by all, and then nobody does.

What CUDA does is checked on a GPU (`tests/gpu_sums.py`); here members of one process hand their tensors over instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from covey.engines.gpu.cuda_driver import HANDLE, CudaDriver, CudaRefused
from covey.engines.gpu.gpu_memory import GpuMemory, GpuPlace, GpuPlaces, Group, OnGpu, one_card
from covey.errors import WireError
from covey.message import Address
from covey.program import Collective
from covey.vector import Vector
from tests.engines.test_shared_sum import LARGE, Hall, in_order, random, ring, same

OTHER = Address("worker", 1)
ALLOCATIONS: dict[bytes, Tensor] = {}


class SameProcess(GpuMemory):
    """In place of CUDA: tensors that the members of one process find by their handle."""

    def __init__(self, card: str = "one", opens: bool = True) -> None:
        super().__init__()
        self.card, self.opens, self.opened = card, opens, 0

    def place(self, parts: Sequence[Tensor], group: Group) -> OnGpu | None:
        if group in self.apart:
            return None
        handles = [part.data_ptr().to_bytes(HANDLE, "little") for part in parts]
        ALLOCATIONS.update(zip(handles, parts, strict=True))
        known = self._offered.setdefault(group, set())
        fresh = not known.issuperset(handles)
        known.update(handles)
        return OnGpu([*parts], GpuPlaces(self.card, [GpuPlace(handle, 0) for handle in handles], fresh))

    def tensors(self, who: Address, told: GpuPlaces, parts: Sequence[Tensor]) -> list[Tensor]:
        if not self.opens:
            raise CudaRefused("not here")
        self.opened += 1
        return [ALLOCATIONS[place.handle] for place in told.places]


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall(3)
    for member in made.members:
        member.memory.gpu = SameProcess()
    yield made
    made.close()
    ALLOCATIONS.clear()


def summed(hall: Hall, turn: int = 0, share: float = 1.0) -> list[list[int]]:
    """Everybody has the sum in the order of the group, to the bit; how many blocks of memory each has used."""
    vectors = [random(10 * turn + rank, LARGE, 5) for rank in range(3)]
    expected = in_order(vectors).mul_(share)
    for member, vector in zip(hall.members, vectors, strict=True):
        assert member.take(None, Collective(vector, hall.group, ring, share))
    assert all(found.came and found.error is None for found in hall.finish(hall.members, 3))
    assert all(same(vector, expected) for vector in vectors)
    return [[block.span.size for block in member.memory.blocks.blocks] for member in hall.members]


def test_one_gpu_sums_in_place(hall: Hall) -> None:
    for turn in range(3):
        assert summed(hall, turn, share=0.5) == [[], [], []]
    assert not any(member.memory.gpu.apart for member in hall.members)


def test_what_one_cannot_open_nobody_sums_there(hall: Hall) -> None:
    hall.members[1].memory.gpu = SameProcess(opens=False)
    assert all(summed(hall))
    assert all(member.memory.gpu.apart == {hall.group} for member in hall.members)
    opened = [getattr(member.memory.gpu, "opened", 0) for member in hall.members]
    summed(hall, 1)
    assert [getattr(member.memory.gpu, "opened", 0) for member in hall.members] == opened, "it is not tried again"


def test_several_gpus_sum_by_the_processor(hall: Hall) -> None:
    hall.members[2].memory.gpu = SameProcess("another")
    assert all(summed(hall)) and all(summed(hall, 1))


def test_one_without_a_gpu_sums_with_those_that_have_one(hall: Hall) -> None:
    hall.members[0].memory.gpu = GpuMemory()
    assert all(summed(hall)) and all(summed(hall, 1))


def test_a_new_incarnation_is_heard_of_before_it_is_summed_with(hall: Hall) -> None:
    summed(hall)
    for member in hall.members:
        member.memory.renew(hall.group[2])
    hall.members[2].memory.gpu = SameProcess(opens=False)  # it knows of nothing, and cannot open what the others have
    assert all(summed(hall, 1))


def test_who_brings_nan_is_named(hall: Hall) -> None:
    vectors = [random(rank, LARGE) for rank in range(3)]
    vectors[2].parts[0][7] = float("nan")
    for member, vector in zip(hall.members, vectors, strict=True):
        member.take(None, Collective(vector, hall.group, ring))
    done = [found for _ in range(8) for member in hall.members for found in member.advance()]
    assert [str(found.error).split(":")[0] for found in done if found.error] == [
        "worker 2 brought NaN or infinite numbers to a sum, which would spoil all others"
    ]


def test_what_is_no_place_is_refused() -> None:
    part = torch.zeros(8)
    with pytest.raises(WireError, match="sums 0 tensors where 1 are summed here"):
        GpuMemory().tensors(OTHER, GpuPlaces("", [], False), [part])
    with pytest.raises(WireError, match="named GPU memory that it does not have"):
        GpuMemory().tensors(OTHER, GpuPlaces("", [GpuPlace(b"short", 0)], False), [part])


def test_only_tensors_of_one_gpu_have_a_place_there() -> None:
    assert GpuMemory().place([torch.zeros(8)], (OTHER,)) is None and GpuMemory().place([], (OTHER,)) is None
    here = GpuPlaces("a", [], False)
    assert one_card([here, here]) and not one_card([here, None]) and not one_card([here, GpuPlaces("b", [], False)])


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver")
def test_without_a_driver_cuda_refuses() -> None:
    with pytest.raises(CudaRefused, match="libcuda"):
        CudaDriver()


def test_vectors_that_stay_are_known() -> None:
    hall = Hall(2)
    vector = Vector([torch.zeros(8)])
    assert hall.members[0].memory.house(vector).parts[0].data_ptr() != vector.parts[0].data_ptr()
    assert not hall.members[0].memory.gpu._lasting, "a tensor of the processor"
    hall.close()
