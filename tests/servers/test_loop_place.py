"""Where is the loop of a worker when a round is done?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from covey.servers.loop_place import PLACE, LoopPlace


class Counting:
    """A loop that keeps how many steps it has taken, in tensors that it writes into."""

    samples = 0

    def __init__(self) -> None:
        self.mean = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))
        self.weighted = torch.zeros(1) * self.mean.module.weight  # not only numbers: it has a gradient

    def step(self) -> None:
        self.mean.update_parameters(nn.Linear(1, 1))

    def give(self, under_way: bool) -> dict[str, Any]:
        return {"keep": [self.mean.state_dict(), {"weighted": self.weighted}]}

    def take(self, state: dict[str, Any]) -> None:
        self.mean.n_averaged = state["keep"][0]["n_averaged"]


def counted(place: LoopPlace) -> int:
    return int(place.give()[PLACE]["keep"][0]["n_averaged"])


def test_steps_after_a_round_are_not_in_what_a_new_worker_gets() -> None:
    node: Any = SimpleNamespace(incarnation=SimpleNamespace(elastic=False))
    place, loop = LoopPlace(node, each_step=False), Counting()
    place.begin(loop)
    loop.step()
    place.mark()
    loop.step()
    loop.step()
    assert counted(place) == 1
    new, other = LoopPlace(node, each_step=False), Counting()
    new.begin(other)
    new.take(place.give(), restarted=True)
    other.step()
    assert int(other.mean.n_averaged) == 2 and counted(new) == 1
