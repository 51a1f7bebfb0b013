"""Servers with copies on real processes: whichever of them is killed, the run goes on: `--replicas`."""

from __future__ import annotations

import pytest
import torch

from covey.errors import PeerLost
from covey.observe.progress import Progress
from tests.real.harness import Room, fit
from tests.real.test_continue import AT_STEP, Killer, weights


@pytest.mark.parametrize("deaths", [3, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_bsp_ends_with_the_weights_of_a_run_that_lost_nobody(room: Room, servers: int, deaths: int) -> None:
    """Each copy leads in turn, and a worker is lost between them."""
    task, steps = room.task(before_step=AT_STEP, model="nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.2))"), 30 * deaths
    victims = [("server 0", "backup 0", "worker 1")[number % 3] for number in range(deaths)]
    killer = Killer(room, *victims)
    result = fit(task, "bsp", 2, servers=servers, replicas=2, steps=steps, watcher=killer)
    plain = fit(task, "bsp", 2, servers=servers, steps=steps)
    assert all(map(torch.equal, weights(result), weights(plain))) and result.samples == plain.samples
    assert isinstance(result.membership, list) and [event.who for event in result.membership] == victims
    assert result.failures == [] and not killer.victims


@pytest.mark.parametrize("strategy", ["ssp", "asynchronous"])
def test_the_others_count_every_gradient(room: Room, strategy: str) -> None:
    killer = Killer(room, "backup 0", "server 0", "backup 0")
    result = fit(room.task(before_step=AT_STEP), strategy, 3, replicas=3, steps=180, watcher=killer)
    assert not killer.victims and all(tensor.isfinite().all() for tensor in weights(result))
    assert result.samples == 30 * 64 and isinstance(result.membership, list) and len(result.membership) == 3


def test_a_run_that_loses_all_copies_at_once_ends(room: Room) -> None:
    class Both(Killer):
        def update(self, now: Progress) -> None:
            while self.victims and now.samples >= self.next:
                self.room.kill(self.victims.pop())

    killer = Both(room, "server 0", "backup 0")
    with pytest.raises(PeerLost, match="was lost together with all other copies of its parameters"):
        fit(room.task(before_step=AT_STEP), "bsp", 2, replicas=2, steps=400, watcher=killer)
