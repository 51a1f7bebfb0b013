"""CROSSBOW: several learners on every worker, each drawn towards a central model that has momentum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from covey.decentral.averaging.local_sgd import group
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.sums import ring
from covey.exchange.differences import model_sums, refuse_carrying
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Vector

WINDOW = 10  # rounds over which the tuner measures
GAIN = 1.05  # one more learner must make it faster by this


@dataclass(frozen=True, slots=True)
class Averaging:
    """Synchronous model averaging: how hard learners are drawn to the centre, its momentum, in which rounds."""

    pull: float | None
    momentum: float
    period: int
    tune: bool


class Learners:
    """A worker's learners, which take turns, and its copy of the central model. All of it survives a restart."""

    def __init__(self, node: Node, replica: Replica, rules: Averaging, count: int, codec: Codec) -> None:
        self.node, self.replica, self.rules = node, replica, rules
        self.kept: dict[str, Any] = node.remember("learners", self.fresh(count)).value
        self.sums = model_sums(node, replica, codec)
        replica.show(self.centre)

    def fresh(self, count: int) -> dict[str, Any]:
        model = self.replica.model
        return {
            "centre": model.clone(), "before": model.clone(), "sum": model.map(torch.zeros_like),
            "learners": [{"model": model.clone(), "state": {}} for _ in range(count)],
            "turn": 0, "round": 1, "rates": [[], []], "tuning": {"since": 0.0, "samples": 0, "rounds": 0, "best": 0.0},
        }  # fmt: skip

    @property
    def centre(self) -> Vector:
        return self.kept["centre"]  # type: ignore[no-any-return]

    @property
    def count(self) -> int:
        return len(self.kept["learners"])

    async def step(self) -> bool:
        """One learner's step; whether it was the last of a round in which all are averaged."""
        learner, replica = self.kept["learners"][self.kept["turn"]], self.replica
        self.seat(learner)
        await replica.gradient(self.node)
        step = self.node.step
        replica.progress.begin(sum(replica.batch_source.samples(rank, step) for rank in self.node.present(step)))
        averaging: bool = self.kept["round"] % self.rules.period == 0
        force = (replica.model - self.centre) * self.pull  # at the weights before the gradient
        replica.update()
        if averaging:
            replica.model.add_(force, alpha=-1)
            self.kept["sum"].add_(force)
        self.rise(learner)
        self.kept["tuning"]["samples"] += replica.batch.samples
        self.kept["turn"] = (self.kept["turn"] + 1) % self.count
        self.kept["round"] += self.kept["turn"] == 0
        return averaging and not self.kept["turn"]

    @property
    def pull(self) -> float:
        return self.rules.pull or usual_pull(self.count * self.node.workers)

    def seat(self, learner: dict[str, Any]) -> None:
        """Let the replica be this learner: its model, and its optimizer's state."""
        self.replica.model.copy_(learner["model"])
        state = self.replica.optimizer.state
        state.clear()
        state.update({p: learner["state"][i] for i, p in enumerate(self.parameters()) if i in learner["state"]})

    def rise(self, learner: dict[str, Any]) -> None:
        learner["model"].copy_(self.replica.model)
        state = self.replica.optimizer.state
        learner["state"] = {i: state[p] for i, p in enumerate(self.parameters()) if p in state}

    def parameters(self) -> list[Any]:
        return [p for group in self.replica.optimizer.param_groups for p in group["params"]]

    async def average(self, step: int) -> None:
        """z = z + sum of all forces + momentum (z - z before); the statistics of batch norm without momentum."""
        pace = await self.pace()
        untold = await self.sums.add_up(self.kept["sum"], group(self.node, step), ring, also=pace)
        if untold is not None:
            self.give_back(untold)
        drift, count = self.centre - self.kept["before"], len(self.replica.flat.parts)
        self.kept["before"].copy_(self.centre)
        self.centre.add_(self.kept["sum"])
        Vector(self.centre.parts[:count]).add_(Vector(drift.parts[:count]), alpha=self.rules.momentum)
        self.kept["sum"].zero_()
        if self.rate_jumped():
            self.restart()
        if self.rules.tune:
            await self.tune(pace)

    def give_back(self, untold: Vector) -> None:
        """What did not reach the centre all learners take back alike: it is still between them and the centre."""
        for learner in self.kept["learners"]:
            learner["model"].add_(untold, alpha=1 / self.count)

    def rate_jumped(self) -> bool:
        """Whether the learning rate changed after it had stood still; a smooth schedule never does."""
        now = [group["lr"] * self.replica.progress.rate for group in self.replica.optimizer.param_groups]
        last, earlier = self.kept["rates"]
        self.kept["rates"] = [now, last]
        return bool(last) and earlier == last != now

    def restart(self) -> None:
        """All learners begin again at the centre, and nothing has momentum."""
        for learner in self.kept["learners"]:
            learner["model"].copy_(self.centre)
            learner["state"] = {}
        self.kept["before"].copy_(self.centre)

    # -- the tuner ------------------------------------------------------------------------------------------------

    async def pace(self) -> Vector:
        """This worker's samples a second, to be summed with the others' so that all decide alike."""
        tuning = self.kept["tuning"]
        if not self.rules.tune or tuning["rounds"] < 0:
            return Vector(())
        passed = await self.node.now() - tuning["since"]
        return Vector([torch.tensor([tuning["samples"] / passed if passed > 0 else 0.0], dtype=torch.float64)])

    async def tune(self, pace: Vector) -> None:
        """After each window: one learner more while that makes it faster, else one less and no more tuning."""
        tuning = self.kept["tuning"]
        tuning["rounds"] += tuning["rounds"] >= 0
        if tuning["rounds"] < WINDOW:
            return
        speed = pace.parts[0].item()
        faster = speed > GAIN * tuning["best"]
        if faster:
            self.kept["learners"].append({"model": self.centre.clone(), "state": {}})
        else:
            self.kept["learners"].pop()
        tuning.update(best=speed, samples=0, since=await self.node.now(), rounds=0 if faster else -1)
        await self.node.note("learners", 1 if faster else -1)


