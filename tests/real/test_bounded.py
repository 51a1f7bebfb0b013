"""A worker that takes nothing in fills no memory, on real processes; tests/promises holds it of every strategy."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import covey
from tests.real.harness import Room

NUMBERS = 1 << 21  # 8 MB, of which some 20 a second used to pile up


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(NUMBERS))


def test_gossip_does_not_pile_up_at_a_worker_that_is_stuck_in_its_compute(room: Room, tmp_path: Path) -> None:
    flag = tmp_path / "stuck"

    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:  # the first of all workers
            time.sleep(5)
        w = model.w
        assert isinstance(w, Tensor)
        return w[:4].sum() * batch[0].mean()

    task = covey.Task(
        model=Wide, data=(torch.ones(600, 1),), optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1), step=step,
        batch_size=1, warm=False,
    )  # fmt: skip
    result = covey.fit(task, "gosgd(probability=1)", 3, engine="local", steps=150)
    memory = [shares.memory for who, shares in result.roles.items() if who.startswith("worker")]
    assert max(memory) - min(memory) < 320 << 20, "two windows of 64 MiB, and what their models take"
