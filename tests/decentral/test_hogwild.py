"""What tells Hogwild apart: one vector, and nothing that guards it. What tells Hogwild++ apart: one token."""

from __future__ import annotations

import math
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import catalog
from covey.decentral.shared.hogwild import HogwildPlusPlus, Mixing, WriteToken
from covey.engines.process import shared_vector
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.run.options import options
from covey.run.request import request
from covey.task import Task
from covey.vector import Vector
from tests.worlds import CLUSTER, INSTANT, Point, adam, alone, mlp, paced, quadratic, run, sgd, slowed, vector, worker


def test_one_worker_is_plain_sgd() -> None:
    for name in ("hogwild", "hogwild++", "dogwild"):
        assert torch.equal(run(quadratic(), name, 1, steps=9).scored["w"], alone(quadratic(), 9, 4)["w"])


def test_all_live_in_one_place_and_every_update_counts_in_full() -> None:
    """Four gradients at the same weights, each applied as it comes: nobody waits for anybody."""
    world = run(quadratic(lr=0.1), "hogwild", 4, steps=1, cluster=slowed(INSTANT, w2=5))
    assert len({replica.flat.parts[0].data_ptr() for replica in world.workers()}) == 1
    assert len({next(replica.module.parameters()).data_ptr() for replica in world.workers()}) == 1
    data = quadratic().data
    assert isinstance(data, tuple)
    middles = [data[0][world.deal.indices(rank, 0)].mean(0) for rank in range(4)]
    expected = 1 - 0.1 * sum((1 - middle for middle in middles), torch.zeros(5).double())
    assert torch.allclose(world.scored["w"], expected, atol=1e-12)
    assert not world.log.sends or not any(sent.size for sent in world.log.sends), "no bytes on any wire"


def test_a_forced_race_loses_an_update() -> None:
    """Worker 0 reads, worker 1 updates, worker 0 writes what it read and its own change. A lock would prevent it."""
    living: dict[Address, Replica] = {}

    class Racing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            (parameter,) = self.param_groups[0]["params"]
            assert parameter.grad is not None
            read = parameter.detach().clone()
            if parameter is next(living[worker(0)].module.parameters()):
                torch.optim.SGD.step(living[worker(1)].optimizer)
            with torch.no_grad():
                parameter.copy_(read - 0.1 * parameter.grad)

    base = quadratic()
    task = Task(
        model=base.model, data=base.data, optimizer=lambda pairs: Racing(pairs, lr=0.1), step=base.step, batch_size=4
    )
    world = run(task, "hogwild", 2, steps=1, cluster=slowed(INSTANT, w1=3), before=living.update)
    assert isinstance(base.data, tuple)
    middles = [base.data[0][world.deal.indices(rank, 0)].mean(0) for rank in range(2)]
    both = 1 - 0.1 * (1 - middles[0]) - 0.1 * (1 - middles[1])
    # worker 1 steps twice, inside worker 0 and on its own: the first of them is gone
    assert torch.allclose(world.scored["w"], both, atol=1e-12)


