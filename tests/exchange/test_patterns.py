"""The other patterns of a sum: who speaks to whom in which round, for how long, and the same bits everywhere."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.engines.virtual.group_sums import GroupSums
from covey.engines.virtual.virtual_actor import RoleProgram
from covey.exchange.collectives import sums
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.hierarchy import hierarchical
from covey.exchange.collectives.sums import Chunk
from covey.program import Collective, Node
from covey.strategy import workers
from covey.vector import Vector
from tests.exchange.summing import kilobytes, reduce, reduce_by, rounds

OTHERS = [name for name in PATTERNS if name != "ring"]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(OTHERS), ranks=st.integers(1, 9), length=st.integers(0, 40), root=st.integers(0, 8),
    data=st.data(),
)  # fmt: skip
def test_sum_for_any_number_of_ranks_and_any_length(
    name: str, ranks: int, length: int, root: int, data: st.DataObject
) -> None:
    """Also with fewer numbers than ranks, and none; whoever is slow."""
    slow = data.draw(st.lists(st.floats(0.1, 5.0), min_size=ranks, max_size=ranks))
    chance = torch.Generator().manual_seed(length)
    vectors = [Vector([torch.randn(length, generator=chance)]) for _ in range(ranks)]
    total = torch.stack([vector.parts[0].double() for vector in vectors]).sum(0)
    reduce(name, vectors, slow, root % ranks)
    for vector in vectors:
        assert torch.equal(vector.parts[0], vectors[0].parts[0]), "not the same bits on every rank"
        assert torch.allclose(vector.parts[0].double(), total, atol=1e-4)


def test_the_hub_of_a_star_sends_whole_vectors_to_all() -> None:
    log, took = reduce("star", kilobytes(5))
    assert rounds(log) == ["1->0 2->0 3->0 4->0", "0->1 0->2 0->3 0->4"]
    assert log.bytes_from(workers(1)[0]) == 4 * 1000
    assert took == pytest.approx(2 * 4 * 0.001), "one after the other, in and out"


@pytest.mark.parametrize(
    ("ranks", "root", "schedule"),
    [
        (6, 2, ["1->0 3->2 5->4", "4->2", "0->2", "2->0", "2->4", "0->1 2->3 4->5"]),
        (7, 0, ["1->0 3->2 5->4", "2->0 6->4", "4->0", "0->4", "0->2 4->6", "0->1 2->3 4->5"]),
        (3, 0, ["1->0", "2->0", "0->2", "0->1"]),
    ],
)
def test_the_binomial_tree(ranks: int, root: int, schedule: list[str]) -> None:
    log, took = reduce("binomial", kilobytes(ranks), root=root)
    assert rounds(log) == schedule
    assert took == pytest.approx(len(schedule) * 0.001)
    assert sum(sent.size for sent in log.sends) == 2 * (ranks - 1) * 1000


@pytest.mark.parametrize(
    ("ranks", "schedule"),
    [
        (8, ["0<->1 2<->3 4<->5 6<->7", "0<->2 1<->3 4<->6 5<->7", "0<->4 1<->5 2<->6 3<->7"]),
        (6, ["0->1 2->3", "1<->3 4<->5", "1<->4 3<->5", "1->0 3->2"]),
        (5, ["0->1", "1<->2 3<->4", "1<->3 2<->4", "1->0"]),
    ],
)
def test_recursive_doubling(ranks: int, schedule: list[str]) -> None:
    """Whole vectors; ranks beyond a power of two are passive between the first round and the last."""
    log, took = reduce("doubling", kilobytes(ranks))
    assert rounds(log) == schedule
    assert took == pytest.approx(len(schedule) * 0.001)


def test_scatter_and_gather_in_two_hops() -> None:
    """2 (n-1)/n of a vector from every rank, and as long as that takes."""
    log, took = reduce("scatter", kilobytes(5))
    everyone = [f"{a}<->{b}" for a in range(5) for b in range(a + 1, 5)]
    assert rounds(log) == [" ".join(everyone)] * 2
    assert [log.bytes_from(who) for who in workers(5)] == [2 * 4 * 200] * 5
    assert took == pytest.approx(2 * 4 / 5 * 0.001)


@pytest.mark.parametrize(
    ("ranks", "schedule", "most"),
    [
        (8, ["0<->4 1<->5 2<->6 3<->7", "0<->2 1<->3 4<->6 5<->7", "0<->1 2<->3 4<->5 6<->7"], 1.75),
        (5, ["1<->3 2<->4", "1<->2 3<->4"], 2.5),
        (6, ["1<->4 3<->5", "1<->3 4<->5"], 2.5),
    ],
)
def test_halving_and_doubling(ranks: int, schedule: list[str], most: float) -> None:
    """A ring's bytes in as few rounds as doubling has, twice; odd ranks stand in for those beyond a power of two."""
    vectors = [Vector([torch.full((256,), float(rank))]) for rank in range(ranks)]
    log, took = reduce("halving", vectors)
    folds = {8: [], 5: ["0->1"], 6: ["0->1 2->3"]}[ranks]
    unfolds = {8: [], 5: ["1->0"], 6: ["1->0 3->2"]}[ranks]
    assert rounds(log) == [*folds, *schedule, *reversed(schedule), *unfolds]
    power = 1 << (ranks.bit_length() - 1)
    assert took == pytest.approx((2 * (power - 1) / power + 2 * bool(folds)) * 0.001024)
    assert max(log.bytes_from(who) for who in workers(ranks)) == most * 1024
    assert sum(sent.size for sent in log.sends) == 2 * (ranks - 1) * 1024


