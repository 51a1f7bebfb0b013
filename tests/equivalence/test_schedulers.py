"""A torch scheduler of a task gives the rates that a plain loop would have after as many samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

import covey
from covey import catalog
from covey.data.shards import Shards
from covey.errors import PlanError, UnknownMetric
from covey.message import Address
from covey.model import build
from covey.model.randomness import seed_of, seed_torch
from covey.model.threads import one_thread
from covey.scoring import accuracy
from covey.settings import SchedulePace
from covey.task import Task
from tests.promises.specs import ALONE_AS
from tests.worlds import CLUSTER, cloud, mlp, run, sgd

MOMENTUM = sgd(0.1, momentum=0.9)
EPOCHS = 4


def warmed_up(optimizer: Optimizer, steps: int) -> LRScheduler:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    then = lr_scheduler.CosineAnnealingLR(optimizer, steps - 3)
    return lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[3])


MAKERS: dict[str, Callable[..., LRScheduler]] = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5, 9]),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda number: 0.9**number),
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps + 1),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.3, step_size_up=3),
    "sequential": warmed_up,
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.2, 2), lr_scheduler.ExponentialLR(optimizer, 0.95)]
    ),
}


def plain_loop(task: Task, batch: int, epochs: int = EPOCHS, by: str = "batch", each: int = 1) -> dict[str, Tensor]:
    """As PyTorch's pages write it: with `batch` samples in a step, of which every `each` step the scheduler once."""
    x, y = task.data  # type: ignore[misc]
    deal = Shards(len(x), 1, batch, 0)
    with one_thread():
        model = build.model(task, 0)
        optimizer = task.optimizer(iter(list(model.named_parameters())))
        assert task.scheduler is not None
        more = {"steps": epochs * -(-len(x) // each)} if by == "batch" else {"steps": epochs}
        named = "steps" in task.scheduler.__code__.co_varnames[: task.scheduler.__code__.co_argcount]
        scheduler = task.scheduler(optimizer, **(more if named else {}))
        for epoch in range(epochs):
            for number in range(deal.steps(0)):
                step = epoch * deal.steps(0) + number
                chosen = deal.indices(0, step)
                seed_torch(seed_of(0, 0, step))
                optimizer.zero_grad()
                task.forward(model, (x[chosen], y[chosen])).backward()
                optimizer.step()
                for _ in range(-(-len(chosen) // each) if by == "batch" else 0):
                    scheduler.step()
            if by == "epoch":
                scheduler.step()
            elif by != "batch":
                assert task.evaluate is not None
                scheduler.step(task.evaluate(model)[by])  # type: ignore[arg-type]
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def task(name: str, by: str = "batch", samples: int = 101, **more: Any) -> Task:
    return mlp(MOMENTUM, samples=samples, scheduler=MAKERS[name], schedule_by=by, **more)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("by", ["batch", "epoch"])
def test_one_worker_is_the_plain_loop_to_the_bit(name: str, by: str) -> None:
    given = task(name, by)
    found = covey.fit(given, "allreduce", 1, engine="simulated", epochs=EPOCHS).weights
    assert apart(found, plain_loop(given, 8, by=by, each=8)) == 0


@pytest.mark.parametrize(("strategy", "servers"), [("bsp", 1), ("bsp", 2), ("allreduce", None), ("sliced", None)])
@pytest.mark.parametrize(("name", "by"), [("one cycle", "batch"), ("sequential", "batch"), ("cosine", "epoch")])
def test_four_workers_are_the_plain_loop_with_the_fourfold_batch(
    strategy: str, servers: int | None, name: str, by: str
) -> None:
    """By batches the scheduler is stepped once for each 8 samples, so four times for a step of all."""
    given = task(name, by, samples=128)
    found = covey.fit(given, strategy, 4, servers=servers, engine="simulated", epochs=EPOCHS).weights
    assert apart(found, plain_loop(given, 32, by=by, each=8)) < 1e-12


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_a_plateau_is_found_as_in_the_plain_loop(strategy: str, workers: int) -> None:
    data = cloud(96)
    given = mlp(
        sgd(2.0, momentum=0.9), data=data, schedule_by="accuracy", evaluate=accuracy(data),
        scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.3),
    )  # fmt: skip
    result = covey.fit(given, strategy, workers, engine="simulated", epochs=8)
    assert apart(result.weights, plain_loop(given, 8 * workers, epochs=8, by="accuracy")) < 1e-12
    again = mlp(sgd(2.0, momentum=0.9), data=data, evaluate=accuracy(data))
    assert apart(result.weights, covey.fit(again, strategy, workers, engine="simulated", epochs=8).weights) > 1e-3


def test_real_processes_hear_of_the_plateau_before_the_next_step() -> None:
    data = cloud(64)
    given = mlp(
        sgd(2.0), data=data, schedule_by="accuracy", evaluate=accuracy(data),
        scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.3),
    )  # fmt: skip
    found = covey.fit(given, "bsp", 2, servers=2, epochs=6, runs=False).weights
    assert apart(found, plain_loop(given, 16, epochs=6, by="accuracy")) < 1e-12


def rates(strategy: str) -> set[tuple[float, float]]:
    """For each role that has taken steps: the rate that its optimizer has, and the one that the schedule says."""
    given = mlp(sgd(0.1), samples=64, scheduler=MAKERS["lambda"], schedule_by="batch")
    done = run(given, strategy, 2, steps=6, scores=0)
    found = set()
    for replica in done.replicas.values():
        steps = min(replica.progress.seen, 96) // 8
        found.add((replica.optimizer.param_groups[0]["lr"], 0.1 * 0.9**steps))
    return found


@pytest.mark.parametrize("name", catalog.for_any_model())
def test_every_strategy_has_the_rate_of_the_schedule(name: str) -> None:
    entry = {"hogwild": "hogwild", "sandblaster": ""}.get(name, ALONE_AS.get(name, name))
    if not entry:
        pytest.skip("a line search has no rate")
    for rate, wanted in rates(entry):
        assert rate == pytest.approx(wanted, rel=1e-12)


def kept_and_resumed(given: Task, place: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What an uninterrupted run ends with, and one that was stopped and went on."""
    more: dict[str, Any] = {"epochs": 6, "engine": "simulated", "cluster": CLUSTER}
    whole = covey.fit(given, "allreduce", 2, **more)
    first = covey.fit(given, "allreduce", 2, checkpoint=place, every="25ms", until="loss<=1.05", **more)
    assert first.stopped == "target"
    return whole.weights, covey.fit(given, "allreduce", 2, resume=place, **more).weights


@pytest.mark.parametrize(("by", "steps"), [("epoch", [0, 1, 2, 2]), ("batch", [0, 4, 6, 6])])
def test_a_schedule_ends_with_the_budget_whatever_the_last_step_is_beyond_it(by: str, steps: list[int]) -> None:
    """OneCycleLR refuses a step more than it was told."""
    pace = SchedulePace(make=lr_scheduler.ConstantLR, by=by, samples=10, batch=4, budget=20)
    assert [pace.steps(seen) for seen in (3, 15, 20, 36)] == steps


@pytest.mark.parametrize("name", ["one cycle", pytest.param("sequential", marks=pytest.mark.full)])
def test_a_kept_run_goes_on_with_its_rates(name: str, tmp_path: Path) -> None:
    whole, rest = kept_and_resumed(task(name, samples=96), tmp_path / "kept")
    assert apart(whole, rest) == 0


def test_a_kept_run_knows_the_scores_that_it_has_heard(tmp_path: Path) -> None:
    data = cloud(96)
    given = mlp(
        sgd(1.0), data=data, schedule_by="accuracy", evaluate=accuracy(data),
        scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.3),
    )  # fmt: skip
    whole, rest = kept_and_resumed(given, tmp_path / "kept")
    assert apart(whole, rest) == 0


@pytest.mark.parametrize("name", MAKERS)
def test_whoever_goes_on_has_the_rate_of_what_was_seen(name: str) -> None:
    """A server's shard, a run with other workers, a worker that is restarted: each steps a new scheduler."""
    given = task(name, samples=96)
    deal = Shards(96, 2, 8, 0)
    steady, late, kept = (build.replica(given, Address("worker", 0), True, deal, 384) for _ in range(3))
    for _ in range(12):
        steady.progress.add(16)
    late.progress.reach(192)
    kept.restore(steady.state())
    groups = [replica.optimizer.param_groups[0] for replica in (steady, late, kept)]
    for key in ("lr", "momentum"):
        assert groups[0][key] == groups[1][key] == groups[2][key]
    assert groups[0]["lr"] != build.optimizer(given).param_groups[0]["lr"]
    for replica in (steady, kept):
        replica.progress.add(16)
    assert groups[0]["lr"] == kept.optimizer.param_groups[0]["lr"]


def test_a_rate_that_was_reduced_is_not_reduced_again_where_a_run_goes_on() -> None:
    given = mlp(
        sgd(1.0), samples=96, schedule_by="accuracy", evaluate=accuracy(cloud(96)),
        scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max", patience=0, factor=0.5),
    )  # fmt: skip
    steady, kept = (build.replica(given, Address("worker", 0), True, Shards(96, 2, 8, 0), 384) for _ in range(2))
    for score in (0.5, 0.4, 0.3):
        steady.progress.hear(score)
    for _ in range(2):
        kept.restore(steady.state())
        assert kept.optimizer.param_groups[0]["lr"] == steady.optimizer.param_groups[0]["lr"] == 0.25


PLATEAU = {"scheduler": ReduceLROnPlateau, "schedule_by": "accuracy"}
OTHER = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheduler": lr_scheduler.StepLR(OTHER, 1)}, "scheduler=lambda optimizer: StepLR"),
        ({"scheduler": 3}, "not int"),
        ({"scheduler": lr_scheduler.StepLR}, "it also wants step_size"),
        ({"schedule_by": "batch"}, "is for a scheduler"),
        ({"scheduler": MAKERS["step"], "schedule_by": 3}, "'epoch', 'batch' or the name of a metric"),
    ],
)
def test_what_makes_no_scheduler_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        mlp(**settings)


@pytest.mark.parametrize(
    ("settings", "strategy", "options", "said"),
    [
        ({"scheduler": lambda optimizer: lr_scheduler.StepLR(OTHER, 1)}, "bsp", {}, "StepLR of another optimizer"),
        ({"scheduler": lambda optimizer: 0.1}, "bsp", {}, "not a float"),
        ({"scheduler": ReduceLROnPlateau}, "bsp", {}, "ReduceLROnPlateau follows a metric"),
        ({"scheduler": MAKERS["step"], "schedule_by": "loss"}, "bsp", {}, "StepLR follows no metric"),
        (PLATEAU, "bsp", {}, "no evaluate"),
        (PLATEAU | {"evaluate": accuracy(cloud(8))}, "bsp", {}, "use mode='max'"),
        (PLATEAU | {"schedule_by": "loss"}, "bsp", {"scores": 0}, "follows scores"),
        (PLATEAU | {"schedule_by": "loss"}, "bsp", {"on_failure": "continue"}, "on_failure=.restart"),
        ({"scheduler": MAKERS["cyclic"]}, "hogwild", {}, "momentum"),
        ({"scheduler": MAKERS["cyclic"]}, "asynchronous(momentum=0.5)", {}, "cycle_momentum=False"),
    ],
)
def test_what_a_run_cannot_step_is_refused(
    settings: dict[str, Any], strategy: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        covey.fit(mlp(MOMENTUM, **settings), strategy, 2, engine="simulated", epochs=1, **options)


def test_a_metric_that_nobody_gives_is_named() -> None:
    given = mlp(
        evaluate=accuracy(cloud(8)), schedule_by="acuracy",
        scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, mode="max"),
    )  # fmt: skip
    with pytest.raises(UnknownMetric, match=r"acuracy.*accuracy"):
        covey.fit(given, "bsp", 2, engine="simulated", epochs=2)
