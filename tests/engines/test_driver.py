"""One role's driver on real sockets: what it tallies is what its links took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import zmq

from covey.checkpoint import RoleState
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.role.compute_thread import ComputeThread, WorkDone
from covey.engines.process.role.driver import Driver
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import RunningProgram
from covey.engines.transport.zmq import ZmqTransport
from covey.message import stamped
from covey.model.replica import Replica
from covey.program import Effect, Node, Receive, Send
from covey.strategy import Plan, Role
from covey.vector import Vector
from tests.engines.stage import ME, YOU, Ping
from tests.worlds import Point, sgd

NUMBERS = 1 << 16  # more than travels in one piece with its header


async def idle(node: Node, replica: Replica) -> None:
    pass


@pytest.fixture
def driver() -> Iterator[Driver]:
    """A role whose peer is not there, so that little can leave."""
    with TemporaryDirectory(dir="/tmp") as place, zmq.Context() as context:
        book = {who: f"ipc://{Path(place) / str(who.rank)}" for who in (ME, YOU)}
        links = ZmqTransport(ME, book, limit=1 << 30, window=1 << 20)
        roles = tuple(Role(who, idle, trains=True) for who in (ME, YOU))
        line = RoleLine(context, f"ipc://{place}/launcher", ME)
        replica = Replica(Point(1, torch.float64), sgd())
        yield Driver(
            Plan(roles=roles, limits=(1, 1), lockstep=False),
            roles[0],
            replica,
            links,
            line,
            ComputeThread(),
            lambda *_: None,
        )
        line.socket.close(linger=0)
        links.close()


def send(driver: Driver, times: int, **how: Any) -> None:
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=True)
    for step in range(times):
        effect: Effect[Any] = Send(YOU, Ping(step, Vector([torch.ones(NUMBERS)])), **how)
        driver.perform(running, effect)
    program.close()


def test_what_is_dropped_is_no_traffic(driver: Driver) -> None:
    send(driver, 50, lossy=True)
    tally, sent = driver.metrics.teller.of(ME), driver.links.sent[YOU]
    assert 0 < sent < 50
    assert tally.messages == {"worker 1": sent} and tally.bytes == {"worker 1": sent * 4 * NUMBERS}
    assert tally.notes == {"lost": 50 - sent}


def test_what_is_replaced_is_counted_once(driver: Driver) -> None:
    send(driver, 50, keep="latest")
    tally, sent = driver.metrics.teller.of(ME), driver.links.sent[YOU]
    assert 0 < sent < 50
    assert tally.bytes == {"worker 1": sent * 4 * NUMBERS} and tally.notes == {"replaced": 50 - sent}


def test_what_comes_for_a_program_that_is_held_lies_in_the_mailbox_that_is_kept(driver: Driver) -> None:
    """A checkpoint has it begin its step again, and receive again."""
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=True)
    running.wants(Receive((Ping,)))
    driver.programs.running.append(running)
    first, second = (stamped(Ping(step, Vector([torch.ones(1)])), YOU, copy=False) for step in range(2))
    driver.held = running
    driver.deliver(first)
    assert driver.host.mailbox.waiting == [first] and not driver.programs.ready
    driver.held = None
    driver.deliver(second)
    assert driver.host.mailbox.waiting == [first] and len(driver.programs.ready) == 1
    program.close()


def test_a_role_that_goes_on_draws_on_and_has_its_mail(driver: Driver) -> None:
    drawn = driver.host.rng
    first = [drawn.random() for _ in range(5)]
    word = stamped(Ping(3, Vector([torch.ones(1)])), YOU, copy=False)
    kept = RoleState.of(rng=drawn, done=1, seconds=0.0, memories={}, replica={}, mailbox=[word])
    plan = Plan(roles=(driver.role,), limits=(2,), lockstep=False)
    again = RoleHost(plan, driver.role, ComputeThread(), driver.links, kept)
    following = again.rng.random()
    assert following == drawn.random() and following not in first
    assert again.mailbox.waiting == [word]


def test_work_that_posts_and_ends_while_the_driver_looks_has_not_ended_before_its_post() -> None:
    class Busy(ComputeThread):
        looks = 0

        def _taken(self, given: Any) -> list[Any]:
            found = super()._taken(given)
            self.looks += 1
            if self.looks == 1:
                self.post("a bucket")
                self._done.append((WorkDone("the end", None), None))
            return found

    compute_thread = Busy()
    compute_thread.wake()
    posts, ends = list[Any](), list[Any]()
    for _ in range(2):
        posted, _, done = compute_thread.collect()
        posts, ends = posts + posted, ends + done
        assert posts or not ends
    assert posts == ["a bucket"] and len(ends) == 1
