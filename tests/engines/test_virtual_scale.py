"""Runs in virtual time with very many workers: what each of them has and does must not grow with their number."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import covey
from covey.decentral.peer_membership import PeerMembership
from covey.decentral.step_shares import StepShares
from covey.engines.virtual import agenda
from covey.membership import Incarnation
from covey.message import Address
from covey.model.batches import BatchSource
from covey.model.replica import Replica
from covey.run import simulated
from covey.servers.goodbye import Goodbye
from covey.servers.round_messages import SeatMarks
from covey.simulate import BytesPerSecond, Link, Seconds
from covey.simulate.around import ring_ends
from covey.synchronization import Board, WaitingGradient
from covey.vector import Vector, mean


def node(rank: int, incarnation: Incarnation = Incarnation()) -> Any:  # noqa: B008
    return SimpleNamespace(rank=rank, workers=5, incarnation=incarnation, step=0)


def test_workers_of_a_first_incarnation_share_what_they_know_of_others() -> None:
    one, other = (SeatMarks(node(rank)).marks for rank in (1, 3))
    assert one is other == (0,) * 5
    assert SeatMarks(node(3, Incarnation(number=2))).marks == (0, 0, 0, 4, 0)
    peers = [PeerMembership(node(rank), Any, near=[2]) for rank in (1, 3)]
    assert peers[0].incarnations is peers[1].incarnations and peers[0].others == []
    shares = StepShares(node(1), Any, Goodbye, near=[2])
    assert not shares._came and not shares._newest and not shares._begins


def test_all_others_are_known_where_lost_workers_are_restarted() -> None:
    elastic: Any = node(1, Incarnation(elastic=True))
    elastic.remember = lambda name, value: SimpleNamespace(value=value)
    assert PeerMembership(elastic, Any, near=[3]).others == [3, 0, 2, 4]
    assert [*StepShares(elastic, Any, Goodbye, near=[3])._came] == [0, 1, 2, 3, 4]


def test_the_samples_of_a_step_are_added_up_once_without_hashing_the_ranks() -> None:
    asked: list[int] = []

    class Rank(int):
        def __hash__(self) -> int:
            raise AssertionError("a hundred thousand of them take long")

    def samples(rank: int, step: int) -> int:
        asked.append(rank)
        return 10 * rank + step

    ranks = tuple(map(Rank, range(3)))
    for source in (BatchSource(samples=samples), BatchSource(samples=samples)):
        assert source.together(ranks, 1) == 33
    assert asked == [0, 1, 2]
    assert BatchSource(samples=samples).together((1, 2), 1) == 32 and source.together(ranks, 17) == 81


def test_the_smallest_clock_is_looked_for_when_the_last_that_has_it_moves() -> None:
    looked = 0

    class Clocks(dict[int, int]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    board, draw, moves = Board(Clocks(dict.fromkeys(range(50), 0))), Random(3), 0
    for _ in range(400):
        rank, clocks = draw.randrange(60), board.clocks
        if rank not in clocks:
            board.enter(rank, draw.randrange(max(clocks.values()) + 1))
        elif draw.random() < 0.1 and len(clocks) > 1:
            board.leave(rank)
        elif clocks[rank] < 3 + moves / 50:
            board.came(WaitingGradient(rank, 0, 1), 0.0)
            moves += 1
        assert board.slowest == min(dict.values(clocks))
    board = Board(Clocks(dict.fromkeys(range(50), 0)))
    looked = 0
    for rank in range(50):
        assert board.slowest == 0
        board.came(WaitingGradient(rank, 0, 1), 0.0)
    for rank in range(49):
        assert board.slowest == 1
        board.leave(rank)
    assert looked == 2, "once at the beginning, and once when all had moved"


def test_vectors_without_numbers_are_not_reckoned_with_unless_somebody_counts() -> None:
    called: list[str] = []

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    def work(device: str) -> Vector:
        one, other = (Vector([torch.ones(4, device=device)]) for _ in range(2))
        return mean([one.add_(other, 2), one - other, other * 3, other.lerp_(one, 0.5), one.mul_(0.5)], [1.0] * 5)

    with Calls():
        found = work("meta")
    arithmetic = {"add_", "sub", "mul", "mul_", "add", "lerp_"}
    assert found.hollow and found.numel == 4 and not arithmetic & {*called}
    with Calls():
        assert work("cpu").parts[0].tolist() == [2.0] * 4
    assert arithmetic & {*called}
    called.clear()
    with Counting():
        work("meta")
    assert {"aten.add_.Tensor", "aten.sub.Tensor", "aten.lerp_.Scalar"} <= {*called}


def test_workers_that_are_only_timed_have_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas: dict[Address, Replica] = {}
    make = simulated.stand_in

    def noted(model: Any, who: Address, *rest: Any) -> Replica:
        replicas[who] = make(model, who, *rest)
        return replicas[who]

    monkeypatch.setattr(simulated, "stand_in", noted)
    covey.fit("examples/digits.py", "asynchronous", 3, engine="simulated", timing_only=True, steps=1)
    *workers, server = (replicas[who] for who in sorted(replicas, reverse=True))
    assert len({id(replica.layout) for replica in workers}) == len({id(replica.optimizer) for replica in workers}) == 1
    assert server.layout is not workers[0].layout and server.optimizer is not workers[0].optimizer
    workers[0].keep(((0, 100),), buffers=False)
    assert workers[0].optimizer is not workers[1].optimizer, "it steps on a slice"


def plainly(begins: Sequence[float], links: Sequence[Link], sizes: Sequence[float]) -> list[float]:
    """The recurrence as it is written down."""
    rate, own = np.array([link.goodput for link in links]), np.array([float(link.latency) for link in links])
    latency, onward = np.maximum(own, np.roll(own, -1)), np.roll(rate, -1)
    now, out, into = np.array(begins), np.zeros(len(begins)), np.zeros(len(begins))
    for turn in range(2 * (len(begins) - 1)):
        sent = np.roll(np.array(sizes, dtype=float), turn)
        begin = np.maximum(now, out)
        out = begin + sent / rate
        into = np.maximum(begin + latency, into) + sent / onward
        now = np.maximum(now, np.roll(np.maximum(out + latency, into), 1))
    return now.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("rates", [[1e6], [1e6, 3e7, 1e9]])
@pytest.mark.parametrize("size", [2, 3, 70])
def test_a_ring_ends_at_the_same_times_to_the_bit(size: int, rates: list[float]) -> None:
    draw = Random(size)
    links = [
        Link(bandwidth=BytesPerSecond(draw.choice(rates)), latency=Seconds(draw.choice([1e-4, 5e-3])))
        for _ in range(size)
    ]  # fmt: skip
    begins, sizes = [draw.random() for _ in links], [draw.randrange(5000) for _ in links]
    assert ring_ends(begins, links, sizes) == plainly(begins, links, sizes)


def test_the_garbage_collector_passes_over_many_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agenda, "MANY", 10)
    for roles, frozen in ((9, False), (10, True)):
        before = gc.get_freeze_count()
        with agenda.few_collections(roles):
            assert (gc.get_freeze_count() > before) == frozen
        assert gc.get_freeze_count() <= before
