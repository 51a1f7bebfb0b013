"""A layer of experts: one process against a loop over experts, and two workers that divide the experts against one.

4,096 tokens of 256 numbers, 8 experts of 256 x 1024 x 256, one thread each. `python -m benchmarks.experts [rounds]`
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import covey
from covey.nn import Experts

SAMPLES, TOKENS, WIDTH, HIDDEN, EXPERTS = 64, 64, 256, 1024, 8  # of a step
STEPS = 6
GOALS = {"over a loop": 1.05, "two workers over one": 0.65}


def expert() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


class Looped(nn.Module):
    """What one would write by hand: each expert computes the tokens that chose it, and none is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, chosen = self.router(rows).softmax(-1).max(-1)
        output = torch.zeros_like(rows)
        for number, one in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            output = output.index_add(0, mine, one(rows[mine]) * weights[mine].unsqueeze(1))
        return output.view_as(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts(expert, experts=EXPERTS, capacity=float(EXPERTS))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.experts(x)).squeeze(-1)


def _task(workers: int) -> covey.Task:
    chance = torch.Generator().manual_seed(1)
    data = torch.randn(SAMPLES * STEPS, TOKENS, WIDTH, generator=chance)
    return covey.Task(
        model=Net, data=(data, torch.zeros(len(data), TOKENS)), batch_size=SAMPLES // workers,
        loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.01),
    )  # fmt: skip


one, two = _task(1), _task(2)


def layers() -> dict[str, float]:
    """Seconds of a forward and backward of the layer, and of the loop with the same weights."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ours, loop, x = Experts(expert, experts=EXPERTS, capacity=float(EXPERTS)), Looped(), torch.randn(64, 64, WIDTH)
    loop.load_state_dict(ours.state_dict())
    assert torch.allclose(ours(x), loop(x), atol=1e-5)
    found = {}
    for name, layer in (("experts", ours), ("loop", loop)):
        layer(x).square().mean().backward()
        begin = time.perf_counter()
        for _ in range(STEPS):
            layer(x).square().mean().backward()
        found[name] = (time.perf_counter() - begin) / STEPS
    return found


def runs() -> dict[str, float]:
    """Seconds of a step over the same number of tokens, by one worker and by two with half of the experts each."""
    given: dict[str, Any] = {"steps": STEPS, "threads": 1, "engine": "local", "runs": False}
    file = Path(__file__)
    alone = covey.fit(f"{file}:one", "allreduce", 1, **given)
    divided = covey.fit(f"{file}:two", "allreduce with mesh(expert=2)", 2, **given)
    return {"one": alone.seconds / STEPS, "two": divided.seconds / STEPS}


def measure(rounds: int = 5) -> dict[str, Any]:
    """Medians and ranges of ratios; in each round everybody runs once."""
    found: dict[str, list[float]] = {name: [] for name in GOALS}
    for _ in range(rounds):
        layer, run = layers(), runs()
        found["over a loop"].append(layer["experts"] / layer["loop"])
        found["two workers over one"].append(run["two"] / run["one"])
    return {
        name: {"median": round(statistics.median(each), 3), "range": [round(min(each), 3), round(max(each), 3)],
               "goal": GOALS[name]} for name, each in found.items()
    }  # fmt: skip


if __name__ == "__main__":
    print(measure(*map(int, sys.argv[1:])))
