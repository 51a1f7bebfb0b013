"""Formulas of delays against the patterns themselves, in virtual time; and the choice between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.costs import DELAYS, LinkTimes, delay, step_seconds
from covey.exchange.collectives.probe import LinkProbe, PatternRequest, decide, measure
from covey.model.replica import Replica
from covey.program import Node
from covey.simulate import BytesPerSecond, Seconds
from covey.simulate import Link as Wire
from covey.strategy import workers
from covey.vector import Vector
from tests.worlds import CLUSTER, perform

SLOW = replace(CLUSTER, link=Wire(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.002)))
LINK = LinkTimes(0.002, 0.0, 1e-6)


def seconds(name: str, ranks: int, nbytes: int) -> float:
    """How long the pattern really takes."""
    group, ends = workers(ranks), []

    async def run(node: Node, replica: Replica) -> None:
        await PATTERNS[name](node, Vector([torch.zeros(nbytes // 4)]), group)
        ends.append(await node.now())

    perform(*[run] * ranks, cluster=SLOW)
    return max(ends)


@pytest.mark.parametrize("ranks", [2, 3, 5, 6, 8])
@pytest.mark.parametrize("name", DELAYS)
def test_a_pattern_takes_as_long_as_its_formula_says(name: str, ranks: int) -> None:
    for nbytes in (0, 4 * 8 * 15, 4 * 8 * 1500):
        expected = delay(name, ranks, nbytes).seconds(LINK, nbytes)
        spared = 0.0
        if name in ("doubling", "binomial") and ranks & (ranks - 1):  # a message meets one of the round before
            spared = LINK.latency + nbytes * LINK.byte
        assert expected - spared <= seconds(name, ranks, nbytes) + 1e-9 <= expected + 2e-9


@pytest.mark.parametrize("ranks", [2, 5])
def test_the_first_rank_measures_the_link(ranks: int) -> None:
    """In virtual time exactly; the others only pass on what comes, and what comes is no traffic."""
    found: list[LinkTimes] = []

    async def first(node: Node, replica: Replica) -> None:
        found.append(await measure(node, workers(ranks)))

    sent_more = 2  # 4 kB take 4 ms, which is not yet four times as long as 8 bytes

    async def other(node: Node, replica: Replica) -> None:
        for _ in range(3 + 8 + sent_more):
            message = await node.receive(LinkProbe)
            await node.send(workers(ranks)[(node.rank + 1) % ranks], LinkProbe(message.load))

    log = perform(first, *[other] * (ranks - 1), cluster=SLOW)
    assert (found[0].latency, found[0].gap, found[0].byte) == pytest.approx((0.002, 0.0, 1e-6), abs=1e-9)
    assert sum(sent.size for sent in log.sends) == 0


@pytest.mark.parametrize(
    ("link", "ranks", "nbytes", "pattern"),
    [
        (LinkTimes(1e-3, 1e-3, 1e-9), 4, 4_000, "doubling"),  # rounds are dear, and so is each message
        (LinkTimes(1e-3, 0.0, 1e-9), 5, 4_000, "butterfly"),  # one round for all
        (LinkTimes(1e-3, 1e-3, 1e-9), 5, 4_000, "bruck"),  # three rounds of one message each
        (LinkTimes(1e-4, 1e-4, 1e-7), 4, 4_000_000, "halving"),  # a ring's bytes in fewer rounds
        (LinkTimes(1e-4, 1e-4, 1e-7), 5, 400_000_000, "ring"),  # bytes alone count, and no rank stands in for another
        (LinkTimes(1e-4, 1e-5, 1e-7), 5, 4_000_000, "scatter"),  # two rounds, where messages cost little
    ],
)
def test_the_choice_follows_size_ranks_and_link(link: LinkTimes, ranks: int, nbytes: int, pattern: str) -> None:
    assert decide(link, ranks, PatternRequest(pattern="auto", bucket=0), nbytes, 0.01) == (pattern, 0)


def test_buckets_are_as_small_as_the_link_allows() -> None:
    """Of a fast link more, smaller ones; of one whose rounds are dear few; none where backward takes no time."""
    wish, size = PatternRequest(pattern="scatter", bucket="auto"), 8_000_000
    sizes = [decide(LinkTimes(latency, 0.0, 1e-9), 4, wish, size, 0.03)[1] for latency in (1e-6, 1e-4, 1e-3)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert decide(LinkTimes(1e-3, 0.0, 1e-9), 4, wish, size, 0.0) == ("scatter", 0)
    assert decide(LinkTimes(0.1, 0.0, 1e-9), 4, wish, size, 0.03) == ("scatter", 0)


def test_no_other_number_of_buckets_would_give_a_shorter_step() -> None:
    link, size = LinkTimes(1e-4, 0.0, 1e-8), 8_000_000
    _, bucket = decide(link, 4, PatternRequest(pattern="scatter", bucket="auto"), size, 0.12)
    steps = [step_seconds("scatter", link, 4, size, 0.12, count) for count in range(1, 65)]
    assert steps[round(size / bucket) - 1] == min(steps) < 0.75 * steps[0]
