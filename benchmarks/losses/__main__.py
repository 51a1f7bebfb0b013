"""How long does a run stand still when it loses a process? `python -m benchmarks.losses [NAME …] [--count N]`

kills     from the SIGKILL of a worker to the second step after it, beside torchrun and Ray Train
goodput   steps in the same time with a kill every minute and without any
cost      a range in which nobody comes or goes against the same number of workers, in turns
failover  the longest gap between two updates when one of two copies of a server is killed
joining   steps of one worker while another one with 300 MB of state joins, against its steps before

A step is what an optimizer does: all programs step by the same one. The first step after a kill may have been under way
when it came; the second one was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import covey
from benchmarks.roles import process_of

ROOT = Path(__file__).parent.parent.parent
TASK = str(ROOT / "benchmarks" / "losses" / "task.py")
CALM = 1.0  # seconds of steps before a kill
GROWN = 3.0  # seconds after which a process takes part
Find = Callable[["Program"], int | None]


class Program:
    """A program in a process group of its own, whose optimizers note their steps."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.steps = folder / "steps"
        self.steps.mkdir()
        self.log = (folder / "log").open("w")
        known = {
            **os.environ, "STEPS": str(self.steps), "SNAPSHOT": str(folder / "snapshot.pt"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, *command], env=known, cwd=folder, stdout=self.log, stderr=self.log, start_new_session=True
        )

    def close(self) -> None:
        for number, patience in ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0)):
            self.process.send_signal(number)
            try:
                self.process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for place in self.steps.iterdir():  # torchrun's workers have sessions of their own
            with suppress(ProcessLookupError):
                os.kill(int(place.name), signal.SIGKILL)
        self.log.close()

    def times(self, without: int = 0) -> list[float]:
        """When steps were done, in all processes but one."""
        names = [place.name for place in self.steps.iterdir() if place.name != str(without)]
        return sorted(step for name in names for step in self.times_of(name))

    def times_of(self, process: str) -> list[float]:
        data = (self.steps / process).read_bytes()
        return list(struct.unpack(f"{len(data) // 8}d", data[: len(data) // 8 * 8]))

    def stepping(self, seconds: float = 0.5) -> list[int]:
        """The processes that have stepped just now."""
        recent = [place for place in self.steps.iterdir() if time.time() - place.stat().st_mtime < seconds]
        return [int(place.name) for place in recent if Path("/proc", place.name).exists()]

    def after(self, when: float, count: int, victim: int) -> float | None:
        """When the `count`th step after a moment was done, by anybody but the victim."""
        later = [step for step in self.times(victim) if step > when]
        return later[count - 1] if len(later) >= count else None


@contextmanager
def running(*command: str) -> Iterator[Program]:
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder), *command)
        try:
            yield program
        finally:
            program.close()


def wait_for(happened: Callable[[], Any], seconds: float, what: str, program: Program) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := happened():
            return found
        if program.process.poll() is not None:
            break
        time.sleep(0.01)
    program.log.flush()
    raise RuntimeError(f"{what}: {Path(program.log.name).read_text()[-2000:]}")


def role(name: str) -> Find:
    """The process of a role of covey's that was there before it could have been killed last."""

    def find(program: Program) -> int | None:
        found = process_of(name, program.process.pid)
        return found if found and time.time() - Path(f"/proc/{found}").stat().st_ctime > GROWN else None

    return find


def member(program: Program) -> int | None:
    """A process that steps, of a program in which all that step are alike; both must be there."""
    alive = program.stepping()
    return random.choice(alive) if len(alive) == 2 else None


def run_of(strategy: str, workers: str, *more: str, task: str = TASK) -> tuple[str, ...]:
    return (
        "-m", "covey", "run", task, "--strategy", strategy, "--workers", workers, "--epochs", "100000", "--threads",
        "1", "--quiet", "--max-failures", "20", *more,
    )  # fmt: skip


PROGRAMS: dict[str, tuple[tuple[str, ...], Find]] = {
    "covey allreduce 1:2": (run_of("allreduce", "1:2"), role("worker 1")),
    "covey bsp 1:2": (run_of("bsp", "1:2"), role("worker 1")),
    "torchrun": (
        ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "9999", "--monitor-interval", "0.1",
         "--standalone", "-m", "benchmarks.losses.elastic_ddp"), member,
    ),
    "Ray Train": (("-m", "benchmarks.losses.ray_train"), member),
}  # fmt: skip


def kills(count: int = 50) -> dict[str, Any]:
    """Seconds from a kill to the second step after it, for each program."""
    found: dict[str, Any] = {}
    for name, (command, find) in PROGRAMS.items():
        if name == "Ray Train" and not find_spec("pandas"):
            found[name] = "skipped: Ray Train needs pandas"
            continue
        with running(*command) as program:
            outages = [outage(program, find) for _ in range(count)]
            times = program.times()
        found[name] = {**spread(outages), "step": round(median_gap(times), 4)}
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def outage(program: Program, find: Find) -> float:
    """Kill somebody; the seconds until the second step of another one."""
    wait_for(program.times, 60, "no step", program)
    time.sleep(CALM)
    victim = wait_for(lambda: find(program), 60, "nobody to kill", program)
    when = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    second: float = wait_for(lambda: program.after(when, 2, victim), 240, "no step after the kill", program)
    return second - when


