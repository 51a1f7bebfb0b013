"""A run whose workers are killed again and again: does it leak, and does it learn what it would have learned?"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file

import covey
from benchmarks.losses.pieces import Pieces
from benchmarks.losses.programs import TASK, Program, running, wait_for
from benchmarks.roles import process_of

WORKERS = 3
KILLS, PIECES = 1200, 30
EVERY = 0.7  # seconds between two kills, if the run has done two steps meanwhile
POLL = 0.02  # seconds between two looks for the next worker to kill
LOOK = 5.0  # seconds between two looks at those who stay
REPLAY = 60.0  # seconds that are left for the run without kills
SHORTEST = 20.0  # seconds of kills for which a run is begun
SLOW = f"{TASK}:paced"


class Held(NamedTuple):
    """What a process holds at one moment."""

    handles: int
    maps: int
    memory: int  # resident, in kB

    @staticmethod
    def by(pid: int) -> Held:
        place = Path("/proc", str(pid))
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        maps = (place / "maps").read_text().count("\n")
        return Held(len(os.listdir(place / "fd")), maps, int(status["VmRSS"].split()[0]))


def soak(pieces: Pieces) -> dict[str, Any]:
    """Runs of a few minutes each, until there were that many kills: with `--seconds 1200` one run can do all."""
    while (killed := sum(one["kills"] for one in pieces.of("soak"))) < KILLS and pieces.lacks("soak", PIECES):
        if (seconds := pieces.until - time.monotonic() - REPLAY) < SHORTEST:
            break
        pieces.add("soak", one_run(seconds, KILLS - killed))
    runs = pieces.of("soak")
    return {"kills": sum(one["kills"] for one in runs), "seconds": sum(one["seconds"] for one in runs), "runs": runs}


def one_run(seconds: float, most: int) -> dict[str, Any]:
    """Kill workers in turn for so long, or so often; what others held at first and last, and if weights differ."""
    command = (
        "-m", "covey", "run", SLOW, "--strategy", "bsp", "--workers", str(WORKERS), "--on-failure", "continue",
        "--max-failures", "20", "--steps", "1000000", "--threads", "1", "--quiet",
        "--json", "result.json", "--save", "model.safetensors",
    )  # fmt: skip
    with running(*command) as program:
        wait_for(program.times, 90, "no step", program)
        killed, looks = struck(program, seconds, most)
        program.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(60)
        folder = program.steps.parent
        if not (folder / "result.json").exists():
            raise RuntimeError(f"no result after {killed} kills: {(folder / 'log').read_text()[-4000:]}")
        told = json.loads((folder / "result.json").read_text())
        learned = load_file(folder / "model.safetensors")
    whole = covey.fit(SLOW, "bsp", WORKERS, engine="simulated", steps=told["updates"], scores=0, runs=False)
    differ = [name for name in learned if not learned[name].equal(whole.weights[name])]
    third = max(len(looks) // 3, 1)
    return {
        "kills": killed, "seconds": round(seconds), "updates": told["updates"], "samples": told["samples"],
        "samples without kills": whole.samples, "weights that differ": differ, "replaced": len(told["membership"]),
        "at first": middle(looks[:third]), "at last": middle(looks[-third:]),
    }  # fmt: skip


def struck(program: Program, seconds: float, most: int) -> tuple[int, list[dict[str, Held]]]:
    """Kill each worker in its turn; how often, and what the launcher, its server and scorer held meanwhile."""
    until, killed, looks, looked = time.monotonic() + seconds, 0, list[dict[str, Held]](), 0.0
    launcher = program.process.pid
    stay = {"launcher": launcher} | {
        name: pid for name in ("server 0", "scorer 0") if (pid := process_of(name, launcher))
    }  # fmt: skip
    due, steps = 0.0, 0
    while (now := time.monotonic()) < until and killed < most and program.process.poll() is None:
        if now - looked > LOOK:
            looked = now
            looks.append({name: Held.by(pid) for name, pid in stay.items()})
        victim = process_of(f"worker {killed % WORKERS}", launcher) if now >= due else None
        # all workers take part in each step: after two of them the one that was killed last has done one
        if victim and (done := len(program.times())) >= steps + 2:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed, due, steps = killed + 1, now + EVERY, done
        time.sleep(POLL)
    return killed, looks


def middle(looks: Sequence[dict[str, Held]]) -> dict[str, Held]:
    """Of each process, the medians of some looks."""
    names = looks[0] if looks else {}
    return {
        name: Held(*(int(statistics.median(values)) for values in zip(*(one[name] for one in looks), strict=True)))
        for name in names
    }
