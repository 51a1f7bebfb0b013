"""Two programs that run in turns: all of one program's processes stand still while the other one runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.losses.programs import Program, run_of, running, wait_for
from benchmarks.roles import name_of, processes_of

TURN = 0.2  # seconds for which a program runs: the speed of a machine changes within a second or two
TURNS = 20  # of each program in a pair
WARM = 100  # steps before the first turn


class TakingTurns:
    """A program that stands still until it has a turn; neighbouring workers share a core, which is always the same."""

    def __init__(self, program: Program) -> None:
        self.program, self.ran = program, 0.0
        wait_for(lambda: len(program.times()) > WARM, 90, "no step", program, every=0.2)
        self.processes = processes_of(program.process.pid)
        (self.stepping, *_) = sorted(place for place in program.steps.iterdir())
        cores = sorted(os.sched_getaffinity(0))
        for process in self.processes:
            role, _, rank = name_of(process).rpartition(" ")
            for thread in Path(f"/proc/{process}/task").iterdir() if role == "covey: worker" else ():
                os.sched_setaffinity(int(thread.name), {cores[int(rank) % len(cores)]})
        self.tell(signal.SIGSTOP)

    def tell(self, number: signal.Signals) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def turn(self) -> None:
        """Run for a while."""
        begun = time.monotonic()
        self.tell(signal.SIGCONT)
        time.sleep(TURN)
        self.tell(signal.SIGSTOP)
        self.ran += time.monotonic() - begun

    def standing(self) -> tuple[float, float, float]:
        """The steps, the seconds in which it ran, and those of processors that it has used, so far."""
        used = 0
        for process in self.processes:
            for thread in Path(f"/proc/{process}/task").iterdir():
                used += int((thread / "schedstat").read_text().split()[0])
        return self.stepping.stat().st_size / 8, self.ran, used / 1e9

    def sent(self) -> float:
        """Let it end; the bytes of each sample."""
        self.tell(signal.SIGCONT)
        self.program.end()
        result = json.loads((self.program.folder / "result.json").read_text())
        return float(result["traffic"]["bytes"] / result["samples"])


@contextmanager
def taking_turns(strategy: str, *workers: str) -> Iterator[list[TakingTurns]]:
    """A run for each of these numbers of workers."""
    found: list[TakingTurns] = []
    with ExitStack() as stack:
        commands = [run_of(strategy, number, "--json", "result.json") for number in workers]
        programs = [stack.enter_context(running(*command)) for command in commands]
        try:
            found.extend(map(TakingTurns, programs))
            yield found
        finally:
            for one in found:
                one.tell(signal.SIGCONT)


def pair(*programs: TakingTurns) -> list[tuple[float, float]]:
    """Of each program the seconds and the processors' seconds of a step, over turns in which each is as often first."""
    before = [one.standing() for one in programs]
    for number in range(TURNS):
        for one in programs if number % 2 else reversed(programs):
            one.turn()
    found = []
    for one, (steps, ran, used) in zip(programs, before, strict=True):
        now = one.standing()
        found.append(((now[1] - ran) / (now[0] - steps), (now[2] - used) / (now[0] - steps)))
    return found