def spread(outages: list[float]) -> dict[str, Any]:
    ordered = sorted(outages)
    return {
        "kills": len(ordered), "median": round(statistics.median(ordered), 3),
        "95th percentile": round(percentile(ordered), 3), "longest": round(ordered[-1], 3),
    }  # fmt: skip


def median_gap(times: list[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))


def goodput(minutes: int = 10) -> dict[str, Any]:
    """Steps of a run that loses a worker every minute, over those of the same time without losses."""
    command, find = PROGRAMS["covey bsp 1:2"]
    done = {}
    for killed in (False, True):
        with running(*command) as program:
            begun = wait_for(program.times, 60, "no step", program)[0]
            for minute in range(minutes):
                time.sleep(max(begun + 60 * minute + 30 - time.monotonic(), 0))
                if killed and (victim := find(program)):
                    os.kill(victim, signal.SIGKILL)
            time.sleep(max(begun + 60 * minutes - time.monotonic(), 0))
            done[killed] = sum(step < begun + 60 * minutes for step in program.times())
    ratio = round(done[True] / done[False], 4)
    return {"minutes": minutes, "steps": done[False], "with kills": done[True], "ratio": ratio}


def cost(pairs: int = 20, epochs: int = 12) -> dict[str, Any]:
    """The ratio of training times of `2:4` and `4` workers, and of the bytes that they sent, in pairs."""
    found: dict[str, Any] = {}
    for strategy in ("allreduce", "bsp"):
        times, bytes_sent = [], []
        for pair in range(pairs):
            results = {
                workers: covey.fit(TASK, strategy, workers, epochs=epochs, threads=1, scores=0, runs=False)
                for workers in (("4", "2:4") if pair % 2 else ("2:4", "4"))
            }
            times.append(results["2:4"].seconds / results["4"].seconds)
            bytes_sent.append(results["2:4"].traffic.bytes / max(results["4"].traffic.bytes, 1))
        found[strategy] = {**interval(times), "bytes": round(statistics.median(bytes_sent), 4)}
    return found


def interval(ratios: list[float]) -> dict[str, float]:
    """The median and a 95 % interval of it, by drawing the ratios again."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    found = {"median": statistics.median(ratios), "low": medians[50], "high": medians[1949]}
    return {name: round(value, 4) for name, value in found.items()}


def failover(count: int = 5) -> dict[str, Any]:
    """The longest gap between two updates within 5 s of a kill of the head or of the tail of two copies."""
    return {victim: spread([gap(victim) for _ in range(count)]) for victim in ("server 0", "backup 0")}


def gap(victim: str) -> float:
    with running(*run_of("bsp", "2", "--replicas", "2")) as program:
        wait_for(program.times, 60, "no step", program)
        time.sleep(CALM)
        process = wait_for(lambda: role(victim)(program), 60, f"{victim} is not there", program)
        when = time.monotonic()
        os.kill(process, signal.SIGKILL)
        time.sleep(5)
        times = [step for step in program.times() if when - 0.5 < step < when + 5]
    return max(after - before for before, after in pairwise(times))


def joining(count: int = 5, strategy: str = "allreduce") -> dict[str, Any]:
    """The 95th percentile of a worker's steps from the start of a second one until it steps, over that before."""
    found = [joined(strategy) for _ in range(count)]
    return {
        "joins": count, "ratio": round(statistics.median(ratio for ratio, _, _ in found), 3),
        "longest step": round(max(longest for _, longest, _ in found), 2),
        "seconds": round(statistics.median(seconds for _, _, seconds in found), 2),
    }  # fmt: skip


def joined(strategy: str) -> tuple[float, float, float]:
    with running(*run_of(strategy, "1:2", task=f"{TASK}:wide")) as program:
        wait_for(lambda: len(program.times()) > 10, 60, "no step", program)
        victim = wait_for(lambda: role("worker 1")(program), 60, "worker 1 is not there", program)
        os.kill(victim, signal.SIGTERM)
        time.sleep(6)
        known = {place.name for place in program.steps.iterdir()}
        asked = time.monotonic()
        program.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: {place.name for place in program.steps.iterdir()} - known, 60, "nobody joins", program)
        entered = time.monotonic()
        (survivor,) = (name for name in known if name != str(victim))
        times = program.times_of(survivor)
    before = sorted(b - a for a, b in pairwise(times) if asked - 4 < a < asked)
    during = sorted(b - a for a, b in pairwise(times) if asked < b and a < entered)
    return percentile(during) / percentile(before), during[-1] / statistics.median(before), entered - asked


def percentile(ordered: list[float]) -> float:
    """The 95th."""
    return ordered[round(0.95 * (len(ordered) - 1))]


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "kills": kills, "goodput": goodput, "cost": cost, "failover": failover, "joining": joining,
}  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", choices=[*MEASURES, []], default=[])
    asked.add_argument("--count", type=int, help="kills, minutes or pairs")
    given = asked.parse_args()
    for name in given.names or MEASURES:
        found = MEASURES[name](given.count) if given.count else MEASURES[name]()
        print(json.dumps({name: found}, indent=1), flush=True)


if __name__ == "__main__":
    main()
