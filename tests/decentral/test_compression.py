"""What strategies do with any codec in which workers train alone: models travel as changes, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from covey import catalog
from covey.decentral.averaging.hops import relatives, subtree
from covey.decentral.elastic.easgd import MASTER, Centre, Elastic
from covey.decentral.gossip import dpsgd
from covey.errors import PlanError
from covey.exchange.collectives.compressed import Wire
from covey.message import Address
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.task import Task
from tests.exchange.plain_codecs import plain_codecs
from tests.worlds import INSTANT, World, middle, mlp, quadratic, run, sgd, slowed, worker


@pytest.fixture(autouse=True)
def codecs() -> Iterator[None]:
    with plain_codecs():
        yield


def weights(world: World) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in world.scored.values()])


def bytes_of(world: World) -> int:
    return sum(sent.size for sent in world.log.sends)


def flats(world: World) -> torch.Tensor:
    """The workers' parameters, a row each."""
    return torch.stack([world.flat(who) for who in world.replicas if who.role == "worker"])


def spread(world: World) -> float:
    """How far workers are from their mean."""
    found = flats(world)
    return float((found - found.mean(0)).norm(dim=1).mean())


ALL = [
    "local_sgd(period=3)", "local_sgd(period=2, after=3)", "local_sgd(period=3, momentum=average)", "bmuf(period=3)",
    "diloco(period=3)", "sparknet(period=3)", "crossbow", "easgd(period=2)", "easgd(period=2, mode=synchronous)",
    "easgd(period=2, mode=round_robin)", "eamsgd(period=2, momentum=0.5)", "tree_easgd(fanout=2, up=1, down=2)",
    "dpsgd", "butterfly", "gosgd(probability=0.7)", "adpsgd", "sgp", "sgp(overlap=1)", "malt", "malt(barrier=true)",
    "malt(bound=1)", "ako", "mpca",
]  # fmt: skip
GATHERED = ("local_sgd", "bmuf", "diloco", "crossbow")
"""What is summed in a ring goes around to all instead: n/2 times the bytes."""


def normed() -> torch.nn.Module:
    """With statistics, which travel beside the parameters."""
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).double()


VARIANTS = {
    "local_sgd(period=3, momentum=average)", "diloco(period=3)", "easgd(period=2, mode=synchronous)",
    "eamsgd(period=2, momentum=0.5)", "sgp", "malt", "malt(bound=1)",
}  # fmt: skip
"""Whose way of sending is another's; tried in full."""


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=pytest.mark.full if s in VARIANTS else ()) for s in ALL])
def test_an_exact_codec_changes_nothing(strategy: str) -> None:
    task = mlp(sgd(momentum=0.5), samples=120, model=normed)
    plain, coded = (run(task, strategy + tail, 4, steps=6) for tail in ("", " + exact"))
    for name, value in plain.scored.items():  # in dpsgd neighbours' statistics lack this step's, one's own do not
        assert torch.allclose(value, coded.scored[name], rtol=0, atol=0.05 if "running" in name else 1e-11), name
    if not strategy.startswith(GATHERED):
        assert bytes_of(coded) == pytest.approx(bytes_of(plain), rel=0.01)


QUICK = {"local_sgd(period=3)", "sparknet(period=3)", "easgd(period=2)", "dpsgd", "gosgd(probability=0.7)", "ako"}


@pytest.mark.parametrize("strategy", [pytest.param(s, marks=() if s in QUICK else pytest.mark.full) for s in ALL])
def test_a_tenth_of_the_numbers_is_few_bytes(strategy: str) -> None:
    """A sixth, as each travels with its place, and four times as far where it goes around instead of being summed."""
    plain, few = (run(mlp(), strategy + tail, 4, steps=12) for tail in ("", " + few"))
    gathered = strategy.startswith(GATHERED)
    state = "average" in strategy  # the optimizer's travels as it is
    assert bytes_of(few) < (0.34 if gathered else 0.2) * bytes_of(plain) or state
    assert (weights(few) - weights(plain)).abs().max() < 0.3


