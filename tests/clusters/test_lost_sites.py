"""Sites that were given up, and those that take their places: who is heard, who is tried again, who is cut off."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import zmq

from covey.engines.cluster.engine_processes import EngineProcesses, title
from covey.engines.cluster.gate import SiteGate
from covey.engines.cluster.losses.lost_sites import LostSites
from covey.engines.cluster.losses.reachability import TRIES, ReachRounds, cut_off, reached
from covey.engines.cluster.placement import place, sites_of
from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import Heartbeat, LeaveRun, SiteConfig, downward
from covey.engines.process import control, liveness
from covey.engines.process.control_lines import RoleLine, Switchboard
from covey.engines.process.launcher.empty_seats import TOLD_TO_LEAVE, cause_of
from covey.engines.transport.token import NONE, seal, unseal
from covey.errors import PeerLost
from covey.message import Address
from covey.strategy import Role
from covey.strategy.roles import with_copies

WORKER = Address("worker", 1)


class Hosts(Places):
    """Hosts that are there or not, as a test says."""

    def __init__(self) -> None:
        self.there, self.invited = False, list[SiteConfig]()

    def open(self, patience: float) -> list[str]:
        return ["a", "b"]

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None: ...

    def invite_again(self, config: SiteConfig) -> bool:
        if self.there:
            self.invited.append(config)
        return self.there

    def lost(self) -> str:
        return ""

    def close(self, well: bool) -> None: ...


def config(number: int) -> SiteConfig:
    return SiteConfig(site=number, launcher="tcp://127.0.0.1:1", warm="")


def test_a_lost_site_is_started_again_once_its_host_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, renewed, now = Hosts(), list[tuple[int, int]](), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lost = LostSites(hosts, config, patience=30.0)

    def here() -> bool:
        now[0] += 1.0
        return lost.is_here(1, lambda number, incarnation: renewed.append((number, incarnation)))

    assert here(), "nobody has lost it"
    lost.lose(1)
    assert not here() and renewed == []
    hosts.there = True
    assert not here() and not here() and renewed == [(1, 1)], "it was asked for once, and has not come yet"
    assert hosts.invited[0].incarnation == 1 and hosts.invited[0].identity == b"site/1.1"
    now[0] += 30.0
    assert not here() and renewed == [(1, 1), (1, 2)], "one that does not come is replaced"
    lost.arrive(1)
    assert here()


def test_a_site_that_is_lost_on_its_way_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, renewed, now = Hosts(), list[int](), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lost, hosts.there = LostSites(hosts, config, patience=30.0), True
    for _ in range(2):
        lost.lose(1)
        now[0] += 1.0
        assert not lost.is_here(1, lambda number, incarnation: renewed.append(incarnation))
    assert renewed == [1, 2], "and not after 30 seconds"


def test_a_site_that_was_given_up_is_not_heard_and_has_to_leave() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    gate = SiteGate(context, "tcp://127.0.0.1:*", 2)
    try:
        lines = {}
        for incarnation in (0, 1):
            lines[incarnation] = context.socket(zmq.DEALER)
            lines[incarnation].setsockopt(
                zmq.IDENTITY, SiteConfig(site=1, incarnation=incarnation, launcher="", warm="").identity
            )
            lines[incarnation].connect(gate.endpoint)
        gate.renew(1, 1)
        for line in lines.values():
            line.send(seal(NONE, Heartbeat()))
        heard: list[int] = []
        while not lines[0].poll(20):
            heard += [number for number, _ in gate.words()]
        while not heard:
            heard += [number for number, _ in gate.words()]
        told = unseal(NONE, lines[0].recv(), downward)
        assert isinstance(told, LeaveRun) and not told.well
        assert heard == [1] and not gate.refusals.lines()
    finally:
        gate.close()
        context.destroy(linger=0)


def test_the_launcher_hears_no_incarnation_but_the_newest_of_a_role() -> None:
    """The old one may live on beyond a link that was cut, and speak when the link is restored."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        board = Switchboard(context, "tcp://127.0.0.1:*", [WORKER])
        old, new = (RoleLine(context, board.endpoint, WORKER, incarnation=incarnation) for incarnation in (0, 2))
        board.forget(WORKER)
        board.renew(WORKER, 2)
        old.tell(control.Doing("old"))
        new.tell(control.Doing("new"))
        heard: list[control.Upward] = []
        while control.Doing("new") not in heard:
            heard += [word for _, word in board.heard()]
        old.tell(control.Doing("older still"))
        board.socket.poll(500)
        heard += [word for _, word in board.heard()]
        assert heard == [control.Doing("new")] and not board.refusals.lines()
        board.tell([WORKER], control.Quit())
        assert new.wait() == control.Quit() and not old.socket.poll(100)
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("exited with signal 9, SIGKILL (out of memory?)", "killed by signal 9"),
        ("exited with signal 15, SIGTERM", TOLD_TO_LEAVE),
        ("was lost with host h1, which no other host reaches", "lost with host h1"),
        ("exited with code 1", ""),
    ],
)
def test_why_a_role_is_replaced(how: str, cause: str) -> None:
    assert cause_of(how) == cause


