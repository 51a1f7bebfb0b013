"""A pipeline of 2 stages: covey against torch.distributed.pipelining over Gloo, with the same timetable and cut.

The GPT of examples/characters.py, cut in its middle; the same batches, micro-batches, order and optimizer, one thread
for each stage, in processes that take turns. `alone` is the uncut model on one thread. What counts is the median step,
from the loss of its first micro-batch to that of the next step's; on a busy machine the CPU time that the last stage
took for it tells more. `python -m benchmarks.pipelines [ROUNDS [SIZE…]]`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import covey
from benchmarks.push_pull import free_port
from covey.data.feed import Feed
from covey.model import build
from covey.task import Task
from examples import characters

ROOT = Path(__file__).parent.parent
STAGES, WARM_UP, STEPS, BATCH = 2, 4, 20, 32
SIZES = {"small": (64, 4), "large": (256, 4)}  # width and blocks
CASES = [("gpipe", 4), ("1f1b", 4), ("gpipe", 8), ("1f1b", 8)]  # timetable and micro-batches
TEAMS = ("covey", "torch")


class Seen(NamedTuple):
    """Of one run: seconds of the median step, CPU seconds of the last stage, and losses of first micro-batches."""

    step: float
    cpu: float
    losses: list[float]


class Witness:
    """A loss that leaves in a file when each micro-batch came to it, how much CPU time was used, and what it was."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __call__(self, output: Tensor, following: Tensor) -> Tensor:
        begin, busy, loss = time.perf_counter(), time.process_time(), characters.loss(output, following)
        if loss.device.type == "cpu":  # torch tries the loss on tensors without numbers first
            with open(f"{self.file}.{os.getpid()}", "a") as seen:
                seen.write(f"{begin} {busy} {loss.item()}\n")
        return loss


def task(size: str, file: str) -> Task:
    """The example's, larger."""
    return replace(
        characters.task, model=lambda: characters.gpt(*SIZES[size]), loss=Witness(file), batch_size=BATCH,
        evaluate=None, optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    )  # fmt: skip


def front(size: str) -> int:
    """How many modules are in the first stage: the embedding and half of the blocks."""
    return 1 + SIZES[size][1] // 2


def member(size: str, timetable: str, microbatches: int, file: str, rank: int, port: int) -> None:
    """One process of torch's pipeline."""
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=STAGES)
    given = task(size, file)
    whole = build.model(given, 0)
    assert isinstance(whole, nn.Sequential)
    part = whole[: front(size)] if rank == 0 else whole[front(size) :]
    stage = PipelineStage(part, rank, STAGES, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[timetable]
    schedule = kind(stage, microbatches, loss_fn=given.loss)
    optimizer = given.optimizer(list(part.named_parameters()))
    batches = Feed(build.data_of(given), build.shards(given, 1, 0), 0).start(0)
    for _ in range(WARM_UP + STEPS):
        x, y = next(batches)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, return_outputs=False)
        optimizer.step()
    distributed.destroy_process_group()


def torch_team(size: str, timetable: str, microbatches: int, file: str) -> None:
    spawn, port = multiprocessing.get_context("spawn"), free_port()
    processes = [
        spawn.Process(target=member, args=(size, timetable, microbatches, file, rank, port)) for rank in range(STAGES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def alone(size: str, file: str) -> None:
    """The uncut model, one thread."""
    torch.set_num_threads(1)
    given = task(size, file)
    whole = build.model(given, 0)
    optimizer = given.optimizer(list(whole.named_parameters()))
    batches = Feed(build.data_of(given), build.shards(given, 1, 0), 0).start(0)
    for _ in range(WARM_UP + STEPS):
        batch = next(batches)
        optimizer.zero_grad()
        given.forward(whole, batch).backward()
        optimizer.step()


def run(team: str, size: str, timetable: str, microbatches: int, file: str) -> None:
    """One team, in a process of its own."""
    match team:
        case "covey":
            where = f"stage={STAGES}, cut={front(size) - 1}, load=50:50"  # so that nothing has to be measured
            spec = f"allreduce with mesh({where}, timetable={timetable}, microbatches={microbatches})"
            covey.fit(task(size, file), spec, STAGES, steps=WARM_UP + STEPS, threads=1)
        case "torch":
            torch_team(size, timetable, microbatches, file)
        case _:
            alone(size, file)


def watch(team: str, size: str, timetable: str = "plain", microbatches: int = 1) -> Seen:
    """What the last stage saw."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [team, size, timetable, str(microbatches), f"{folder}/seen"]
        command = [sys.executable, "-m", "benchmarks.pipelines", *asked]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        files = [file.read_text().splitlines() for file in Path(folder).iterdir()]
    lines = max(files, key=len)[-(WARM_UP + STEPS) * microbatches :: microbatches]
    assert len(lines) == WARM_UP + STEPS, "the last stage sees every step"
    rows = [[float(word) for word in line.split()] for line in lines]
    step, cpu = (median_gap([row[column] for row in rows[WARM_UP:]]) for column in (0, 1))
    return Seen(step, cpu, [row[2] for row in rows])


def median_gap(times: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))


def unlike(one: Seen, other: Seen) -> float:
    """How far the losses of two runs are from each other: nothing but rounding if they do the same."""
    return max(abs(mine - theirs) for mine, theirs in zip(one.losses, other.losses, strict=True))


def ratios(mine: Sequence[Seen], theirs: Sequence[Seen], what: str = "step") -> list[float]:
    """How many times less, in the same round: median, least and most."""
    found = [getattr(b, what) / getattr(a, what) for a, b in zip(mine, theirs, strict=True)]
    return [round(value, 3) for value in (statistics.median(found), min(found), max(found))]


def pace(seen: Sequence[Seen]) -> float:
    """Samples a second."""
    return round(BATCH / statistics.median(one.step for one in seen), 1)


def measure(rounds: int = 3, sizes: Sequence[str] = tuple(SIZES)) -> dict[str, Any]:
    """Samples a second of both, covey's over torch's in the same round, and over the uncut model's on one thread."""
    found: dict[str, Any] = {}
    for size in sizes:
        seen: dict[str, list[Seen]] = {}
        for _ in range(rounds):
            seen.setdefault("alone", []).append(watch("alone", size))
            for case in CASES:
                for team in TEAMS:
                    seen.setdefault(f"{team} {case}", []).append(watch(team, size, *case))
        for case in CASES:
            mine, theirs = seen[f"covey {case}"], seen[f"torch {case}"]
            found[f"{size}, {case[0]}, {case[1]} micro-batches"] = {
                "samples/s": {"covey": pace(mine), "torch": pace(theirs), "alone": pace(seen["alone"])},
                "covey over torch": ratios(mine, theirs),
                "covey over alone": ratios(mine, seen["alone"]),
                "torch over alone": ratios(theirs, seen["alone"]),
                "torch's CPU time over covey's": ratios(mine, theirs, "cpu"),
                "losses differ by": max(unlike(a, b) for a, b in zip(mine, theirs, strict=True)),
            }
    return found


if __name__ == "__main__":
    if len(sys.argv) == 6:
        run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        rounds, sizes = int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or tuple(SIZES)
        print(json.dumps(measure(rounds, sizes), indent=1))
