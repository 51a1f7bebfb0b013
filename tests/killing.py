"""Runs in virtual time whose workers are killed at chosen effects, and restarted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from covey.engines.virtual import VirtualEngine, VirtualOutcome
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.engines.virtual.virtual_actor import WAIT
from covey.engines.virtual.virtual_membership import Replacement
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.model.threads import one_thread
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.program import Spawn
from covey.run.options import options
from covey.run.request import request
from covey.simulate import Cluster
from covey.strategy import Role
from tests.worlds import CLUSTER, mlp, sgd, worker

STEPS, VICTIM = 4, worker(1)


class Killing(VirtualEngine):
    """Kills roles in place of each of these of their effects, counted over all of their incarnations."""

    def kill(self, at: dict[Address, Collection[int]]) -> None:
        self.at, self.counts = at, dict.fromkeys(at, 0)
        self.lost: list[tuple[Address, Tensor, float]] = []  # who, with which numbers and weight
        for kind, perform in list(self._perform.items()):
            self._perform[kind] = self.counted(perform)

    def counted(self, perform: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def act(thread: Any, effect: Any) -> Any:
            who = thread.actor.address
            if who in self.at:
                self.counts[who] += 1
                if self.counts[who] - 1 in self.at[who]:
                    replica = thread.actor.replica
                    self.lost.append((who, torch.cat(replica.flat.parts).clone(), replica.shown.weight))
                    self._members.lose(who)
                    if isinstance(effect, Spawn):
                        effect.program.close()
                    return WAIT
            return perform(thread, effect)

        return act


class Finished:
    """A run that is over: its outcome, its weights, and how many effects its victim performed."""

    def __init__(
        self, strategy: str, at: Collection[int] = (), *, victim: Address = VICTIM, task: Any = None,
        watch: Instrument | None = None, most: int = 2, workers: int = 3, cluster: Cluster = CLUSTER,
        also: dict[Address, Collection[int]] | None = None,
        before: Callable[[dict[Address, Replica]], None] = lambda replicas: None, **given: Any,
    ) -> None:  # fmt: skip
        task = task or mlp(sgd(momentum=0.9))
        asked = request(
            task, strategy, workers, options({"engine": "simulated", "on_failure": "continue", "steps": STEPS, **given})
        )

        def replica(role: Role) -> Replica:
            return build.replica(task, role.address, role.trains, asked.deal, asked.budget, role.part)

        def restarted(role: Role) -> Replica:
            replicas[role.address] = replica(role)
            return replicas[role.address]

        replicas = {role.address: replica(role) for role in asked.plan.roles}
        before(replicas)
        # starting at once: the more of what was on its way meets the next incarnation
        replacement = Replacement(restarted, most, starting=0.0)
        attempt = VirtualAttempt(replacement=replacement)
        engine = Killing(
            asked.plan, dict(replicas), cluster, [watch] if watch else [], Referee(10**9), None, attempt=attempt
        )  # fmt: skip
        engine.kill({victim: at, **(also or {})})
        with one_thread():
            self.outcome: VirtualOutcome = engine.run()
        model = ScoredModel(build.model(task, 0), None)
        model.assemble(self.outcome.snapshots)
        self.weights: dict[str, Tensor] = model.state()
        self.effects, self.replicas, self.lost = engine.counts[victim], replicas, engine.lost

    def equals(self, other: dict[str, Tensor]) -> bool:
        return all(torch.equal(self.weights[name], other[name]) for name in other)