# -- hosts that are cut off


def test_who_is_cut_off() -> None:
    tried = {0: [1, 2], 1: [2, 0], 2: [0, 1]}
    assert cut_off(tried, {0: [1], 1: [0], 2: []}) == {2}
    assert cut_off(tried, {0: [1, 2], 1: [0, 2], 2: []}) == set(), "a host that does not reach others, but is reached"
    assert cut_off(tried, {0: [1], 1: [0], 2: [0]}) == set()
    assert cut_off(tried, {0: [], 1: [], 2: []}) == set(), "where nobody reaches anybody, nobody knows"
    assert cut_off({0: [1], 1: [0]}, {0: [], 1: []}) == set(), "of two, neither knows which is cut off"
    assert cut_off(tried, {0: [1], 1: [0]}) == set(), "who does not answer is the gate's business"


def test_a_host_is_given_up_after_several_rounds_in_a_row() -> None:
    rounds = ReachRounds(every=0.0)
    addresses = {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3", 3: "10.0.0.3"}
    for number in range(2 * TRIES):
        plan = rounds.begin(addresses)
        assert 3 not in plan[2] and 2 not in plan[3], "one does not leave a host to find it"
        cut = number != TRIES - 1
        for site, targets in plan.items():
            alone = cut and addresses[site] == "10.0.0.3"
            rounds.hear(site, [] if alone else [one for one in targets if not cut or one < 2])
        assert rounds.ended()
        assert rounds.conclude() == ([2, 3] if number == 2 * TRIES - 1 else [])


def test_a_host_is_reached_whether_or_not_anybody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.engines.cluster.losses.reachability.PORT", door.getsockname()[1])
        assert reached({0: "127.0.0.1", 1: "127.0.0.2", 2: "224.0.0.1"}, 0.3) == [0, 1]


def test_copies_of_a_server_are_placed_on_different_hosts() -> None:
    async def program(*given: object) -> None: ...

    roles = [Role(Address("worker", rank), program, trains=True) for rank in range(3)]  # type: ignore[arg-type]
    roles = with_copies([*roles, Role(Address("server", 0), program)], 3)  # type: ignore[arg-type]
    homes = place(roles, sites_of(["a", "a", "b", "c"]))
    copies = [who for who in homes if who.role in ("server", "backup")]
    assert len(copies) == 3 and {homes[who].host for who in copies} == {"a", "b", "c"}


def stopped_for_long(name: str, apart: bool) -> tuple[EngineProcesses, subprocess.Popen[bytes]]:
    """The processes of an engine, of which one with this name has been stopped for longer than it may be."""
    process = subprocess.Popen(["bash", "-c", f"exec -a '{name}' sleep 60"])
    while not title(process.pid).startswith(name):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGSTOP)
    while liveness.state(process.pid) not in liveness.STOPPED:
        time.sleep(0.01)
    engine = EngineProcesses(lambda: [process.pid], stall=1.0, apart=apart)
    engine.silence.every = 0.0
    engine.silence.last[process.pid] = liveness.state(process.pid), -2.0
    return engine, process


@pytest.mark.parametrize(("name", "apart", "ends"), [
    ("covey: site h2", True, False), ("covey: site h2", False, True), ("raylet", True, True),
])  # fmt: skip
def test_a_stopped_site_is_killed_and_ends_only_runs_that_do_not_go_on_without_it(
    name: str, apart: bool, ends: bool
) -> None:
    """Also one that was given up before: nobody starts another one while its link is cut."""
    engine, process = stopped_for_long(name, apart)
    try:
        with pytest.raises(PeerLost, match=f"{name} .*was stopped by a signal") if ends else nullcontext():
            engine.check()
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
