"""Who drives a role: its driver's thread, or while work is brief the thread that computes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq

from covey.engines.process import control, driving_turn
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.driving_turn import BRIEF, DrivingTurn
from covey.engines.process.role import compute_requests
from covey.engines.process.role import driver as driver_module
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.driver import Driver
from covey.engines.process.role.role_process import drive
from covey.engines.process.role.running_program import RunningProgram
from covey.engines.transport.zmq import ZmqTransport, calm
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Compute, Effect, Sleep
from covey.strategy import Plan, Role
from tests.engines.stage import ME, YOU, Word, idle
from tests.worlds import Point, sgd

Program = Coroutine[Effect[Any], Any, None]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A role whose peer, which is not there, would share memory with it; brief work may take long on a busy machine."""
    for module in (compute_requests, driving_turn):
        monkeypatch.setattr(module, "BRIEF", 0.5)
    with TemporaryDirectory(dir="/tmp") as place, zmq.Context() as context:
        links = ZmqTransport(ME, {who: f"ipc://{Path(place) / str(who.rank)}" for who in (ME, YOU)}, limit=1 << 20)
        monkeypatch.setattr(compute_requests, "calm", lambda links: True)
        line = RoleLine(context, f"ipc://{place}/launcher", ME)
        monkeypatch.setattr(line, "tell", lambda word: None)
        plan = Plan(roles=(Role(ME, idle, trains=True), Role(YOU, idle, trains=True)), limits=(1, 1), lockstep=False)
        yield Driver(plan, plan.roles[0], Replica(Point(1, torch.float64), sgd()), links, line, ComputeThread())
        line.socket.close(linger=0)
        links.close()


def play(driver: Driver, program: Callable[[Driver], Program]) -> None:
    """Drive this program to its end, computing on this thread."""

    async def whole() -> None:
        try:
            await program(driver)
        finally:
            driver.quit = "over"

    driver.programs.launch(RunningProgram(whole(), main=True))
    drive(driver, ComputeThread.serve)


def here() -> Thread:
    return current_thread()


def test_with_brief_work_goes_the_turn_and_it_stays(driver: Driver) -> None:
    """Only the first work is handed over: nobody knows how long it takes."""
    drives, works = list[bool](), list[bool]()

    async def program(driver: Driver) -> None:
        for _ in range(5):
            works.append(await Compute(here) is current_thread())
            drives.append(current_thread() is main)

    main = current_thread()
    play(driver, program)
    assert drives == [False, True, True, True, True]
    assert works == [False, True, True, True, True], "and all work is done on one thread"


def test_work_that_is_handed_over_begins_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the thread drives that is to do it: it does not wait for messages first."""
    monkeypatch.setattr(driver_module, "LISTEN", 2.0)
    monkeypatch.setattr(driver_module, "BRIEF", 0.0)  # it listens before each work
    waits, drives = list[float](), list[bool]()

    async def program(driver: Driver) -> None:
        for talks in (False, False, False, True):
            began = time.monotonic()
            waits.append(await Compute(time.monotonic, talks=talks) - began)
            drives.append(current_thread() is main)

    main = current_thread()
    play(driver, program)
    assert max(waits) < 1.0
    assert drives == [False, True, True, False], "who asks in its middle needs one who listens"


def test_between_works_that_are_brief_a_role_listens_now_and_then(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    listened, poll = list[None](), driver.links.poll

    def noted(*given: Any, **further: Any) -> Any:
        listened.append(None)
        return poll(*given, **further)

    async def program(driver: Driver) -> None:
        for _ in range(30):
            await Compute(lambda: time.sleep(0.01))

    monkeypatch.setattr(driver.links, "poll", noted)
    play(driver, program)
    assert len(listened) > 5
    listened.clear()
    monkeypatch.setattr(driver_module, "BRIEF", 60.0)
    driver.quit, driver.host.compute_thread = None, ComputeThread()
    play(driver, program)
    assert len(listened) < 10, "not before each of thirty"


def test_who_has_work_that_is_not_brief_calls_the_other_thread_to_listen(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving_turn, "BRIEF", 5.0)
    listened, poll = Event(), driver.links.poll

    def noted(*given: Any, **further: Any) -> Any:
        listened.set()
        return poll(*given, **further)

    def meanwhile() -> bool:
        listened.clear()
        return listened.wait(2.5)

    async def program(driver: Driver) -> None:
        for _ in range(2):
            await Compute(here)
        assert await Compute(meanwhile, talks=True)

    monkeypatch.setattr(driver.links, "poll", noted)
    play(driver, program)


@pytest.mark.parametrize(("loop", "peaceful"), [(True, True), (False, False)])
def test_work_of_a_loop_or_beside_messages_that_wait_is_handed_over(
    driver: Driver, loop: bool, peaceful: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own loop computes when it likes: whoever drives has to be another one."""
    monkeypatch.setattr(compute_requests, "calm", lambda links: peaceful)
    drives = list[bool]()

    async def program(driver: Driver) -> None:
        for _ in range(3):
            await Compute(here)
            drives.append(current_thread() is main)

    main = current_thread()
    driver.line.loop = (lambda word: None) if loop else None
    play(driver, program)
    assert drives == [False, False, False]


