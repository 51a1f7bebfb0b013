"""Is the planner's cut better than equally many layers for each stage, and how much memory does a cut save?

Steps: the CNN of examples/unbalanced.py in 2 stages, cut where the planner says and after half of its layers, in turns;
the median step, and the ratio that `covey cut` foresees. Memory: a GPT with 25 million parameters under Adam, uncut and
cut in two: the most that a worker had, less what one with a tiny model has. `python -m benchmarks.cuts [ROUNDS]`
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import covey
from benchmarks.data_parallel import Clocked
from covey.parallelism import CutTerms, Schedule, best_cut, equal_cut, predict
from covey.run.cutting import profiled
from covey.task import Task, load_task
from examples import characters

ROOT = Path(__file__).parent.parent
WARM_UP, STEPS, MICROBATCHES = 4, 30, 4
TERMS = CutTerms(stages=2, schedule=Schedule(microbatches=MICROBATCHES))
CUT = "stage=2, cut=4, load=50:50"  # in the middle of 8 blocks; nothing has to be measured
MESHES = {  # of the memory benchmark, with the workers that each needs
    "uncut": ("allreduce", 1),
    "plain": (f"allreduce with mesh({CUT}, timetable=plain)", 2),
    "gpipe": (f"allreduce with mesh({CUT}, timetable=gpipe, microbatches=4)", 2),
    "1f1b": (f"allreduce with mesh({CUT}, timetable=1f1b, microbatches=4)", 2),
    "1f1b, recompute": (f"allreduce with mesh({CUT}, timetable=1f1b, microbatches=4, recompute=true)", 2),
    "pipedream": (f"allreduce with mesh({CUT}, timetable=pipedream)", 2),
}


def unbalanced() -> Task:
    return replace(load_task(str(ROOT / "examples" / "unbalanced.py")), evaluate=None)


def step_time(cut: str) -> float:
    """Seconds of the median step, as the last stage sees them."""
    task = unbalanced()
    assert task.loss is not None
    with tempfile.TemporaryDirectory() as folder:
        timed = replace(task, loss=Clocked(task.loss, f"{folder}/times"))
        spec = f"allreduce with mesh(stage=2, microbatches={MICROBATCHES}, cut={cut})"
        covey.fit(timed, spec, 2, steps=WARM_UP + STEPS, threads=1)
        files = [file.read_text().splitlines() for file in Path(folder).iterdir()]
    lines = max(files, key=len)[-(WARM_UP + STEPS) * MICROBATCHES :: MICROBATCHES]
    return statistics.median(after - before for before, after in pairwise(map(float, lines[WARM_UP:])))


def foreseen() -> float:
    """How many times faster the planner's cut should be, if messages took no time."""
    _, profile = profiled(unbalanced(), TERMS.schedule)
    equal, best = equal_cut(profile, 2), best_cut(profile, TERMS)
    return predict(profile, equal, TERMS).step / predict(profile, best, TERMS).step


def steps(rounds: int) -> dict[str, Any]:
    taken: dict[str, list[float]] = {"equal": [], "best": []}
    for _ in range(rounds):
        for cut, times in taken.items():
            times.append(step_time(cut))
    ratios = [equal / best for equal, best in zip(taken["equal"], taken["best"], strict=True)]
    return {
        "seconds": {cut: round(statistics.median(times), 4) for cut, times in taken.items()},
        "times faster": [round(value, 2) for value in (statistics.median(ratios), min(ratios), max(ratios))],
        "foreseen": round(foreseen(), 2),
    }


def gpt(width: int, blocks: int) -> Task:
    return replace(
        characters.task, model=lambda: characters.gpt(width, blocks), batch_size=16, evaluate=None,
        optimizer=torch.optim.Adam,
    )  # fmt: skip


def most(task: Task, spec: str, workers: int) -> list[float]:
    """Bytes of memory of each worker, at most."""
    roles: Mapping[str, Any] = covey.fit(task, spec, workers, steps=2, threads=1).roles
    return [shares.memory for who, shares in roles.items() if who.startswith("worker")]


def memory() -> dict[str, Any]:
    """MB of each worker beyond what Python, torch and covey need."""
    large, tiny = gpt(512, 8), gpt(16, 8)
    found: dict[str, Any] = {}
    for name, (spec, workers) in MESHES.items():
        pairs = zip(most(large, spec, workers), most(tiny, spec, workers), strict=True)
        found[name] = [round((whole - base) / 1e6) for whole, base in pairs]
    for name in MESHES:
        found[f"{name}, of the uncut model's"] = round(max(found[name]) / found["uncut"][0], 2)
    return found


def measure(rounds: int = 5) -> dict[str, Any]:
    return {"steps": steps(rounds), "memory": memory()}


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=1))
