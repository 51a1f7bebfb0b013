"""What signals do to a run: the first asks it to end well, the second raises, and what is ignored stays ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from covey.engines.interrupt import ENDING, Interrupt, interruptible


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
def test_the_first_asks_and_the_second_raises_whichever_it_is(number: int) -> None:
    for one in ENDING:
        signal.signal(one, signal.SIG_DFL)
    stop = Interrupt()
    with interruptible(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert all(signal.getsignal(one) is signal.SIG_DFL for one in ENDING), "handlers are given back"
