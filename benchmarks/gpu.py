"""What does covey cost on a GPU, and does what it exchanges overlap with computing?

`python -m benchmarks.gpu` measures one worker against the bare loop: a GPT of 101 million parameters in bf16, compiled,
with and without CUDA graphs; processes of their own take turns. `python -m benchmarks.gpu exchange` measures two
workers on one card: steps without any exchange, with one in the background (`adpsgd`), with averages in between
(`local_sgd`) and with gradients in buckets (`allreduce`), each with sums by the GPU itself, with copies staged through
pinned memory, and with memory that is not pinned. Needs one CUDA device.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TASK = f"{Path(__file__).with_name('gpu_task.py')}:task"
WARM_UP = 20  # steps, of a hundred; until then memory is taken, and pinned
EXCHANGES = {
    "no exchange": "local_sgd(period=1000000)", "adpsgd": "adpsgd", "local_sgd every 4 steps": "local_sgd(period=4)",
    "allreduce": "allreduce", "allreduce in buckets": "allreduce(bucket=32MB)", "bsp": "bsp",
}  # fmt: skip
WAYS = ("", "staged", "unpinned")  # by the GPU; through pinned memory and the processor; the same, not pinned


def bare(steps: int) -> None:
    """The plain loop."""
    import torch

    from benchmarks import gpu_task as given

    torch.manual_seed(0)
    model, data = given.model(), given.texts()
    optimizer = given.optimizer(model.parameters())
    order = torch.randint(len(data), (steps, given.BATCH)).cuda()
    for number in range(steps):
        optimizer.zero_grad()
        given.step(model, (data[order[number]],)).backward()
        optimizer.step()


def under_covey(steps: int, strategy: str = "local_sgd(period=8)", workers: int = 1) -> None:
    import covey

    result = covey.fit(TASK, strategy, workers, steps=steps)
    told = {"sent": result.traffic.bytes, "seconds": result.seconds, "notes": result.notes}
    print(json.dumps(told, default=str), flush=True)


def own_loop(steps: int) -> None:
    """(Under `covey launch`) The same in a loop of the user's own."""
    import covey
    from benchmarks import gpu_task as given

    model = given.model()
    with covey.join(model, given.optimizer(model.named_parameters())) as member:
        done = 0
        while done < steps:
            for batch in member.shard((given.texts(),), given.BATCH):
                loss = given.step(model, batch)
                loss.backward()
                member.step(loss)
                done += 1
                if done == steps:
                    break


def timed(command: list[str], steps: int, **settings: str) -> tuple[list[float], list[str]]:
    """Milliseconds of a step by the GPU's clock, for each process that took steps; and what was printed last."""
    with tempfile.TemporaryDirectory() as place:
        clock = Path(place) / "clock"
        more = {"GPU_CLOCK": str(clock), "GPU_STEPS": str(steps), **settings}
        environment = {**os.environ, **more, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])}
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr, flush=True)
            raise SystemExit(f"{command} failed")
        told = [json.loads(file.read_text()) for file in Path(place).glob("clock.*")]
    return [statistics.mean(one["gpu"][steps * WARM_UP // 100 :]) for one in told], done.stdout.splitlines()[-1:]


def alone(rounds: int = 2, steps: int = 120, modes: tuple[str, ...] = ("default", "reduce-overhead")) -> dict[str, Any]:
    """One worker against the bare loop, in milliseconds of a step, and the ratio of speeds."""
    module = ["-m", "benchmarks.gpu"]
    ways = {
        "bare": [*module, "bare", str(steps)],
        "covey run": [*module, "covey", str(steps)],
        "covey launch": [
            "-m", "covey", "launch", str(ROOT / "benchmarks" / "gpu.py"), "--workers", "1",
            "--strategy", "local_sgd(period=8)", "--", "own", str(steps),
        ],
    }  # fmt: skip
    rows: dict[str, Any] = {}
    for mode in modes:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, command in ways.items():
                times[way] += timed(command, steps, GPU_COMPILE=mode)[0]
                print(mode, way, times[way], flush=True)
        least = {way: min(found) for way, found in times.items()}
        rows[mode] = {"ms": times, "speed": {way: round(least["bare"] / found, 4) for way, found in least.items()}}
    return rows


def exchange(steps: int = 150, rounds: int = 2, names: str = "", ways: str = "") -> dict[str, Any]:
    """Two workers on one card: milliseconds of a step, by the way of exchanging."""
    rows: dict[str, Any] = {}
    for _ in range(rounds):
        for name, strategy in EXCHANGES.items():
            if names and name not in names.split(","):
                continue
            for way in WAYS if name != "no exchange" else ("",):
                if ways and (way or "on the GPU") not in ways.split(","):
                    continue
                command = ["-m", "benchmarks.gpu", "covey", str(steps), strategy, "2"]
                found, last = timed(command, steps, GPU_WAY=way)
                rows.setdefault(name, {}).setdefault(way or "on the GPU", []).append([round(ms, 2) for ms in found])
                print(name, strategy, way or "on the GPU", found, last, flush=True)
    return rows


def measure() -> dict[str, Any]:
    return {"alone": alone(), "exchange": exchange()}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bare", steps]:
            bare(int(steps))
        case ["covey", steps, *more]:
            under_covey(int(steps), *more[:1], **({"workers": int(more[1])} if more[1:] else {}))
        case ["own", steps]:
            own_loop(int(steps))
        case ["exchange", *chosen]:
            print(json.dumps(exchange(150, 2, *chosen), indent=1))
        case _:
            print(json.dumps(alone(), indent=1))
