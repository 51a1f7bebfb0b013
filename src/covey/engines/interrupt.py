"""What does Ctrl-C do? The first one asks a run to end well, the second one raises. SIGTERM and SIGHUP do the same.

Ctrl-Z stops this process and all that it leads, until both go on (`fg`, `bg`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_REQUEST = 1.0  # seconds in which SIGTERM or SIGHUP may come twice: `timeout` tells the process, then its group


class Interrupt:
    """Remembers that a person asked for the end; the launcher looks when it can."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> None:
        self.asked = True


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first Ctrl-C. (Only the main thread hears of it, so elsewhere this does nothing.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a shell starts what runs in the background with SIGINT ignored, nohup with SIGHUP, and both mean it
    ours = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        first = time.monotonic()

        def again(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT or time.monotonic() - first > ONE_REQUEST:
                signal.default_int_handler(number, frame)

        for one in ours:
            signal.signal(one, again)
        stop()

    before = {number: signal.signal(number, interrupt) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class JoinRequests:
    """How many workers a person has asked for that are to take empty seats."""

    def __init__(self) -> None:
        self.asked: deque[None] = deque()  # a signal may come at any moment: each is added, and taken, in one piece

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked.append(None)

    def taken(self, most: int) -> int:
        """How many of them come now, at most as many as there are seats; others are forgotten."""
        asked = len(self.asked)
        for _ in range(asked):
            self.asked.popleft()
        return min(asked, most)


def forget_join_requests() -> None:
    """Outside of `asked_to_join` SIGUSR1 does nothing from now on: no seat is empty. It would end this process."""
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, _forget)


def _forget(number: int, frame: FrameType | None) -> None:
    pass


@contextmanager
def asked_to_join(requests: JoinRequests) -> Iterator[None]:
    """Inside, each SIGUSR1 asks for a worker. (Where somebody else hears it, this does nothing.)"""
    before = signal.getsignal(signal.SIGUSR1)
    if threading.current_thread() is not threading.main_thread() or before not in (signal.SIG_DFL, _forget):
        yield
        return
    signal.signal(signal.SIGUSR1, requests)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def suspendable(pass_on: Callable[[signal.Signals], None]) -> Iterator[None]:
    """On Ctrl-Z `pass_on` SIGSTOP, stop, and `pass_on` SIGCONT when this process goes on.

    (Roles are not in the terminal's group, which Ctrl-Z and Ctrl-C reach. Where somebody else hears Ctrl-Z, this does
    nothing.)
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTSTP) != signal.SIG_DFL:
        yield
        return

    def suspend(number: int, frame: FrameType | None) -> None:
        pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        pass_on(signal.SIGCONT)

    signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
