"""One role's driver on real sockets: what it tallies is what its links took."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import zmq

from covey.checkpoint import RoleState, RunRecord
from covey.engines.process import control
from covey.engines.process.clock import Stopwatch
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.launcher.keeping import take_over
from covey.engines.process.launcher.quiescence import RunEnding
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.supervisor import Supervisor
from covey.engines.process.role.command_handlers import obey
from covey.engines.process.role.compute_thread import ComputeClosed, ComputeThread, WorkDone
from covey.engines.process.role.driver import Driver
from covey.engines.process.role.metrics import Metrics
from covey.engines.process.role.pause import Pause
from covey.engines.process.role.role_host import RoleHost
from covey.engines.process.role.running_program import RunningProgram
from covey.engines.process.role.saving import state_of
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.transport.zmq import ZmqTransport
from covey.exchange.collectives.sums import ring
from covey.membership import BatchesLeft, Joined
from covey.message import stamped
from covey.model.replica import Replica
from covey.observe.referee import Referee
from covey.program import Collective, Effect, Node, Receive, Send
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
        )
        line.socket.close(linger=0)
        links.close()


def send(driver: Driver, times: int, **how: Any) -> list[bool]:
    """Which of these sends needed no waiting."""
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=True)
    passed = []
    for step in range(times):
        effect: Effect[Any] = Send(YOU, Ping(step, Vector([torch.ones(NUMBERS)])), **how)
        passed.append(driver.perform(running, effect)[0])
    program.close()
    return passed


def test_only_what_may_be_lost_never_waits_for_room(driver: Driver) -> None:
    assert send(driver, 10) == [number < 4 for number in range(10)], "four fill a window"
    assert all(send(driver, 10, lossy=True))


@pytest.mark.parametrize("main", [True, False])
def test_a_role_waits_while_its_main_program_does(driver: Driver, main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A companion that listens has nothing else to do."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    driver.metrics.watch.start()
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=main)
    running.wants(Receive((Ping,)))
    clock[0] += 3
    driver.answer(running, None)
    program.close()
    assert driver.metrics.teller.of(ME).waiting == (3.0 if main else 0.0)


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
    driver.programs.held = running
    driver.deliver(first)
    assert driver.host.mailbox.waiting == [first] and not driver.programs.ready
    driver.programs.held = None
    driver.deliver(second)
    assert driver.host.mailbox.waiting == [first] and len(driver.programs.ready) == 1
    program.close()


def test_a_wait_is_shown_in_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has waited for ten seconds, the model was scored for seven of them: what passed since then counts."""
    clock, told = [100.0], list[Any]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Stopwatch()
    watch.start()
    metrics = Metrics(ME, SimpleNamespace(tell=told.append), watch, traced=False)  # type: ignore[arg-type]
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=True)
    running.wants(Receive((Ping,)))
    for seconds, act in ((1, watch.stop), (7, watch.start), (2, lambda: metrics.report(3, running, now=True))):
        clock[0] += seconds
        act()
    program.close()
    assert [(word.waiting, word.since) for word in told] == [("Ping", 2.0)]