def test_halves_of_five() -> None:
    """Which slices of four travel in which round, of ranks 1 to 4; 0 is passive."""
    log, _ = reduce("halving", [Vector([torch.arange(4.0) + 10 * rank]) for rank in range(5)])
    lengths: dict[int, set[int]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        lengths.setdefault(sent.message.step, set()).add(sent.size // 4)
    assert [lengths[step] for step in sorted(lengths)] == [{4}, {2}, {1}, {1}, {2}, {4}]


@pytest.mark.parametrize(("ranks", "local"), [(8, 2), (8, 4), (6, 3), (4, 1), (4, 4)])
def test_between_machines_goes_what_a_ring_of_machines_sends_however_many_are_in_them(ranks: int, local: int) -> None:
    """2 (m-1)/m of the vector from each machine, shared out among its ranks; and 2 (g-1)/g from each rank inside."""
    vectors, machines = [Vector([torch.full((240,), float(rank))]) for rank in range(ranks)], ranks // local
    log, _ = reduce_by(partial(hierarchical, local=local), vectors)
    inside, between = [0] * machines, [0] * machines
    for sent in log.sends:
        home = sent.sender.rank // local
        (inside if sent.to.rank // local == home else between)[home] += sent.size
    assert between == [2 * (machines - 1) / machines * 960] * machines
    assert inside == [2 * (local - 1) / local * 960 * local] * machines
    assert all(float(vector.parts[0][0]) == sum(range(ranks)) for vector in vectors)


def test_where_the_last_machine_is_smaller_the_first_of_each_carries_all() -> None:
    log, _ = reduce_by(partial(hierarchical, local=3), kilobytes(7))
    crossing = {(sent.sender.rank, sent.to.rank) for sent in log.sends if sent.sender.rank // 3 != sent.to.rank // 3}
    assert crossing == {(0, 3), (3, 6), (6, 0)}
    assert sum(log.bytes_from(who) for who in workers(7)) == (2 * 2 + 2 * 2 + 2 * 2) * 1000


def test_a_chain_works_on_all_links_at_once() -> None:
    """To the last rank and back, a fifth of the vector at a time: links wait only to begin."""
    log, took = reduce("chain", kilobytes(5))
    links = {tuple(sorted((sent.sender.rank, sent.to.rank))) for sent in log.sends}
    assert links == set(pairwise(range(5)))
    assert sum(sent.size for sent in log.sends) == 2 * 4 * 1000
    assert took == pytest.approx(2 * (5 + 3) / 5 * 0.001)


def test_a_chain_of_many_pieces_takes_hardly_longer_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 (m + n - 2) / m vectors pass the card of a rank in the middle; with many pieces m that comes near 2."""
    monkeypatch.setattr(sums, "GRAIN", 40)
    _, took = reduce("chain", kilobytes(5))
    assert took == pytest.approx(2 * (25 + 3) / 25 * 0.001)


def test_on_machines_that_are_there_members_alone_make_a_ring() -> None:
    """In virtual time each worker has a machine of its own, and carries all."""
    log, _ = reduce_by(partial(hierarchical, local=0), kilobytes(4))
    plain, _ = reduce("ring", kilobytes(4))
    assert [(s.sender, s.to, s.size) for s in log.sends] == [(s.sender, s.to, s.size) for s in plain.sends]


def test_where_machines_sum_in_their_memory_the_leaders_sum_alone_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines of two: each sums in its memory, the first ones between them, and the others get that alone."""

    def takes(self: GroupSums, thread: RoleProgram, effect: Collective) -> bool:
        thread.block(self._agenda.now, effect)
        waiting = self._waiting.setdefault((effect.group[0], len(effect.group)), {})
        waiting[thread.actor.address] = thread
        if len(waiting) == len(effect.group):
            members = [waiting.pop(who) for who in effect.group]
            wanted = [member.want for member in members]
            total = sum(want.vector.parts[0] * want.share for want in wanted if isinstance(want, Collective))
            for member, want in zip(members, wanted, strict=True):
                assert isinstance(want, Collective) and isinstance(total, torch.Tensor)
                want.vector.parts[0].copy_(total)
                self._agenda.at(self._agenda.now, self._wake, member, True)
        return True

    monkeypatch.setattr(GroupSums, "takes", takes)
    monkeypatch.setattr(Node, "machines", lambda self, group: [tuple(group[:2]), tuple(group[2:])])
    vectors = kilobytes(4)
    log, _ = reduce_by(partial(hierarchical, local=0), vectors)
    assert [vector.parts[0].unique().tolist() for vector in vectors] == [[6.0]] * 4
    assert {(sent.sender.rank, sent.to.rank) for sent in log.sends} == {(0, 2), (2, 0)}