# -- a common model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["local_sgd(period=4)", "bmuf(period=4)", "diloco(period=4)"])
def test_all_go_on_from_the_same_model_to_the_bit(strategy: str) -> None:
    """And what a codec drops comes with the next change: with a tenth a time, ten times are nearly all."""
    world = run(mlp(samples=97), f"{strategy} + few", 4, steps=8)
    assert all(torch.equal(row, flats(world)[0]) for row in flats(world))
    assert len(world.log.kinds(Wire)) == 2 * 4 * 3


def test_the_change_since_the_common_model_travels_not_the_model() -> None:
    """A step down a slope of one: the change is the rate, wherever the model is."""
    world = run(quadratic(size=10), "local_sgd(period=1) + few", 2, steps=3)
    wires = [sent.message for sent in world.log.kinds(Wire) if isinstance(sent.message, Wire)]
    assert all(float(one.wire.parts[1].abs().max()) < 0.5 for one in wires), "the weights begin at 1"
    assert all(one.wire.parts[1].numel() == 1 for one in wires)


def test_sparknet_workers_begin_each_round_where_the_master_told_them() -> None:
    world = run(mlp(), "sparknet(period=2) + few", 3, steps=6)
    rows = flats(world)
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])
    assert not torch.allclose(rows[0], world.flat(MASTER)), "the master has all, and they what it told"


# -- what is conserved -------------------------------------------------------------------------------------------------


def slopes() -> Task:
    """A gradient is the mean of its batch wherever the weights are, so workers go their own ways."""
    step = lambda model, batch: (model.w * batch[0].mean(0)).sum()  # noqa: E731
    return replace(quadratic(size=40, samples=96), step=step)


def left_over(world: World, total: torch.Tensor, models: int, workers: int) -> float:
    """By how much so many models that began at 1 have moved together, beyond what the gradients moved them."""
    means = [middle(slopes(), world.deal, rank, step) for rank in range(workers) for step in range(6)]
    assert spread(world) > 0.05, "they have gone apart"
    return float((total - models + 0.1 * torch.stack(means).sum(0)).abs().max())


CODECS = ["", " + few", " + exact"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "strategy", ["easgd(period=1)", "easgd(period=2, mode=synchronous)", "easgd(period=1, mode=round_robin)"]
)
def test_worker_and_centre_move_by_the_very_same_force(strategy: str, codec: str) -> None:
    """So their sum stays, however little of the force travels."""
    world = run(slopes(), strategy + codec, 4, steps=6)
    assert left_over(world, flats(world).sum(0) + world.flat(MASTER), 5, 4) < 1e-9


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("strategy", ["adpsgd", "dpsgd", "butterfly"])
def test_exchanges_between_workers_keep_the_sum_of_their_models(strategy: str, codec: str) -> None:
    world = run(slopes(), strategy + codec, 4, steps=6, cluster=slowed(w1=2))
    assert left_over(world, flats(world).sum(0), 4, 4) < 1e-9


# -- elastic -----------------------------------------------------------------------------------------------------------


def test_only_a_part_of_centre_and_force_travels() -> None:
    world = run(slopes(), "easgd(period=1) + few", 3, steps=9)
    kinds = {type(sent.message) for sent in world.log.sends if sent.size}
    assert kinds == {Centre, Elastic} and {sent.size for sent in world.log.sends} == {0, 4 * 12}


def test_the_centre_follows_although_little_is_told() -> None:
    plain, few = (run(mlp(), f"easgd(period=1){tail}", 3, steps=40) for tail in ("", " + few(density=0.05)"))
    began = run(mlp(), "easgd(period=1)", 3, steps=1)
    way = (weights(plain) - weights(began)).norm()
    assert (weights(few) - weights(plain)).norm() < 0.2 * way
    assert bytes_of(few) < 0.1 * bytes_of(plain)


