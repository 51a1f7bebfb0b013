"""How long does a run stand still when it loses a process? `python -m benchmarks.losses NAME [--kept FILE]`

allreduce, bsp, torchft, torchft_fast, torchrun, ray_train
            50 kills: from the SIGKILL of a worker to the second step after it, with two workers
goodput     12 minutes with a kill each: batches done, over what the calm half of each minute promises
cost        20 pairs for each of allreduce and bsp: a step of `2:4` against one of `4` workers, when nobody comes or
            goes; both are there, and run in turns of 0.2 s, while the other one's processes stand still
joining     10 joins with 300 MB of state: steps of the other worker alone meanwhile, against those before, and the
            bytes of that state over the time by which its longest step is longer than others
failover    10 kills each: the longest gap between two updates when one of two copies of a server is killed
soak        1,200 kills: file handles, maps and memory of those who stay, and the weights beside an undisturbed run

A step is what an optimizer does: all programs step by the same one. The first step after a kill may have been under way
when it came; the second one was not. What was measured is kept in FILE, and the next command goes on after it; each
ends after `--seconds` (240), also if there is more to do. `benchmarks.checkpoints` has checkpoints and restarts, and
`benchmarks.faults` has seeds of faults.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.kept import Kept
from benchmarks.losses import noted
from benchmarks.losses.figures import interval, median_gap, percentile, spread
from benchmarks.losses.pieces import Pieces
from benchmarks.losses.programs import NEEDS, PROGRAMS, TASK, Find, Program, role, run_of, running, wait_for
from benchmarks.losses.soak import soak
from benchmarks.losses.turns import pair, taking_turns

CALM = 1.0  # seconds of steps before a kill
WATCHED = 5.0  # seconds after the kill of a server
PAIRS = 5  # of the same two runs
LEFT = 6.0  # seconds between a worker's leave and the next one's join
GIGABYTES = 3 * 4 * noted.WIDTH**2 / 1e9  # of parameters and two states of Adam


def kills(name: str, pieces: Pieces) -> dict[str, Any]:
    """Seconds from a kill to the second step after it."""
    if (module := NEEDS.get(name)) and not find_spec(module):
        return {"skipped": f"{name} needs {module}"}
    command, find = PROGRAMS[name]
    if pieces.lacks(name, 50):
        with running(*command) as program:
            wait_for(program.times, 90, "no step", program)
            while pieces.lacks(name, 50):
                pieces.add(name, outage(program, find))
            pieces.add(f"{name}, step", median_gap(program.times()))
    return {**spread(pieces.of(name)), "step": round(statistics.median(pieces.of(f"{name}, step")), 4)}


def outage(program: Program, find: Find) -> float:
    """Kill somebody; the seconds until the second step of another one."""
    time.sleep(CALM)
    victim = wait_for(lambda: find(program), 60, "nobody to kill", program, every=0.2)
    when = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    second: float = wait_for(lambda: program.after(when, 2, victim), 240, "no step after the kill", program)
    return second - when


def goodput(pieces: Pieces) -> dict[str, Any]:
    """Batches of minutes with a kill, over what the seconds before the kills promise."""
    command, find = PROGRAMS["allreduce"]
    with running(*command) as program:
        wait_for(program.times, 90, "no step", program)
        wait_for(lambda: find(program), 60, "worker 1 is not there", program, every=0.2)
        while pieces.lacks("minute", 12):
            begun = time.monotonic()
            time.sleep(30)
            os.kill(wait_for(lambda: find(program), 20, "nobody to kill", program, every=0.2), signal.SIGKILL)
            killed = time.monotonic()
            time.sleep(begun + 60 - killed)
            done = program.times()
            calm = sum(begun < step < killed for step in done) / (killed - begun)
            later = sum(killed < step < begun + 60 for step in done) / (begun + 60 - killed)
            pieces.add("minute", [calm, later])
    minutes = pieces.of("minute")
    promised, done = sum(calm for calm, _ in minutes), sum(sum(one) / 2 for one in minutes)
    return {"minutes": len(minutes), "calm batches a second": round(promised / len(minutes), 1),
            "ratio": round(done / promised, 4)}  # fmt: skip


def cost(pieces: Pieces) -> dict[str, Any]:
    """The ratio of a step of `2:4` to one of `4` workers, of the processors' time, and of the bytes for a sample."""
    found: dict[str, Any] = {}
    for strategy in ("allreduce", "bsp"):
        while pieces.lacks(strategy, 20):
            pieces.add(f"{strategy}, bytes", in_turns(strategy, pieces))
        if pairs := pieces.of(strategy):
            ratios, used, seconds = zip(*pairs, strict=True)
            found[strategy] = {
                "step": interval(ratios), "processors": interval(used), "seconds": round(statistics.median(seconds), 4),
                "bytes": round(statistics.median(pieces.of(f"{strategy}, bytes")), 4),
            }  # fmt: skip
    return found


