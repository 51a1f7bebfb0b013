"""MLNet: of answers that wait for one link, those to lagging workers leave first; no number changes."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from covey import catalog
from covey.central.server.shard import Params
from tests.worlds import Sent, World, quadratic, run, slowed, worker

# The weights are 8 kB, 8 ms on a link; a batch takes 10 ms.
TASK = quadratic(size=1000, samples=160)


def answers(world: World, role: str = "proxy") -> list[tuple[Sent, float]]:
    """Every answer of this kind of role, and when it was there."""
    there = {id(event.message): event.at for event in world.log.deliveries}
    return [(sent, there[id(sent.message)]) for sent in world.log.kinds(Params) if sent.sender.role == role]


def firsts(world: World) -> list[int]:
    """The worker that was answered first, step by step."""
    found: dict[int, tuple[float, int]] = {}
    for sent, there in answers(world):
        step = sent.message.step  # type: ignore[attr-defined]
        found[step] = min(found.get(step, (there, sent.to.rank)), (there, sent.to.rank))
    return [rank for _, (_, rank) in sorted(found.items())]


def test_the_lagging_workers_transfer_is_there_before_the_others() -> None:
    """Worker 2 takes six times as long, so what it waits for is what all wait for; bsp's bits stay."""
    spec = "bsp over proxies(groups=1{})"
    plain, lagging = (
        run(TASK, spec.format(more), 4, steps=5, cluster=slowed(w2=6)) for more in ("", ", first=lagging")
    )
    assert firsts(plain) == [0] * 5
    assert firsts(lagging) == [0, 2, 2, 2, 2], "at first nobody lags"
    assert torch.equal(plain.scored["w"], lagging.scored["w"])
    assert sum(event.size for event in plain.log.sends) == sum(event.size for event in lagging.log.sends)
    assert lagging.outcome.seconds < plain.outcome.seconds - 3 * 0.008, "two transfers less before its batch"


@pytest.mark.parametrize(("more", "expected"), [("", False), (", first=lagging", True)])
def test_an_answer_to_one_who_is_behind_overtakes_those_that_wait(more: str, expected: bool) -> None:
    """Under a bound workers are at different steps: what was sent earlier, to one who is ahead, lets it pass."""
    world = run(TASK, f"ssp(bound=3) over proxies(groups=1{more})", 5, steps=8, cluster=slowed(w1=2.5, w4=3.1))
    given = answers(world)
    overtaken = [
        (early, late)
        for (early, there), (late, later) in permutations(given, 2)
        if early.at < late.at and later < there
    ]
    assert bool(overtaken) == expected
    lead = [early.message.step - late.message.step for early, late in overtaken]  # type: ignore[attr-defined]
    assert min(lead, default=0) >= 0 and (max(lead, default=0) > 0) == expected


def test_servers_answer_lagging_groups_first() -> None:
    """Over the servers' link too: while one answer travels, that to the slow group overtakes the one that waits."""
    spec = "bsp over proxies(groups=3{})"
    orders = []
    for more in ("", ", first=lagging"):
        world = run(TASK, spec.format(more), 3, steps=4, cluster=slowed(w2=8))
        last = sorted((there, sent.to.rank) for sent, there in answers(world, "server"))[-3:]
        orders.append([rank for _, rank in last])
    assert orders == [[0, 1, 2], [1, 2, 0]]


def test_a_strategys_text_says_who_is_first() -> None:
    text = "ssp(bound=3) over proxies(groups=2, bound=1, first=lagging)"
    assert catalog.resolve(text, 4).text.endswith("over proxies(groups=2, bound=1, first=lagging)")
    assert "first" not in catalog.resolve("bsp over proxies", 4).text
    assert worker(0) in [role.address for role in catalog.resolve(text, 4).layout(4, None)]
