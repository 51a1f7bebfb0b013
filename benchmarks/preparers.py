"""How much faster is one worker with preparers, where transforming a batch is three times as dear as computing it?

`python -m benchmarks.preparers [PAIRS]` trains on real processes, without preparers and with two, in turn. The
transform only uses the CPU: as long, for a batch, as three batches took to compute at the beginning.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

import covey

BATCH, STEPS, WIDTH = 32, 60, 1024


def model() -> nn.Module:
    hidden = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 10))


def computing() -> float:
    """CPU seconds of one batch."""
    torch.set_num_threads(1)
    module, x, y = model(), torch.randn(BATCH, 64), torch.zeros(BATCH, dtype=torch.long)
    for _ in range(5):
        nn.functional.cross_entropy(module(x), y).backward()
    begin = time.process_time()
    for _ in range(20):
        nn.functional.cross_entropy(module(x), y).backward()
    return (time.process_time() - begin) / 20


def seconds(preparers: int, each: float) -> float:
    """Of a run whose transform takes `each` CPU seconds for a sample."""

    def transform(sample: Any) -> Any:
        end = time.thread_time() + each
        while time.thread_time() < end:
            pass
        return sample

    task = covey.Task(
        model=model, data=covey.data.digits(train=True), optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        loss=nn.functional.cross_entropy, batch_size=BATCH, transform=transform, preparers=preparers,
    )  # fmt: skip
    return covey.fit(task, "allreduce", 1, steps=STEPS, threads=1).seconds


def measure(pairs: int = 3) -> None:
    each = 3 * computing() / BATCH
    ratios = [seconds(0, each) / seconds(2, each) for _ in range(pairs)]
    print(f"one worker, transform 3x as dear as computing ({each * BATCH * 1e3:.1f} ms a batch), two preparers:")
    print(f"  {statistics.median(ratios):.2f}x as fast (median of {pairs}: {', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    measure(*map(int, sys.argv[1:2]))
