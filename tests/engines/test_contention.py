"""Who used the cores during a run: its roles, or other programs?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from covey.engines.process.launcher import contention_meter
from covey.engines.process.launcher.contention_meter import ContentionMeter, Moment, difference
from covey.observe.contention import Contention

SPIN = "import os; os.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


@pytest.fixture
def spinners() -> Iterator[list[int]]:
    """Two programs that want the same core."""
    core = str(min(os.sched_getaffinity(0)))
    both = [subprocess.Popen([sys.executable, "-c", SPIN], env={**os.environ, "CORE": core}) for _ in range(2)]
    time.sleep(0.3)
    yield [one.pid for one in both]
    for one in both:
        one.kill()
        one.wait()


def test_a_run_beside_a_busy_program_has_waited_for_its_core(spinners: list[int]) -> None:
    meter = ContentionMeter(spinners[:1])
    time.sleep(0.6)
    found = meter.result(spinners[:1])
    assert found is not None and found.delay is not None and found.others is not None
    assert found.delay > 0.25, "the other one had the core half of the time"
    assert found.others > 0.15 and 0 < found.cpu < found.cores
    assert found.pressure is None or 0 <= found.pressure <= 1


def test_where_roles_were_lost_or_came_nobody_is_blamed(spinners: list[int]) -> None:
    meter = ContentionMeter(spinners[:1])
    time.sleep(0.1)
    assert meter.result(spinners[:1]) is not None and meter.result(spinners) is None, "one joined"
    os.kill(spinners[0], signal.SIGKILL)
    os.waitpid(spinners[0], 0)
    assert meter.result(spinners[:1]) is None, "what it had used is counted no more"


def test_what_was_counted_is_divided_by_the_time() -> None:
    then = Moment(clock=10.0, own=5.0, ran=4.0, waited=1.0, idle=100.0, pressed=50.0)
    now = Moment(clock=12.0, own=7.0, ran=6.0, waited=2.0, idle=100.6, pressed=51.0)
    found = difference(then, now, cores=2)
    assert found == Contention(cores=2, cpu=1.0, others=0.7, delay=0.333, pressure=0.5)


def test_what_linux_does_not_tell_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    blind = Moment(clock=10.0, own=5.0, ran=None, waited=None, idle=None, pressed=None)
    later = Moment(clock=11.0, own=6.0, ran=None, waited=None, idle=None, pressed=None)
    found = difference(blind, later, cores=2)
    assert found is not None and (found.others, found.delay, found.pressure) == (None, None, None)
    assert found.disturbed is None
    assert ContentionMeter([]).result([]) is None, "roles of another machine"
    monkeypatch.setattr(contention_meter, "SHORTEST", 1e9)
    assert ContentionMeter([os.getpid()]).result([os.getpid()]) is None, "over at once"


@pytest.mark.parametrize(
    ("others", "delay", "disturbed"),
    [
        (0.05, 0.36, False),  # two workers, a server and a scorer on two cores wait for one another
        (1.30, 0.70, True),
        (0.90, 0.02, False),  # others are busy, on cores that the run does not need
    ],
)
def test_a_run_is_disturbed_where_others_took_its_cores(others: float, delay: float, disturbed: bool) -> None:
    assert Contention(cores=2, cpu=1.0, others=others, delay=delay, pressure=None).disturbed is disturbed