def test_a_pause_of_all_processes_is_no_training_time_of_a_role(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z stops them all for 5 seconds; the launcher says so when they go on."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = driver.metrics.watch
    watch.start()
    now[0] += 7.0
    obey(driver, control.Skip(5.0))
    assert watch.now() == pytest.approx(2.0)
    now[0] += 1.0
    assert watch.now() == pytest.approx(3.0)


def test_a_role_that_goes_on_draws_on_and_has_its_mail(driver: Driver) -> None:
    drawn = driver.host.rng
    first = [drawn.random() for _ in range(5)]
    word = stamped(Ping(3, Vector([torch.ones(1)])), YOU, copy=False)
    kept = RoleState.of(rng=drawn, done=1, seconds=0.0, memories={}, replica={}, mailbox=[word])
    plan = Plan(roles=(driver.host.role,), limits=(2,), lockstep=False)
    again = RoleHost(plan, driver.host.role, ComputeThread(), driver.links, kept)
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


def test_work_that_waits_for_an_answer_is_broken_off_when_the_run_is_over() -> None:
    compute_thread, ended = ComputeThread(), list[str]()

    def ask() -> None:
        try:
            compute_thread.consult(None)  # type: ignore[arg-type]
        except ComputeClosed:
            ended.append("closed")

    asking = Thread(target=ask)
    asking.start()
    while not compute_thread.collect()[1]:
        time.sleep(0.001)
    compute_thread.close()
    asking.join(5.0)
    ask()  # and what it asks after that is not even heard
    assert ended == ["closed", "closed"] and compute_thread.collect()[1] == []


def test_what_was_sent_to_a_lost_role_does_not_count_with_what_its_next_incarnation_gets(driver: Driver) -> None:
    """The new incarnation has received nothing of it: a checkpoint would wait for ever."""
    driver.line, before = Told(), driver.line  # type: ignore[assignment]
    send(driver, 2)
    assert driver.links.sent[YOU] == 2
    obey(driver, control.Install(YOU, 1, "ipc:///tmp/nowhere.1"))
    send(driver, 1)
    obey(driver, control.CountMessages())
    assert driver.line.words[-1] == control.MessageCounts(1, 0, False)  # type: ignore[attr-defined]
    driver.line = before


def test_what_stays_on_a_machine_is_a_message_and_no_traffic(driver: Driver) -> None:
    driver.effects.homes = {ME: ME, YOU: ME}
    send(driver, 1)
    tally = driver.metrics.teller.of(ME)
    assert tally.messages == {"worker 1": 1} and sum(tally.bytes.values()) == 0


class Told:
    """A line to the launcher that writes down what is told."""

    def __init__(self) -> None:
        self.words: list[Any] = []

    def tell(self, word: Any) -> None:
        self.words.append(word)

    def confess(self, now: bool = False) -> None:
        pass


def test_a_sum_by_another_library_is_traffic_and_marked_as_worked_out(driver: Driver) -> None:
    driver.metrics.summed(Collective(Vector([torch.ones(10)]), (ME, YOU), ring))
    tally = driver.metrics.teller.of(ME)
    assert tally.bytes == {"worker 1": 40} and tally.notes == {"native bytes": 40}


def test_words_about_incarnations_are_in_no_checkpoint(driver: Driver) -> None:
    """In the run that goes on from it everybody is in the first incarnation again."""
    ping, joined = (stamped(body, YOU, copy=False) for body in (Ping(3, Vector([torch.ones(1)])), Joined(1)))
    driver.host.mailbox.waiting.extend([joined, ping])
    replica = Replica(Point(1, torch.float64), sgd())
    assert state_of(driver.host, replica, held=False, ended=False, seconds=0.0).mailbox == [ping]


def test_a_report_tells_what_the_role_waits_for_and_how_much_still_comes(driver: Driver) -> None:
    """So a launcher knows a role that only waits from one to which messages are under way."""
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running, told = RunningProgram(program, main=True), list[Any]()
    running.wants(Receive((Ping,)))
    driver.programs.running.append(running)
    driver.line.tell = told.append  # type: ignore[method-assign]
    driver.metrics.watch.start()
    driver.links.reader.frames = 7
    driver.report(now=True)
    driver.programs.held = running
    driver.report(now=True)
    program.close()
    assert [word.frames for word in told] == [7, 7]
    assert told[0].waiting == str(running.effect) and told[1].waiting == "", "one that is held waits for nobody"


def test_memory_is_told_in_bytes(driver: Driver) -> None:
    """As Linux tells it in its other units: the most that this process has had in its memory."""
    driver.metrics.line = line = Told()  # type: ignore[assignment]
    driver.metrics.close()
    peak = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    assert line.words[-1].tally.memory == pytest.approx(1024 * int(peak.split()[1]), rel=0.05)


def test_what_goes_to_the_scorer_is_none_of_the_messages_that_must_arrive(driver: Driver) -> None:
    """The scorer takes part in no count: with them a checkpoint after a score would wait for ever."""
    driver.line, before = Told(), driver.line  # type: ignore[assignment]
    driver.links.sent.update({SCORER: 3, YOU: 2})
    obey(driver, control.CountMessages())
    assert driver.line.words == [control.MessageCounts(2, 0, False)]  # type: ignore[attr-defined]
    driver.line = before


def test_what_is_sent_to_one_that_is_gone_is_none_of_the_messages_that_must_arrive(driver: Driver) -> None:
    """A server may answer it after it has heard that the seat is empty: a checkpoint would wait for ever."""
    driver.line, before = Told(), driver.line  # type: ignore[assignment]
    obey(driver, control.Install(YOU, 1, "ipc:///tmp/nowhere.1", empty=True))
    assert all(send(driver, 10)), "nobody waits for room"
    obey(driver, control.CountMessages())
    assert driver.line.words[-1] == control.MessageCounts(0, 0, False)  # type: ignore[attr-defined]
    obey(driver, control.Install(YOU, 2, "ipc:///tmp/nowhere.2"))
    send(driver, 1)
    assert driver.links.sent[YOU] == 1, "somebody has joined"
    driver.line = before


def test_a_worker_without_a_batch_says_so_and_does_not_begin_again_meanwhile(driver: Driver) -> None:
    driver.line, before = Told(), driver.line  # type: ignore[assignment]
    program: Any = idle(Any, Any)  # type: ignore[arg-type]
    running = RunningProgram(program, main=True)
    running.wants(Receive((BatchesLeft,)))
    driver.programs.running.append(running)
    driver.host.pace.training()
    driver.host.pace.limit = 9
    obey(driver, control.AskNextStep())
    assert driver.line.words == [control.NextStep(1, rests=True)]  # type: ignore[attr-defined]
    assert driver.host.pace.holds()
    driver.line = before
    program.close()


def test_all_roles_pause_equally_long_whenever_their_pause_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    early, late, waits = Pause(), Pause(), Pause()
    for pause in (early, late, waits):
        pause.begin()
    early.refuse()
    now[0] = 12.0
    late.refuse()
    now[0] = 14.0
    for pause in (early, late, waits):
        pause.end(5.0)
    assert [early.deadline, late.deadline, waits.deadline] == [15.0, 17.0, 14.0]


def test_a_pause_begins_with_the_first_work_that_waits_and_a_second_one_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pause = Pause()
    pause.begin()
    for now[0] in (11.0, 12.0):
        pause.refuse()
    pause.end(5.0)
    assert pause.deadline == 16.0
    now[0] = 13.0  # the next score comes while the role still stands
    pause.begin()
    pause.refuse()
    pause.end(5.0)
    assert pause.deadline == 21.0


def test_a_pause_that_is_cancelled_ends_unless_it_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.engines.process.role.pause.time.monotonic", lambda: 10.0)
    told, untold, none = Pause(), Pause(), Pause()
    for pause in (told, untold):
        pause.begin()
        pause.refuse()
    told.end(5.0)
    for pause in (told, untold, none):
        pause.cancel()
    assert [told.deadline, untold.deadline, none.deadline] == [15.0, 10.0, None]


@pytest.mark.parametrize(
    ("stopped", "over"), [(None, False), ("interrupted", False), ("target", True), ("patience", True)]
)
def test_a_run_that_is_interrupted_in_a_score_may_come_to_another_one(stopped: Any, over: bool) -> None:
    """Its workers go on to the step of a checkpoint; what lies before that has to be scored."""
    told: list[bool] = []
    supervisor = object.__new__(Supervisor)
    supervisor.clock, supervisor.ending = SimpleNamespace(watch=Stopwatch()), SimpleNamespace(reason=stopped)  # type: ignore[assignment]
    supervisor.referee = Referee(10)
    supervisor.scoring = SimpleNamespace(  # type: ignore[assignment]
        at_rest=lambda watch: True, standing_still=nullcontext, ask=lambda evaluate: {}, judge=lambda *_: False,
        spread=lambda stopped: stopped,
        pauses=SimpleNamespace(step=4, tell_next=lambda **given: told.append(given["over"])),
    )  # fmt: skip
    supervisor.score()
    assert told == [over]


@pytest.mark.parametrize(("lockstep", "last"), [(False, [4, 8]), (True, [8, 8])])
def test_a_run_that_stops_ends_each_worker_after_its_step(lockstep: bool, last: list[int]) -> None:
    """Where they wait for one another, all after the step of the foremost."""
    told: list[tuple[list[Any], Any]] = []
    board = SimpleNamespace(tell=lambda roles, word: told.append((list(roles), word)))
    quiescence: Any = SimpleNamespace(
        where=lambda: {ME: 3, YOU: 7}, lockstep=lockstep, monitor=SimpleNamespace(board=board)
    )
    RunEnding(quiescence).send_last_steps()
    assert told == [([ME], control.Stop(last[0])), ([YOU], control.Stop(last[1]))]


class NoServer:
    """In the place of a fork server."""

    pid = 2**22 + 1  # which no process has

    def signs(self) -> dict[str, tuple[int, object]]:
        return {}

    def loss(self) -> str:
        return "was never there"

    def signal(self, number: signal.Signals) -> None:
        pass

    def wait(self, patience: float) -> None:
        pass

    def reap(self) -> None:
        pass


def test_the_sockets_of_a_run_lie_in_a_folder_of_its_users_own() -> None:
    before = os.umask(0)
    try:
        with RoleProcesses("covey", start=lambda *given: NoServer()) as processes:
            assert stat.S_IMODE(processes.directory.stat().st_mode) == 0o700
        assert not processes.directory.exists()
    finally:
        os.umask(before)


def test_a_run_that_goes_on_counts_on() -> None:
    past = Roster([ME, YOU], [ME, YOU])
    past.tallies[ME].samples, past.tallies[ME].bytes = 40, {"worker 1": 8}
    now, referee = Roster([ME, YOU], [ME, YOU]), Referee(every=10)
    progress = msgspec.to_builtins({"seconds": 4.0, "tallies": past.kept(), "history": []}, str_keys=True)
    kinds: Any = {"strategy": "bsp", "workers": 2, "servers": 1, "seed": 0, "samples": 0, "batch_size": 0}
    seconds = take_over(RunRecord(**kinds, limits=[1, 1], progress=progress), now, referee)
    assert (now.samples, now.bytes, seconds) == (40, 8, 4.0)