def test_shared_memory_is_one_memory_and_unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads with a mapping each: of their updates some are lost, and no number is ever torn."""
    monkeypatch.setattr(shared_vector, "FILE", [])
    with pytest.raises(PlanError, match="share no memory"):
        shared_vector.share(vector(1.0), 0)
    shared_vector.create()
    shape = Vector([torch.zeros(100_000), torch.zeros(3, dtype=torch.float64)])
    shared_vector._region.cache_clear()
    one = shared_vector.share(shape, 1)
    shared_vector._region.cache_clear()  # as another process would: a mapping of its own
    other = shared_vector.share(shape, 1)
    assert one.parts[0].data_ptr() != other.parts[0].data_ptr()
    one.parts[1].copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert other.parts[1].tolist() == [1.0, 2.0, 3.0]
    assert shared_vector.share(shape, 0).parts[1].tolist() == [0.0, 0.0, 0.0], "another place is another vector"

    def write(place: Tensor) -> None:
        for _ in range(2000):
            place.add_(1.0)

    threads = [Thread(target=write, args=(mapping.parts[0],)) for mapping in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = one.parts[0]
    assert torch.equal(written, written.round())
    assert written.min() >= 2 and written.max() <= 4000
    shared_vector._region.cache_clear()
    if written.min() == 4000:
        pytest.skip("this machine ran one thread after the other: no race came about")


def test_disjoint_gradients_do_not_care_for_the_order() -> None:
    """Each sample moves a number of its own, once an epoch: any interleaving is the sequential run."""
    samples = 24
    x = torch.randn(samples, dtype=torch.float64, generator=torch.Generator().manual_seed(4))

    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        values, places = batch
        return 0.5 * (model.get_parameter("w")[places] - values).square().sum()

    task = Task(
        model=lambda: Point(samples, torch.float64), data=(x, torch.arange(samples)), optimizer=sgd(0.3), step=step,
        batch_size=1,
    )  # fmt: skip
    expected = 1 - 0.3 * (1 - x)
    for slow in ([1.0, 1.0, 1.0], [7.0, 0.3, 1.0]):
        world = run(task, "hogwild", 3, epochs=1, cluster=paced(slow, jitter=0.5))
        assert torch.allclose(world.scored["w"], expected, atol=1e-12)


@pytest.mark.parametrize("name", ["hogwild", "hogwild++(clusters=1)", "dogwild(machines=1)"])
@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), adam()])
def test_momentum_is_refused_where_writers_share(name: str, optimizer: Any) -> None:
    with pytest.raises(PlanError, match="keeps momentum, which Hogwild's writers cannot share"):
        request(mlp(optimizer), name, 2, options({"steps": 2}))  # nothing has started


def test_momentum_is_fine_where_nobody_shares() -> None:
    for name, workers in (("hogwild", 1), ("hogwild++(clusters=2)", 2), ("dogwild", 2)):
        run(mlp(sgd(momentum=0.9)), name, workers, steps=2)


def test_an_optimizer_that_insists_on_real_numbers_is_looked_at_too() -> None:
    def insisting(pairs: Any) -> torch.optim.Optimizer:
        listed = list(pairs)
        assert not any(parameter.is_meta for _, parameter in listed)
        return torch.optim.SGD(listed, lr=0.1, momentum=0.9)

    with pytest.raises(PlanError, match="keeps momentum"):
        request(mlp(insisting), "hogwild", 2, options({"steps": 2}))


def test_momentum_can_be_dropped() -> None:
    dropped = run(mlp(sgd(momentum=0.9, nesterov=True)), "hogwild(momentum=drop)", 2, steps=4).scored
    plain = run(mlp(sgd()), "hogwild", 2, steps=4).scored
    assert all(torch.equal(dropped[key], plain[key]) for key in plain)


# -- Hogwild++ --------------------------------------------------------------------------------------------------------


def test_a_single_cluster_is_hogwild_to_the_bit() -> None:
    one = run(mlp(), "hogwild++(clusters=1)", 3, steps=9, cluster=slowed(w1=2))
    other = run(mlp(), "hogwild", 3, steps=9, cluster=slowed(w1=2))
    assert all(torch.equal(one.scored[key], other.scored[key]) for key in one.scored)
    assert not one.log.kinds(WriteToken)


@pytest.mark.parametrize(("workers", "clusters"), [(2, 2), (5, 3), (6, 3), (4, 4)])
@pytest.mark.parametrize("slow", [1.0, 6.0])
def test_there_is_exactly_one_token_and_it_walks_the_ring(workers: int, clusters: int, slow: float) -> None:
    world = run(quadratic(), f"hogwild++(clusters={clusters}, hold=4)", workers, steps=25, cluster=slowed(w0=slow))
    leaders = sorted({rank * clusters // workers: rank for rank in reversed(range(workers))}.values())
    hops = [(sent.sender.rank, sent.to.rank) for sent in world.log.kinds(WriteToken)]
    assert hops == [(leaders[k % clusters], leaders[(k + 1) % clusters]) for k in range(len(hops))] and len(hops) >= 2
    assert len({replica.flat.parts[0].data_ptr() for replica in world.workers()}) == clusters, "one vector each"


@pytest.mark.parametrize(("workers", "hold"), [(2, 3), (4, 6)])
def test_the_token_is_held_for_so_many_updates_of_a_whole_cluster(workers: int, hold: int) -> None:
    """Of two clusters with one worker or two, each of which makes an update in 10 ms: it goes on after 30 ms,
    and is met where the update that was under way ends."""
    log = run(quadratic(), f"hogwild++(clusters=2, hold={hold})", workers, steps=12, cluster=INSTANT).log
    assert [round(sent.at, 6) for sent in log.kinds(WriteToken)][:3] == [0.03, 0.07, 0.11]


def test_meeting_by_hand() -> None:
    """Two clusters: beta is the golden ratio's 0.618, lambda 1 - 0.618."""
    mixing = Mixing.of(2, tolerance=0.1)
    beta = (math.sqrt(5) - 1) / 2
    assert mixing.beta == pytest.approx(beta) and mixing.pull == pytest.approx(1 - beta)
    mine, old, following = vector(3.0, 1.05), vector(1.0, 1.0), vector(5.0, 5.0)
    mixing.meet(mine, old, following)
    assert following.parts[0].tolist() == pytest.approx([5 + beta * 2, 5.0])
    assert mine.parts[0].tolist() == pytest.approx([beta * 1 + (1 - beta) * 5 + beta * 2, beta + (1 - beta) * 5 + 0.05])
    assert (mine - old).parts[0].tolist() == pytest.approx([0.0, 0.05]), "a small change waits for the next meeting"


def test_with_an_endless_tolerance_nothing_is_given() -> None:
    mixing = Mixing.of(3, tolerance=math.inf)
    mine, old, following = vector(3.0), vector(1.0), vector(5.0)
    mixing.meet(mine, old, following)
    assert following.parts[0].tolist() == [5.0]


@pytest.mark.parametrize("clusters", [2, 3, 5, 8])
def test_beta_and_lambda(clusters: int) -> None:
    mixing = Mixing.of(clusters, 0.0)
    assert mixing.beta**clusters + mixing.beta == pytest.approx(1)
    assert mixing.pull == pytest.approx(1 - mixing.beta ** (clusters - 1))


def test_clusters_come_together() -> None:
    def apart(strategy: str) -> float:
        world = run(quadratic(), strategy, 4, steps=60, cluster=CLUSTER)
        return float((world.flat(worker(0)) - world.flat(worker(3))).norm())

    assert apart("hogwild++(hold=2)") < apart("hogwild++(hold=100000)")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match="3 workers can form 1 to 3"):
        catalog.resolve("hogwild++(clusters=4)", 3)
    with pytest.raises(PlanError, match="hold must be 1 or more"):
        HogwildPlusPlus(hold=0).strategy(4)
