"""Links in virtual time: windows, priorities, replacement, loss, loans."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from covey.checkpoint import RoleState
from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.errors import PlanError
from covey.model.replica import Replica
from covey.observe.instruments import Instruments
from covey.program import Node
from covey.simulate import Cluster, network
from covey.vector import Vector
from tests.engines.stage import LINK, ME, SERVER, YOU, Log, Ping, Pong, ping, run


def test_a_full_window_holds_the_sender_and_its_wait_is_exchange() -> None:
    log = Log()

    async def floods(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step))
            await log.at(node, step)

    async def drains(node: Node, replica: Replica) -> None:
        assert [(await node.receive(Ping)).step for _ in range(4)] == [0, 1, 2, 3]

    outcome = run(floods, drains, window=2000)
    assert log == [(0, 0), (0, 1), (0.002, 2), (0.003, 3)]
    assert outcome.tallies[ME].exchange == pytest.approx(0.003)


def test_a_small_message_does_not_overtake_one_that_waits_for_room() -> None:
    """Another program of the same role sends it while the large one waits."""

    async def sends(node: Node, replica: Replica) -> None:
        await node.spawn(later(node))
        for step in range(3):
            await node.send(YOU, ping(step, 1500))

    async def later(node: Node) -> None:
        await node.sleep(0.0005)
        await node.send(YOU, ping(9, 300))

    async def takes(node: Node, replica: Replica) -> None:
        await node.sleep(1)
        assert [(await node.receive(Ping)).step for _ in range(4)] == [0, 1, 9, 2]

    run(sends, takes, window=2000)


def test_a_message_larger_than_the_window_passes_alone() -> None:
    log = Log()

    async def sends(node: Node, replica: Replica) -> None:
        for step in range(2):
            await node.send(YOU, ping(step, 5000))
            await log.at(node, step)

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Ping, step=0)
        await node.receive(Ping, step=1)

    run(sends, takes, window=2000)
    assert log == [(0, 0), (0.006, 1)]


def test_a_higher_priority_overtakes() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for step, priority in ((0, 0), (1, 0), (2, 5)):
            await node.send(YOU, ping(step), priority=priority)

    async def takes(node: Node, replica: Replica) -> None:
        assert [(await node.receive(Ping)).step for _ in range(3)] == [0, 2, 1]

    run(sends, takes)


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_the_latest_replaces_what_has_not_left(sharing: Any) -> None:
    heard: list[float] = []

    async def sends(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step), keep="latest")
        await node.send(YOU, Pong(0))

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Pong)
        while message := node.receive_nowait(Ping):
            heard.append(message.load.parts[0][0].item())

    outcome = run(sends, takes, cluster=Cluster(link=LINK, sharing=sharing))
    assert heard == [0, 3]
    assert outcome.tallies[ME].bytes == {"worker 1": 2000}
    assert outcome.tallies[ME].notes == {"replaced": 2}


def test_what_replaces_another_counts_by_its_own_size() -> None:
    """Each time 400 bytes in the place of 1000: else 1800 of the 3000 would be counted for ever."""

    async def sends(node: Node, replica: Replica) -> None:
        for _ in range(3):
            for step, size in enumerate((1000, 1000, 400)):
                await node.send(YOU, ping(step, size), keep="latest")
            await node.sleep(0.1)
        await node.send(YOU, ping(9, 2000), lossy=True)
        await node.send(YOU, Pong(0))

    async def takes(node: Node, replica: Replica) -> None:
        assert [(await node.receive(Ping)).step for _ in range(6)] == [0, 2] * 3
        await node.receive(Pong)
        assert (last := node.receive_nowait(Ping)) and last.step == 9

    assert run(sends, takes, window=3000).tallies[ME].notes == {"replaced": 3}


def test_what_lies_unread_at_a_role_that_has_ended_holds_nobody() -> None:
    log = Log()

    async def floods(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step))
            await log.at(node, step)

    async def leaves(node: Node, replica: Replica) -> None:
        await node.sleep(0.01)

    run(floods, leaves, window=2000)
    assert log == [(0, 0), (0, 1), (0.01, 2), (0.01, 3)]


def test_what_a_checkpoint_kept_unread_fills_the_window_until_it_is_taken() -> None:
    log = Log()
    unread = msgspec.structs.replace(ping(9), sender=ME)
    kept = RoleState.of(done=0, seconds=0.0, memories={}, replica={}, mailbox=[unread], rng=Random(0))

    async def floods(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step))
            await log.at(node, step)

    async def drains(node: Node, replica: Replica) -> None:
        for _ in range(5):
            await node.sleep(0.01)
            await node.receive(Ping)

    run(floods, drains, window=2000, attempt=VirtualAttempt(states={YOU: kept}))
    assert log == [(0, 0), (0.01, 1), (0.02, 2), (0.03, 3)], "one of the two places was taken from the start"


def test_a_lossy_message_is_lost_only_when_the_window_is_full() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for step in range(4):
            await node.send(YOU, ping(step), lossy=True)
        await node.sleep(0.1)
        await node.send(YOU, ping(4), lossy=True)
        await node.send(YOU, Pong(0))

    async def takes(node: Node, replica: Replica) -> None:
        await node.receive(Pong)
        steps = [message.step for message in iter(lambda: node.receive_nowait(Ping), None)]
        assert steps == [0, 1, 4]

    tally = run(sends, takes, window=2000).tallies[ME]
    assert tally.bytes == {"worker 1": 3000} and tally.notes == {"lost": 2}, "only what was sent is counted"


def test_what_was_sent_stays_unless_it_is_lent() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        for loan in (False, True):
            message = ping(1)
            await node.send(YOU, message, loan=loan)
            message.load.zero_()

    async def takes(node: Node, replica: Replica) -> None:
        kept, lent = await node.receive(Ping), await node.receive(Ping)
        assert [message.load.parts[0][0].item() for message in (kept, lent)] == [1, 0]

    run(sends, takes)


def test_receive_into_a_vector() -> None:
    async def sends(node: Node, replica: Replica) -> None:
        await node.send(YOU, ping(7))
        await node.send(YOU, ping(8))

    async def takes(node: Node, replica: Replica) -> None:
        room = Vector([torch.zeros(250)])
        for step in (7, 8):
            message = await node.receive(Ping, into=room)
            assert message.load is room
            assert (room.parts[0] == step).all()
            await node.sleep(0.1)

    run(sends, takes)


def test_a_role_may_write_to_itself_for_nothing() -> None:
    async def alone(node: Node, replica: Replica) -> None:
        await node.send(ME, ping())
        assert (await node.receive(Ping)).sender == ME

    outcome = run(alone)
    assert (outcome.seconds, outcome.tallies[ME].bytes) == (0, {})


def test_sending_to_nobody_names_the_roles() -> None:
    async def lost(node: Node, replica: Replica) -> None:
        await node.send(SERVER, Pong(0))

    with pytest.raises(PlanError, match=r"worker 0 sends to server 0.*roles are worker 0"):
        run(lost)


def test_links_of_a_checkpoint_lead_to_the_machines_on_which_their_roles_live_now() -> None:
    """They exist before roles are given their machines, as a checkpoint keeps unread messages."""
    me, you = (
        SimpleNamespace(
            address=who, host=str(who), machine=str(who), links={}, mailbox=SimpleNamespace(waiting=[]),
        )
        for who in (ME, YOU)
    )  # fmt: skip
    you.mailbox.waiting.append(Pong(0, sender=ME))
    links = VirtualLinks(network(Cluster(link=LINK)), 1000, Agenda(), Instruments())
    links.connect({ME: me, YOU: you}, lambda flight, _: None, lambda thread: None)  # type: ignore[dict-item]
    assert me.links[YOU].arrival(0.0, 1000) == pytest.approx(0.002)
    me.machine = you.machine = "machine 0"
    links.moved()
    assert me.links[YOU].arrival(0.0, 1000) == 0.0
