"""Sums in the memory that roles of one host share: right, the same bits for all, and whoever spoils them is named."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.engines.process.role.add_up import STRETCH, add_up
from covey.engines.process.role.native_sums import SumDone
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import SLOT, SharedSegment
from covey.exchange.collectives.sums import ring
from covey.message import Address
from covey.program import Collective
from covey.strategy import workers
from covey.vector import Vector

SMALL, LARGE = 1000, SLOT // 8 + 7777  # numbers: laid out, and summed slice by slice


class Hall:
    """Roles of one host in one process, which take turns."""

    def __init__(self, size: int) -> None:
        self.group = tuple(workers(size))
        self.segment = SharedSegment(self.group)
        self.members = [SharedSum(who, HostMemory(who, self.segment)) for who in self.group]

    def sum(self, vectors: Sequence[Vector], group: Sequence[Address] = ()) -> list[SumDone]:
        """Everybody of the group sums."""
        group = tuple(group) or self.group
        who = [self.members[self.group.index(member)] for member in group]
        for member, vector in zip(who, vectors, strict=True):
            assert member.take(None, Collective(vector, group, ring))
        return self.finish(who, len(group))

    def finish(self, who: Sequence[SharedSum], count: int) -> list[SumDone]:
        done: list[SumDone] = []
        for _ in range(1000):
            done += [found for member in who for found in member.advance()]
            if len(done) == count:
                return done
        raise AssertionError(f"only {len(done)} of {count} were done")

    def housed(self, rank: int, vector: Vector) -> Vector:
        return self.members[rank].memory.blocks.house(vector)

    def close(self) -> None:
        for handle in (*self.segment.files, *self.segment.wakeups):
            os.close(handle)


def random(rank: int, *lengths: int, dtype: torch.dtype = torch.float32) -> Vector:
    chance = torch.Generator().manual_seed(rank)
    return Vector(torch.randn(length, generator=chance, dtype=torch.float64).to(dtype) for length in lengths)


def in_order(vectors: Sequence[Vector]) -> Vector:
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total.add_(vector)
    return total


def same(one: Vector, other: Vector) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one.parts, other.parts, strict=True))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 5),
    st.lists(st.sampled_from([0, 1, 3, SMALL, LARGE]), min_size=1, max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.booleans(),
)
def test_the_sum_in_the_order_of_the_group(size: int, lengths: list[int], dtype: torch.dtype, housed: bool) -> None:
    hall = Hall(size)
    vectors = [random(rank, *lengths, dtype=dtype) for rank in range(size)]
    expected = in_order(vectors)
    if housed:
        vectors = [hall.housed(rank, vector) for rank, vector in enumerate(vectors)]
    done = hall.sum(vectors)
    assert all(found.came and found.error is None for found in done)
    assert all(same(vector, expected) for vector in vectors)
    hall.close()


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_everybody_counts_its_share(length: int) -> None:
    hall = Hall(3)
    vectors, shares = [Vector([torch.full((length,), 4.0)]) for _ in range(3)], (0.5, 0.25, 2.0)
    for member, vector, share in zip(hall.members, vectors, shares, strict=True):
        member.take(None, Collective(vector, hall.group, ring, share))
    hall.finish(hall.members, 3)
    assert all(bool((vector.parts[0] == 11).all()) for vector in vectors)
    hall.close()


def test_what_lies_in_shared_memory_is_summed_in_place() -> None:
    hall = Hall(2)
    vectors = [hall.housed(rank, random(rank, LARGE)) for rank in range(2)]
    hall.sum(vectors)
    for member in hall.members:
        assert not member.memory.blocks.blocks and not member.memory.neighbours.of(member.me).regions
    hall.close()


def test_one_that_alone_counts_is_given_to_all_bit_by_bit() -> None:
    hall = Hall(3)
    vectors = [Vector([torch.full((LARGE,), value)]) for value in (-0.0, 3.0, 5.0)]
    for member, vector, share in zip(hall.members, vectors, (1.0, 0.0, 0.0), strict=True):
        member.take(None, Collective(vector, hall.group, ring, share))
    hall.finish(hall.members, 3)
    assert all(bool(vector.parts[0].signbit().all()) and not vector.parts[0].any() for vector in vectors)
    hall.close()


@pytest.mark.parametrize("apart", [True, False])
def test_long_numbers_of_three_are_added_up_wherever_the_sum_goes(apart: bool) -> None:
    brought = [torch.full((2 * STRETCH + 77,), float(number)) for number in (1, 2, 4)]
    into = torch.empty_like(brought[0]) if apart else brought[1]
    add_up(brought, [1.0, 1.0, 1.0], into, tuple(workers(3)))
    assert torch.equal(into, torch.full_like(into, 7.0))


def test_whole_numbers_too() -> None:
    hall = Hall(3)
    vectors = [Vector([torch.full((LARGE,), rank + 1, dtype=torch.int64)]) for rank in range(3)]
    hall.sum(vectors)
    assert all(bool((vector.parts[0] == 6).all()) for vector in vectors)
    hall.close()


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_one_sum_after_the_other_in_changing_groups(length: int) -> None:
    """Nobody overwrites what somebody of an earlier group has yet to read."""
    hall = Hall(4)
    first, second, third, _ = hall.members
    a, b, c, _ = hall.group
    values = {who: [random(10 * turn + who.rank, length) for turn in range(3)] for who in (a, b, c)}
    groups = [(a, b, c), (a, b), (a, b, c)]
    expected = [in_order([values[who][turn] for who in group]) for turn, group in enumerate(groups)]
    for turn, group in enumerate(groups):
        for member in (first, second):
            member.take(None, Collective(values[member.me][turn], group, ring))
    for turn in (0, 2):
        third.take(None, Collective(values[c][turn], groups[turn], ring))
    for _ in range(3):  # the third sleeps meanwhile, and nobody gets past it
        assert not first.advance() and not second.advance()
    hall.finish([first, second, third], 8)
    for turn, group in enumerate(groups):
        assert all(same(values[who][turn], expected[turn]) for who in group)
    hall.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sums_of_changing_groups_whoever_goes_on_first(data: st.DataObject) -> None:
    """Members alternate between the halves of their slots, and each at its own pace."""
    hall = Hall(4)
    groups = data.draw(st.lists(st.sets(st.sampled_from(hall.group), min_size=2), min_size=1, max_size=6), "groups")
    values = []
    for turn, group in enumerate(map(sorted, groups)):
        length = data.draw(st.sampled_from([1, SMALL, SMALL, LARGE]), "length")
        values.append({who: random(10 * turn + who.rank, length) for who in group})
        for who in group:
            hall.members[who.rank].take(None, Collective(values[turn][who], tuple(group), ring))
    expected = [in_order(list(vectors.values())) for vectors in values]
    for rank in data.draw(st.lists(st.integers(0, 3), max_size=30), "who goes on"):
        hall.members[rank].advance()
    for _ in range(100):
        for member in hall.members:
            member.advance()
    for vectors, total in zip(values, expected, strict=True):
        assert all(same(vector, total) for vector in vectors.values())
    hall.close()


def test_nobody_waits_until_all_have_read_its_last_small_numbers() -> None:
    hall = Hall(3)
    first, second, third = hall.members
    for turn in range(3):
        for member in hall.members:
            member.take(None, Collective(random(turn, SMALL), hall.group, ring))
    for member in (third, first, second, first):
        member.advance()  # the third has laid its numbers out, and reads nothing
    take = third.takes[first.me]
    assert [take() for _ in range(4)] == [True, True, True, False]  # laid out, read, and the next laid out
    hall.close()


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_who_brings_what_is_no_number_is_named(length: int) -> None:
    hall = Hall(3)
    vectors = [random(rank, length) for rank in range(3)]
    vectors[1].parts[0][length // 2] = float("nan")
    for member, vector in zip(hall.members, vectors, strict=True):
        member.take(None, Collective(vector, hall.group, ring))
    done = [found for _ in range(5) for member in hall.members for found in member.advance()]
    errors = [str(found.error) for found in done if found.error]
    assert errors and all(text.startswith("worker 1 brought NaN") for text in errors)
    hall.close()


def test_very_large_numbers_are_numbers() -> None:
    hall = Hall(2)
    vectors = [Vector([torch.full((SMALL,), 1e38)]) for _ in range(2)]
    assert all(found.came for found in hall.sum(vectors))
    assert bool((vectors[0].parts[0] == 2e38).all())
    hall.close()


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_a_mean_of_float16_is_not_larger_than_its_numbers(length: int) -> None:
    """The sum of four times 40,000 is more than float16 can hold; the mean is 40,000."""
    hall = Hall(4)
    vectors = [hall.housed(rank, Vector([torch.full((length,), 4e4, dtype=torch.float16)])) for rank in range(4)]
    for member, vector in zip(hall.members, vectors, strict=True):
        member.take(None, Collective(vector, hall.group, ring, 0.25))
    assert all(found.came for found in hall.finish(hall.members, 4))
    assert all(bool((vector.parts[0] == 4e4).all()) for vector in vectors)
    hall.close()


@pytest.mark.parametrize("length", [SMALL, LARGE])
def test_a_sum_that_float16_cannot_hold_is_nobodys_fault(length: int) -> None:
    hall = Hall(3)
    vectors = [hall.housed(rank, Vector([torch.full((length,), 4e4, dtype=torch.float16)])) for rank in range(3)]
    for member, vector in zip(hall.members, vectors, strict=True):
        member.take(None, Collective(vector, hall.group, ring))
    done = [found for _ in range(5) for member in hall.members for found in member.advance()]
    errors = [str(found.error) for found in done if found.error]
    assert errors and all(text.startswith("the sum of what 3 roles brought is more than float16") for text in errors)
    hall.close()


def test_where_one_has_no_room_the_program_sums() -> None:
    hall = Hall(3)
    hall.members[1].memory.blocks.full = "there is no more"
    vectors = [random(rank, LARGE) for rank in range(3)]
    before = [vector.clone() for vector in vectors]
    assert [found.came for found in hall.sum(vectors)] == [False] * 3
    assert all(same(mine, old) for mine, old in zip(vectors, before, strict=True))
    assert all(block.free() for member in hall.members for block in member.memory.blocks.blocks)
    small = [random(rank, SMALL) for rank in range(3)]
    assert all(found.came for found in hall.sum(small))  # for which there is room
    hall.close()


def test_a_group_beyond_this_host_is_left_to_the_program() -> None:
    hall = Hall(2)
    wide = (*hall.group, Address("worker", 9))
    assert not hall.members[0].take(None, Collective(random(0, SMALL), wide, ring))
    assert not hall.members[0].take(None, Collective(random(0, SMALL), hall.group[:1], ring))
    hall.close()


def test_the_bell_rings_for_who_waits_and_for_nobody_else() -> None:
    """A role that computes is not woken by each sign; it looks at them when it sums."""
    hall = Hall(2)
    first, second = hall.members
    first.take(None, Collective(random(0, SMALL), hall.group, ring))
    assert not first.advance()
    with pytest.raises(BlockingIOError):
        os.eventfd_read(second.memory.wakeup)
    second.take(None, Collective(random(1, SMALL), hall.group, ring))
    assert len(second.advance()) == 1 and os.eventfd_read(first.memory.wakeup) >= 1 and len(first.advance()) == 1
    assert not any(hall.segment.resting(who)[0] for who in hall.group)
    hall.close()


def test_a_sign_that_comes_while_a_role_lies_down_is_seen() -> None:
    """Who gave it saw nobody waiting, and rang no bell."""
    hall = Hall(2)
    first, second = hall.members
    second.take(None, Collective(random(1, SMALL), hall.group, ring))
    fence = first.fence

    def late() -> None:
        fence()
        first.resting[first.me][0] = 0  # as the other sees it
        second.advance()
        first.fence = fence

    first.fence = late
    first.take(None, Collective(random(0, SMALL), hall.group, ring))
    assert len(first.advance()) == 1
    hall.close()


def test_sums_of_the_same_numbers_are_remembered_and_others_are_looked_up() -> None:
    hall = Hall(2)
    mine, one, other = (hall.housed(rank, random(7 * rank, LARGE)) for rank in (0, 1, 1))
    loose = random(3, LARGE)
    for turn, theirs in enumerate((one, one, other, one, loose, other)):
        mine.copy_(random(turn, LARGE))
        expected = in_order([mine, theirs])
        hall.sum([mine, theirs])
        assert same(mine, expected) and same(theirs, expected)
    assert len(hall.members[0].memory.sums) == 3
    hall.close()


def test_every_other_number_of_a_remembered_vector() -> None:
    """It begins where the whole begins, and has as many numbers as its first half."""
    hall = Hall(2)
    wholes = [hall.housed(rank, random(rank, 2 * LARGE)) for rank in range(2)]
    for cut in (slice(0, LARGE), slice(None, None, 2)):
        vectors = [Vector([whole.parts[0][cut]]) for whole in wholes]
        expected = in_order(vectors)
        hall.sum(vectors)
        assert all(same(vector, expected) for vector in vectors)
    hall.close()


def test_what_is_remembered_holds_no_memory_of_a_role_that_was_restarted() -> None:
    hall = Hall(2)
    first, second = (member.memory for member in hall.members)
    vectors = [hall.housed(rank, random(rank, LARGE)) for rank in range(2)]
    hall.sum(vectors)
    assert first.sums
    first.renew(second.me)
    assert not first.sums and first.neighbours.of(second.me).floor() == os.fstat(hall.segment.file(second.me)).st_size
    hall.close()


def test_numbers_that_were_summed_before_may_count_otherwise_the_next_time() -> None:
    hall = Hall(2)
    vectors = [hall.housed(rank, Vector([torch.zeros(LARGE)])) for rank in range(2)]
    for shares, total in (((1.0, 1.0), 8.0), ((0.5, 0.25), 3.0), ((1.0, 1.0), 8.0)):
        for member, vector, share in zip(hall.members, vectors, shares, strict=True):
            vector.parts[0].fill_(4)
            member.take(None, Collective(vector, hall.group, ring, share))
        hall.finish(hall.members, 2)
        assert all(bool((vector.parts[0] == total).all()) for vector in vectors)
    hall.close()


def test_after_a_sum_that_a_loss_broke_off_small_sums_with_the_new_member_are_right() -> None:
    """Those who stayed were in a sum when the other died, which has yet to make its first one."""
    hall = Hall(3)
    survivors, lost = hall.members[:2], hall.group[2]
    for member in survivors:
        member.take(None, Collective(random(7, SMALL), hall.group, ring))
        member.advance()
    hall.members[2] = SharedSum(lost, HostMemory(lost, hall.segment))
    for member in hall.members:
        member.reset()
    for turn in range(3):
        vectors = [random(10 * turn + rank, SMALL) for rank in range(3)]
        expected = in_order(vectors)
        hall.sum(vectors)
        assert all(same(vector, expected) for vector in vectors)
    hall.close()