def in_turns(strategy: str, pieces: Pieces) -> float:
    """Some pairs of two runs that begin anew, as how fast a run is also depends on where its memory lies."""
    with taking_turns(strategy, "2:4", "4") as (ranged, fixed):
        for _ in range(PAIRS):
            if pieces.lacks(strategy, 20):
                (long, much), (short, little) = pair(ranged, fixed)
                pieces.add(strategy, [long / short, much / little, short])
        return ranged.sent() / fixed.sent()


def failover(pieces: Pieces) -> dict[str, Any]:
    """The longest gap between two updates within 5 s of a kill of the head or of the tail of two copies."""
    copies = ("server 0", "backup 0")
    while any(pieces.lacks(victim, 10) for victim in copies):
        for victim in copies:
            if pieces.lacks(victim, 10):
                pieces.add(victim, gap(victim))
    return {victim: spread(pieces.of(victim)) for victim in copies if pieces.of(victim)}


def gap(victim: str) -> float:
    with running(*run_of("bsp", "2", "--replicas", "2")) as program:
        wait_for(program.times, 90, "no step", program)
        time.sleep(CALM)
        process = wait_for(lambda: role(victim)(program), 60, f"{victim} is not there", program, every=0.2)
        when = time.monotonic()
        os.kill(process, signal.SIGKILL)
        time.sleep(WATCHED)
        times = [step for step in program.times() if when - 0.5 < step < when + WATCHED]
    return max(after - before for before, after in pairwise(times))


def joining(pieces: Pieces) -> dict[str, Any]:
    """The 95th percentile of a worker's steps from the start of a second one until it steps, over that before."""
    while pieces.lacks("join", 10):
        pieces.add("join", joined())
    ratios, longest, seconds, copying = zip(*pieces.of("join"), strict=True)
    return {
        "joins": len(ratios), "ratio": round(statistics.median(ratios), 3), "ratios": [round(one, 2) for one in ratios],
        "longest step": round(max(longest), 2), "seconds": round(statistics.median(seconds), 2),
        "GB/s at least": round(GIGABYTES / statistics.median(copying), 2),
    }  # fmt: skip


def joined() -> tuple[float, float, float, float]:
    """The ratios of the 95th percentile and of the longest step, the seconds until the new worker steps, and those by
    which the longest step is longer than others.
    """
    with running(*run_of("allreduce", "1:2", task=f"{TASK}:wide")) as program:
        wait_for(lambda: len(program.times()) > 10, 90, "no step", program, every=0.2)
        victim = wait_for(lambda: role("worker 1")(program), 60, "worker 1 is not there", program, every=0.2)
        os.kill(victim, signal.SIGTERM)
        time.sleep(LEFT)
        known = {place.name for place in program.steps.iterdir()}
        asked = time.monotonic()
        program.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: {place.name for place in program.steps.iterdir()} - known, 60, "nobody joins", program)
        time.sleep(1)
        (survivor,) = (name for name in known if name != str(victim))
        (joiner,) = {place.name for place in program.steps.iterdir()} - known
        times, entered = program.times_of(survivor), program.times_of(joiner)[0]
    before = sorted(b - a for a, b in pairwise(times) if asked - LEFT + 2 < a < asked)
    usual = statistics.median(before)
    # the step that ends when the new one's first does is of both
    during = sorted(b - a for a, b in pairwise(times) if asked < b < entered - usual / 2)
    return percentile(during) / percentile(before), during[-1] / usual, entered - asked, during[-1] - usual


MEASURES: dict[str, Callable[[Pieces], dict[str, Any]]] = {
    **{name: lambda pieces, name=name: kills(name, pieces) for name in PROGRAMS},  # type: ignore[misc]
    "goodput": goodput, "cost": cost, "failover": failover, "joining": joining, "soak": soak,
}  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("name", choices=MEASURES)
    asked.add_argument("--kept", type=Path, help="a file of what was measured")
    asked.add_argument("--count", type=int, help="kills, minutes, pairs or joins")
    asked.add_argument("--seconds", type=float, default=240.0, help="after which nothing more is begun")
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the program that is measured ends, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # those that run in the background inherit "ignore"
    pieces = Pieces(Kept(given.kept), given.seconds, given.count)
    print(json.dumps({given.name: MEASURES[given.name](pieces)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