def usual_pull(learners: int) -> float:
    """1/k for k learners in all (Koliousis et al. 2019): the centre moves to their mean. One alone would swing."""
    return 1 / max(2, learners)


async def worker(node: Node, replica: Replica, *, learners: int, rules: Averaging, codec: Codec) -> None:
    """Let the learners step in turn; after each round all workers move the centre by the forces of all learners."""
    bench = Learners(node, replica, rules, learners, codec)
    for step in node.steps():
        averaging = await bench.step()
        await node.note("update")
        if averaging:
            await bench.average(step)


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossbow:
    """Synchronous model averaging: several learners per worker, drawn to a central model that has momentum."""

    learners: int | None = None  # 2, or 1 to begin with where they are tuned
    pull: float | None = None  # 1 / learners of all workers
    momentum: float = 0.9
    period: int = 1
    tune: bool = False  # add learners while that raises the throughput

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        refuse_carrying(codec)
        learners = (1 if self.tune else 2) if self.learners is None else self.learners
        if learners < 1 or self.period < 1:
            raise PlanError("crossbow: at least 1 learner on each worker, and a period of at least 1 round")
        if self.tune and self.pull is not None:
            raise PlanError(
                "crossbow: pull and tune do not combine, because tune changes the number of learners: omit one of them"
            )
        everyone = learners * workers
        pull = usual_pull(everyone) if self.pull is None else self.pull
        if not 0 < pull * (everyone + 1) < 2:
            limit = 2 / (everyone + 1)
            raise PlanError(f"crossbow(pull={pull:g}): with {everyone} learners the pull must lie in (0, {limit:.3f})")
        if not 0 <= self.momentum < 1:
            raise PlanError(f"crossbow(momentum={self.momentum:g}): must lie in [0, 1)")
        rules = Averaging(self.pull, self.momentum, self.period, self.tune)

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, learners=learners, rules=rules, codec=codec)
            # all keep the same centre; worker 0 has the longest share of the data
            return [Role(Address("worker", rank), work, trains=True, scored=rank == 0) for rank in range(workers)]

        shown = {"learners": learners} if self.tune else {"learners": learners, "pull": pull}
        return Strategy(
            name="crossbow", settings=written(self, **shown), roles=roles,
            description=Description(scored="the central model", rate="unchanged: each learner's own"),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="synchronous",
                exchange="hierarchical all-reduce", topology="closed ring",
            ),
        )  # fmt: skip
