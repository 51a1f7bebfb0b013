"""What tells Dogwild apart: a third of all blocks may be lost, the rest may come in any order, and nobody notices."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from covey import catalog
from covey.decentral.shared.dogwild import VectorBlock
from covey.engines.virtual.engine import VirtualEngine
from covey.engines.virtual.virtual_actor import MessageInFlight, RoleProgram
from covey.engines.virtual.virtual_links import VirtualLinks
from covey.errors import PlanError
from covey.program import Send
from tests.worlds import CLUSTER, INSTANT, World, quadratic, run, slowed, spread, worker


def test_one_machine_is_hogwild_to_the_bit() -> None:
    one = run(quadratic(), "dogwild(machines=1)", 3, steps=9, cluster=slowed(w1=2))
    other = run(quadratic(), "hogwild", 3, steps=9, cluster=slowed(w1=2))
    assert torch.equal(one.scored["w"], other.scored["w"])
    assert not one.log.kinds(VectorBlock)


def stormy(strategy: str, steps: int, loss: float) -> tuple[World, int]:
    """A run in which blocks are lost, or late and out of order; and how many were lost."""
    chance, lost = Random(5), []
    send, arrived = VirtualLinks.send, VirtualEngine._arrived

    def lossy(self: VirtualLinks, thread: RoleProgram, effect: Send) -> bool:
        assert effect.lossy == isinstance(effect.body, VectorBlock)
        if effect.lossy and chance.random() < loss:
            lost.append(effect)
            return True
        return send(self, thread, effect)

    def late(self: VirtualEngine, flight: MessageInFlight, _: Any = None) -> None:
        if isinstance(flight.message, VectorBlock):
            later = self._agenda.now + chance.random() * 0.05
            self._agenda.at(later, lambda flight, _: arrived(self, flight), flight)
        else:
            arrived(self, flight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualLinks, "send", lossy)
        patch.setattr(VirtualEngine, "_arrived", late)
        return run(quadratic(), strategy, 4, steps=steps, cluster=CLUSTER, before=spread(3.0)), len(lost)


def test_loss_and_disorder_do_not_stop_it() -> None:
    """No stall, nobody waits, nothing is sent twice; and the machines still come together."""
    world, lost = stormy("dogwild", steps=60, loss=0.3)
    sent = len(world.log.kinds(VectorBlock))
    assert lost > 100 and sent + lost == 60 * 4 * 3, "a lost block is not sent again"
    ends = [end for _, end, _ in world.log.computes]
    assert max(ends) == pytest.approx(0.6), "nobody waited"
    models = torch.stack([world.flat(worker(rank)) for rank in range(4)])
    assert models.std(0).max() < 0.3


def test_if_all_is_lost_each_trains_alone() -> None:
    world, _ = stormy("dogwild", steps=5, loss=1.0)
    alone = run(quadratic(), "local_sgd(period=100)", 4, steps=5, cluster=CLUSTER, before=spread(3.0))
    for rank in range(4):
        assert torch.equal(world.flat(worker(rank)), alone.flat(worker(rank)))


def test_blocks_go_round() -> None:
    log = run(quadratic(size=10), "dogwild(blocks=3)", 2, steps=6).log
    blocks = [event.message for event in log.kinds(VectorBlock) if event.sender == worker(0)]
    assert [block.index for block in blocks if isinstance(block, VectorBlock)] == [0, 1, 2, 0, 1, 2]
    assert [event.size for event in log.kinds(VectorBlock) if event.sender == worker(0)] == [24, 24, 32] * 2


def test_machines_of_several_workers_share_a_vector_and_send_one_block() -> None:
    world = run(quadratic(), "dogwild(machines=2)", 5, steps=4, cluster=slowed(INSTANT, w1=3))
    assert [world.flat(worker(rank)).tolist() for rank in (0, 1)] == [world.flat(worker(2)).tolist()] * 2
    assert {(event.sender.rank, event.to.rank) for event in world.log.kinds(VectorBlock)} == {(0, 3), (3, 0)}


def test_a_full_link_loses_blocks_instead_of_time() -> None:
    """A block takes 25 ms, a step 10, and the link holds one of them."""
    world = run(quadratic(size=3125), "dogwild(blocks=1)", 2, steps=20, cluster=CLUSTER)
    assert max(end for _, end, _ in world.log.computes) == pytest.approx(0.2)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="2 workers can form 1 to 2"):
        catalog.resolve("dogwild(machines=3)", 2)
    with pytest.raises(PlanError, match="mix lie in"):
        catalog.resolve("dogwild(mix=0)", 2)
