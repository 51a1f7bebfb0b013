"""What does covey itself cost? One worker under local_sgd on the Fashion-MNIST CNN against the bare PyTorch loop.

Both see the same batches by the same indexing, in processes of their own that take turns, so that a slow moment of the
machine hits both. `python -m benchmarks.own_cost`
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
WARM_UP, STEPS = 10, 60


def bare() -> float:
    """Seconds of STEPS steps of the plain loop, after a warm-up."""
    import torch

    from covey.data.feed import Feed
    from covey.model import build
    from covey.task import load_task

    torch.set_num_threads(1)
    task = load_task(str(ROOT / "examples" / "fashion.py"))
    deal = build.shards(task, 1, 0)
    model = build.model(task, 0)
    optimizer = task.optimizer(model.named_parameters())
    batches = Feed(task.data, deal, 0).start(0)
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            begin = time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        loss.item()
        optimizer.step()
    return time.perf_counter() - begin


def covey_time() -> float:
    """The same under covey: training time of STEPS + WARM_UP steps, less that of WARM_UP."""
    import covey
    from covey.task import load_task

    task = load_task(str(ROOT / "examples" / "fashion.py"))
    plain = replace(task, evaluate=None)  # the bare loop is not scored either

    def seconds(steps: int) -> float:
        return covey.fit(plain, "local_sgd(period=8)", 1, steps=steps, threads=1).seconds

    return seconds(WARM_UP + STEPS) - seconds(WARM_UP)


def measure(rounds: int = 5) -> dict[str, float]:
    """Median of the ratios of neighbouring runs."""
    times: dict[str, list[float]] = {"bare": [], "covey": []}
    for _ in range(rounds):
        for name, taken in times.items():
            command = [sys.executable, "-m", "benchmarks.own_cost", name]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            taken.append(float(done.stdout.strip().splitlines()[-1]))
    ratios = [mine / theirs for mine, theirs in zip(times["covey"], times["bare"], strict=True)]
    return {
        "steps": STEPS,
        "bare": statistics.median(times["bare"]),
        "covey": statistics.median(times["covey"]),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print({"bare": bare, "covey": covey_time}[sys.argv[1]]())
    else:
        print(json.dumps(measure(), indent=2))
