"""What signals do to a run: the first asks it to end well, the second raises, and what is ignored stays ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.engines import interrupt
from covey.engines.interrupt import (
    ENDING,
    Interrupt,
    JoinRequests,
    asked_to_join,
    forget_join_requests,
    interruptible,
)


@pytest.fixture(autouse=True)
def _same_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_what_is_ignored_stays_ignored(number: int) -> None:
    """A shell ignores SIGINT for what runs in the background, nohup ignores SIGHUP."""
    signal.signal(number, signal.SIG_IGN)
    stop = Interrupt()
    with interruptible(stop):
        os.kill(os.getpid(), number)
        assert not stop.asked and signal.getsignal(number) is signal.SIG_IGN
        other = next(one for one in ENDING if one != number)
        os.kill(os.getpid(), other)
        assert stop.asked, "the others are heard"
        assert signal.getsignal(number) is signal.SIG_IGN, "the first signal changes nothing of that"
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_the_first_asks_and_the_second_raises_whichever_it_is(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "ONE_REQUEST", 0.0)
    for one in ENDING:
        signal.signal(one, signal.SIG_DFL)
    stop = Interrupt()
    with interruptible(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert all(signal.getsignal(one) is signal.SIG_DFL for one in ENDING), "handlers are given back"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_process_and_its_group_asks_once(number: int) -> None:
    """`timeout` tells its child, then the group in which that is."""
    for one in ENDING:
        signal.signal(one, signal.SIG_DFL)
    stop = Interrupt()
    with interruptible(stop):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_worker_that_is_asked_for_too_soon_or_too_late_is_forgotten() -> None:
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    requests = JoinRequests()
    try:
        forget_join_requests()
        os.kill(os.getpid(), signal.SIGUSR1)
        with asked_to_join(requests):
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert requests.taken(9) == 1
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_program_that_hears_sigusr1_itself_goes_on_hearing_it() -> None:
    heard, requests = list[int](), JoinRequests()
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        forget_join_requests()
        with asked_to_join(requests):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] and requests.taken(9) == 0
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_no_more_join_than_there_are_seats() -> None:
    requests = JoinRequests()
    for _ in range(3):
        requests(signal.SIGUSR1, None)
    assert requests.taken(2) == 2 and requests.taken(2) == 0, "the third is forgotten"


@pytest.mark.parametrize(("workers", "heard"), [("1:2", False), ("2", True)])
def test_only_a_range_forgets_who_is_asked_for_before_it_trains(workers: str, heard: bool) -> None:
    try:
        asked = ["run", "missing.py", "--strategy", "bsp", "--workers", workers, "--steps", "1"]
        assert CliRunner().invoke(app, asked).exit_code == 2
        assert (signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL) == heard
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
