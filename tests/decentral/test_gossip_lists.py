"""What a worker of gossip learns of the models of others, from what comes with theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from covey.decentral.gossip.gossip_lists import GossipList, ModelContents
from covey.errors import WireError
from covey.message import Address

LIMIT = 5
ONE = Address("worker", 1)


def listed(rank: int = 0, workers: int = 3) -> GossipList:
    node: Any = SimpleNamespace(
        rank=rank, workers=workers, step=-1, limits=[LIMIT] * workers, address=Address("worker", rank),
        incarnation=SimpleNamespace(number=0, elastic=False, ended=()),
    )  # fmt: skip
    source = SimpleNamespace(steps=lambda seat: LIMIT, samples=lambda seat, number: 1, shared=None)
    replica: Any = SimpleNamespace(batch_source=source, weigh=lambda weight: None)
    return GossipList(node, replica)


def contents(*rows: tuple[int, ...], version: int = 0) -> tuple[int, ...]:
    return version, *(count for row in rows for count in row)


def test_a_model_contains_what_came_with_it_and_not_what_its_sender_has_done_since() -> None:
    mine = listed()
    mine.took_in(Address("worker", 2), contents((0, 0, 0), (0, 4, 0), (0, 2, 1)))  # 2 has heard of 4 batches of 1
    assert mine.counts == [0, 2, 1]
    mine.took_in(ONE, contents((0, 0, 0), (0, 3, 1), (0, 0, 0)))
    assert mine.counts == [0, 3, 1] and mine.known[1] == [0, 4, 1]


def test_a_gradient_contains_the_batches_of_its_sender_alone() -> None:
    mine = listed()
    mine.took_in(Address("worker", 2), contents((0, 0, 0), (0, 4, 0), (0, 2, 1)), whole=False)
    mine.took_in(ONE, contents((0, 0, 0), (0, 3, 1), (0, 0, 0)), whole=False)
    assert mine.counts == [0, 3, 1]


def test_of_an_older_list_only_what_the_sender_says_of_itself_is_believed() -> None:
    """What it says of others may be of incarnations that are over, whose batches others were given."""
    mine = listed()
    mine._begin_list(1, (0, 0, 2), [2, 2, 1])
    mine.known = [[2, 2, 1] for _ in range(3)]
    mine.took_in(ONE, contents((2, 0, 0), (2, 3, 1), (2, 2, 4), version=0))
    assert mine.counts == [2, 3, 1] and mine.known[1:] == [[2, 3, 1], [2, 2, 1]]
    mine.took_in(ONE, contents((2, 3, 1), (2, 3, 1), (2, 2, 2), version=1))
    assert mine.known[2] == [2, 2, 2]


@pytest.mark.parametrize("whole", [True, False])
def test_nobody_is_told_by_others_what_it_has_done_itself(whole: bool) -> None:
    mine = listed()
    mine.did()
    mine.took_in(ONE, contents((4, 4, 0), (3, 1, 0), (0, 0, 0)), whole)
    assert mine.counts == [1, 1, 0]


def test_of_a_seat_that_is_empty_nothing_is_known() -> None:
    mine = listed()
    mine.known = [[1, 1, 1], [1, 1, 1], [1, 1, 3]]
    mine.seats.marks = 0, 0, 1
    mine._make_list({rank: ModelContents(0, (1, 1, 1), 0) for rank in (0, 1)}, {})
    assert mine.known == [[1, 1, 1], [1, 1, 1], [0, 0, 0]] and mine.start == [1, 1, 1]


@pytest.mark.parametrize(
    "numbers",
    [(), (0,), (0,) * 9, (0,) * 11, (0, *[0] * 8, 3 * LIMIT + 1), (0, -1, *[0] * 8), (0, 1 << 60, *[0] * 8)],
)
def test_contents_that_cannot_be_are_refused_by_name(numbers: tuple[int, ...]) -> None:
    mine = listed()
    with pytest.raises(WireError, match="worker 1 sent .* where 9 were due, each from 0 to 15"):
        mine.took_in(ONE, numbers)
    assert mine.known == [[0] * 3] * 3


def test_all_batches_of_a_run_may_be_of_one_worker() -> None:
    mine = listed()
    mine.took_in(ONE, contents((0, 0, 0), (0, 3 * LIMIT, 0), (0, 0, 0)))
    assert mine.counts == [0, 3 * LIMIT, 0]


@pytest.mark.parametrize(
    ("counts", "step", "said"),
    [
        ((0, 0), 0, "worker 1 sent"), ((0, 0, 3 * LIMIT + 1), 0, "worker 1 sent"),
        ((0, 0, 0), 1 << 60, "worker 1 says that it is at step .* where -1 to 45 are possible"),
        ((0, 0, 0), -2, "worker 1 says that it is at step -2"),
    ],
)  # fmt: skip
def test_who_tells_impossible_numbers_when_all_meet_is_refused(counts: tuple[int, ...], step: int, said: str) -> None:
    mine = listed(workers=3)
    mine.ended = set()
    mine.seats.marks = 0, 0, 1

    async def broadcast(whom: Any, message: Any) -> None: ...

    async def receive(kind: Any, sender: Address) -> Any:
        return ModelContents(0, counts, step)

    mine.node.broadcast, mine.node.receive = broadcast, receive  # type: ignore[assignment]
    with pytest.raises(WireError, match=said):
        mine._catch_up({}).send(None)