# -- neighbours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["dpsgd{} over ring", "dpsgd{} over exponential", "butterfly{}"])
def test_mixing_shadows_keeps_the_mean(strategy: str) -> None:
    """The mean of all moves by the mean gradient alone, which on a quadratic follows from itself."""
    task = quadratic(size=30, samples=64, batch_size=16)  # one batch a worker: each has the same slope all the time
    plain, few = (run(task, strategy.format(tail), 4, steps=10) for tail in ("", " + few"))
    assert torch.allclose(flats(plain).mean(0), flats(few).mean(0), atol=1e-12)
    assert spread(few) > 1.1 * spread(plain), "they agree less, as they were told less"


def test_without_the_gain_neighbours_would_drive_each_other_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells CHOCO from mixing old copies: who follows old differences in full overshoots, and more each time."""
    task = mlp(samples=256)
    plain, held = (run(task, f"dpsgd{tail}", 6, steps=40) for tail in ("", " + few(density=0.05)"))
    assert spread(held) < 4 * spread(plain)
    monkeypatch.setattr(dpsgd, "gain", lambda *given: 1.0)
    assert spread(run(task, "dpsgd + few(density=0.05)", 6, steps=40)) > 5 * spread(held)


@pytest.mark.parametrize("strategy", ["gosgd(probability=1)", "sgp", "tree_easgd(fanout=2, up=1, down=1)", "adpsgd"])
def test_shadows_hold_nobody_back(strategy: str) -> None:
    """One's own model is seen through the same codec: else all would be drawn to where others were long ago.

    From 1 towards a middle near 0; who trains alone is at 0.98^20 = 0.67 after 20 steps.
    """
    task = quadratic(size=50, samples=256, batch_size=16, lr=0.02)
    plain, few = (
        flats(run(task, strategy + tail, 4, steps=20, cluster=INSTANT)).mean() for tail in ("", " + few(density=0.04)")
    )
    assert 0.60 < few < plain + 0.02


def test_weights_of_gossip_and_of_shares_stay_numbers() -> None:
    for strategy in ("gosgd(probability=1) + few", "sgp + few"):
        world = run(mlp(), strategy, 4, steps=6)
        total = sum(replica.shown.weight for replica in world.workers())
        assert total == pytest.approx(1.0 if strategy.startswith("gosgd") else 4.0)


def test_ako_owes_what_it_left_out() -> None:
    """With a tenth a time: what is told is a part of the sum of all, and none of it counts twice."""
    plain, few = (run(quadratic(size=12), f"ako(partitions=1){tail}", 2, steps=30) for tail in ("", " + few"))
    assert (flats(plain) - flats(few)).abs().max() < 0.25 and bytes_of(few) < 0.2 * bytes_of(plain)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7, 12])
def test_every_model_is_in_one_subtree(workers: int) -> None:
    everybody = [MASTER, *(worker(rank) for rank in range(workers))]
    for who in everybody:
        children = relatives(who, workers)[1]
        assert subtree(who, workers) == sum(subtree(child, workers) for child in children) + (who != MASTER)
    assert subtree(MASTER, workers) == workers


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("malt + few over ring", "use share=gradient over complete, or dpsgd over this graph"),
        ("dpsgd + dgc", "use a codec without it"),
        ("gosgd + warmup(steps=3) + few", "omit warmup"),
        ("easgd + few + pull", "encoded anyway"),
        ("sparknet(momentum=average) + few", "use momentum=keep or reset"),
        ("local_sgd(pattern=star) + few", "omit pattern"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_would_work(spec: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        catalog.resolve(spec, 4)


class Weights(Instrument):
    """Worker 0's weights whenever it has computed."""

    def __init__(self) -> None:
        self.replicas: dict[Address, Replica] = {}
        self.seen: list[torch.Tensor] = []

    def computed(self, begin: float, end: float, who: Address) -> None:
        if who == worker(0):
            self.seen.append(self.replicas[who].flat.parts[0].clone())


def test_after_the_switch_of_post_local_sgd_changes_count_from_there() -> None:
    """Two workers tell a tenth of the numbers each: all others are those of the last common step."""
    watch = Weights()
    run(mlp(), "local_sgd(period=1, after=3) + few", 2, steps=5, watch=[watch], before=watch.replicas.update)
    moved = (watch.seen[4] != watch.seen[3]).double().mean()
    assert 0 < moved <= 0.21