@pytest.mark.parametrize(
    ("places", "blocked", "waiting", "expected"),
    [([ME, YOU], False, False, True), ([ME], False, False, False), ([ME, YOU], True, False, False),
     ([ME, YOU], False, True, False)],
)  # fmt: skip
def test_a_role_need_not_listen_where_all_share_memory_and_nothing_waits_to_leave(
    places: list[Address], blocked: bool, waiting: bool, expected: bool
) -> None:
    segment = SimpleNamespace(segment=SimpleNamespace(places=dict.fromkeys(places)))
    links = {YOU: SimpleNamespace(blocked=blocked, waiting=waiting)}
    there: Any = SimpleNamespace(lanes=object(), memory=segment, book=dict.fromkeys([ME, YOU], ""), links=links)
    assert calm(there) == expected
    there.lanes = None
    assert not calm(there), "messages come by sockets"


@pytest.mark.parametrize("talks", [False, True])
def test_work_that_takes_long_does_not_keep_the_role_from_the_launcher(driver: Driver, talks: bool) -> None:
    heard, drives = list[bool](), list[bool]()

    def long() -> None:
        driver.line.hand(control.Doing("something long"))
        if talks:
            driver.host.post(Word("from inside", sender=ME), 0.0)
        began = time.monotonic()
        while not heard and time.monotonic() < began + 5:
            time.sleep(BRIEF / 4)
        heard.append(time.monotonic() < began + 5)

    async def program(driver: Driver) -> None:
        for work in (here, here, long, here, here):
            await Compute(work)
            drives.append(current_thread() is main)

    main = current_thread()
    driver.line.tell = lambda word: heard.append(True)  # type: ignore[method-assign]
    play(driver, program)
    assert heard[-1], "the driver's thread told it meanwhile"
    assert drives == [False, True, False, False, True]


def test_where_programs_do_something_besides_work_is_handed_over(driver: Driver) -> None:
    drives = list[bool]()

    async def program(driver: Driver) -> None:
        driver.programs.launch(RunningProgram(waiting(), main=False))
        for _ in range(3):
            await Compute(here)
            drives.append(current_thread() is main)

    async def waiting() -> None:
        await Sleep(60.0)

    main = current_thread()
    play(driver, program)
    assert drives == [False, False, False]


def test_a_failure_on_the_compute_thread_is_the_roles(driver: Driver) -> None:
    async def program(driver: Driver) -> None:
        await Compute(here)
        await Compute(here)
        raise ValueError("a mistake of the program's")

    with pytest.raises(ValueError, match="a mistake"):
        play(driver, program)


def test_a_child_that_work_has_forked_ends_with_it() -> None:
    """It has the role's memory, and would drive it a second time."""
    children, me, compute_thread = list[int](), os.getpid(), ComputeThread()
    compute_thread.put(lambda: children.append(os.fork()))
    compute_thread.close()
    compute_thread.serve()
    if os.getpid() != me:
        os._exit(3)
    assert os.waitpid(children[0], 0)[1] == 0
    assert compute_thread.collect()[2]


def test_one_of_two_takes_the_turn() -> None:
    turn = DrivingTurn()
    assert not turn.take()
    turn.lay()
    assert turn.take() and not turn.take()


@pytest.mark.parametrize("called", [False, True])
def test_the_drivers_thread_takes_it_when_called_or_after_a_while(called: bool) -> None:
    turn, took = DrivingTurn(), list[float]()

    def wait() -> None:
        turn.wait()
        took.append(time.monotonic())

    waiting = Thread(target=wait)
    waiting.start()
    time.sleep(2.5 * BRIEF)
    assert not took, "somebody has it"
    turn.call()  # which means nothing now
    turn.lay()
    laid = time.monotonic()
    if called:
        turn.call()
    waiting.join(5.0)
    assert took and not turn.take()
    assert called or took[0] - laid >= BRIEF


def test_work_that_asks_its_peers_does_not_count_as_brief() -> None:
    thread, question = ComputeThread(), asking()
    thread.close()  # nobody answers
    thread.do_in_turn(lambda: thread.consult(question))
    question.close()
    assert thread.took == math.inf
    thread.do_in_turn(here)
    assert thread.took < 1.0


async def asking() -> None: ...


def test_after_brief_work_the_other_thread_is_not_called_before_the_turn_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, free = ComputeThread(), list[bool]()

    def called() -> None:
        if found := thread.turn.take():
            thread.turn.lay()
        free.append(found)

    assert not thread.turn.take(), "this thread drives"
    monkeypatch.setattr(thread.turn, "call", called)
    assert thread.do_in_turn(here) and free == [False]
    thread.close()


def test_a_call_of_an_earlier_turn_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving_turn, "BRIEF", 5.0)
    turn = DrivingTurn()
    turn.lay()
    turn.call()
    turn.call()
    assert turn.take()
    turn.lay()
    waiting = Thread(target=turn.wait)
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive(), "nobody has called since"
    turn.call()
    waiting.join(2.5)
    assert not waiting.is_alive()


def test_it_has_been_free_for_too_long_since_it_was_laid(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(driving_turn, "time", SimpleNamespace(monotonic=lambda: now[0]))
    turn = DrivingTurn()
    turn.lay()
    waiting = Thread(target=turn.wait, daemon=True)
    waiting.start()
    now[0] += 1.01 * BRIEF
    waiting.join(2.0)
    assert not waiting.is_alive()


def test_who_waits_while_the_other_is_stuck_uses_no_cpu() -> None:
    """Else a role would look alive whose program never goes on."""
    turn = DrivingTurn()
    waiting = Thread(target=turn.wait)
    waiting.start()
    time.sleep(5 * BRIEF)
    assert waiting.ident
    clock = time.pthread_getcpuclockid(waiting.ident)
    before = time.clock_gettime_ns(clock)
    time.sleep(20 * BRIEF)
    assert time.clock_gettime_ns(clock) == before
    turn.lay()
    waiting.join(5.0)
    assert not waiting.is_alive() and not turn.take()
