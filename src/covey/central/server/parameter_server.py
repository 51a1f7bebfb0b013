"""Servers hold shards of the parameters and step the optimizer; workers pull, differentiate and push.

`bsp`, `ssp`, `asynchronous`, `quorum` and the rest are one family: they differ in the rule that the servers ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from covey.central.server.chain_client import any_client
from covey.central.server.chain_shard import any_server, may_be_copied
from covey.central.server.compensation import compensation
from covey.central.server.proxies import grouped, takes_sums
from covey.central.server.shard import Shard, ShardPolicy
from covey.central.server.tokens import TokenShard
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.model.optimizers import check_momentum
from covey.names import option
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import (
    GROW,
    KEEP,
    ONCE,
    Clips,
    Description,
    Role,
    Scheduling,
    ServerPlan,
    Strategy,
    TaskTerms,
    Taxonomy,
)  # fmt: skip
from covey.synchronization import (
    Bounded,
    Each,
    Ending,
    Everyone,
    Near,
    Newer,
    Open,
    Predicted,
    Quorum,
    Rule,
    Soft,
    Tokens,
    Unit,
)  # fmt: skip

Damping = Literal["none", "inverse", "dynamic"]
RIGID = {"reads": "a lost worker takes along a token, for which others may wait: use count=workers"}


def parameter_server(
    name: str, scheduling: Scheduling, keeping: ShardPolicy, settings: Mapping[str, object], samples: str = ""
) -> Strategy:
    """The family: any rule over any number of servers."""

    gate, gather = keeping.rule.gate, keeping.rule.gather

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(any_client, servers=addresses(servers), codec=keeping.codec, clip=not gather.averages)
        policy = TokenShard if gate.holds_by == "reads" else Shard
        tend = partial(serve, partial(any_server, policy), clients=range(workers), keeping=keeping)
        return workers_and_servers(workers, work, servers, tend, one_batch=gather.everyone)

    if ending := keeping.ending:
        settings = {**settings, "epoch": ending.share, "unit": shown(ending.unit, "replicas")}
        skips = f"an epoch ends with {ending.share:.3g} of its {ending.unit}, and what is left of it is skipped"
        samples = f"{samples}; {skips}" if samples else skips
    clips: Clips = (
        "each update" if gather.everyone else "each update of one server" if gather.averages else "each gradient"
    )
    return Strategy(
        name=name, settings=dict(settings), roles=roles,
        servers=ServerPlan(
            1, grouped=partial(grouped, keeping) if takes_sums(keeping) else None, copied=may_be_copied(keeping)
        ),
        description=Description(
            scored="the servers' parameters", rate=gather.rate,
            scaling=GROW if scheduling == "synchronous" else KEEP, samples=samples or ONCE,
        ),
        terms=TaskTerms(clips=clips, chooses=ending is not None), rigid=RIGID.get(gate.holds_by, ""),
        taxonomy=Taxonomy(
            optimization="central", architecture="server", scheduling=scheduling, topology="parameter servers",
            exchange="reduce / broadcast" if gather.averages else "ad hoc",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Bsp:
    """Bulk synchronous: every step waits for every worker, one update with the mean gradient."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return parameter_server("bsp", "synchronous", ShardPolicy(Rule(Bounded(0), Everyone()), codec), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssp:
    """Stale synchronous: a worker may read while it is at most `bound` steps ahead of the slowest."""

    bound: int = 3
    weight: float | None = None  # what a push counts; 1 / workers
    damping: Damping = "none"  # inverse: over its staleness; dynamic: over 1 + its staleness

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        at_least("ssp", "bound", self.bound, 0, "0 waits as bsp does")
        each = Each(share("ssp", self.weight, self.damping, workers), self.damping)
        settings = {"bound": self.bound, "weight": each.share, "damping": shown(self.damping, "none")}
        return parameter_server("ssp", "bounded", ShardPolicy(Rule(Bounded(self.bound), each), codec), settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unheld:
    """What strategies have in common in which a slow worker may fall far behind: when an epoch ends for everybody."""

    epoch: float = 1.0  # the share that ends it: what stragglers have left of it is skipped (Chilimbi et al. 2014)
    unit: Unit = "replicas"  # the share of what: of replicas that have finished it, or of its samples

    def ending(self, name: str) -> Ending | None:
        if not 0 < self.epoch <= 1:
            raise PlanError(f"{name}(epoch={self.epoch:g}): a share between 0 and 1; with 1 no epoch ends early")
        return Ending(self.epoch, self.unit) if self.epoch < 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Asynchronous(Unheld):
    """Asynchronous: nobody waits; each gradient is applied when it comes, however old."""

    weight: float | None = None  # what a push counts; 1 / workers
    damping: Damping = "none"  # inverse: over its staleness; dynamic: over 1 + its staleness
    momentum: float | None = None  # wanted in all: the optimizer gets what asynchrony does not add (Mitliagkas 2016)

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.momentum is not None and not -1 < self.momentum < 1:
            raise PlanError(
                f"asynchronous(momentum={self.momentum:g}): the momentum must lie between -1 and 1, or training "
                "diverges"
            )
        each = Each(share("asynchronous", self.weight, self.damping, workers), self.damping)
        explicit = None if self.momentum is None else max(-0.9, min(0.99, self.momentum - (1 - 1 / workers)))
        keeping = ShardPolicy(Rule(Open(), each), codec, momentum=explicit, ending=self.ending("asynchronous"))
        settings = {"weight": each.share, "damping": shown(self.damping, "none"), "momentum": self.momentum}
        found = parameter_server("asynchronous", "asynchronous", keeping, settings)
        return replace(found, terms=replace(found.terms, accept=None if explicit is None else check_momentum))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dssp:
    """Stale synchronous with a bound between `low` and `low + extra`, chosen where the predicted wait is least."""

    low: int = 1
    extra: int = 4
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        at_least("dssp", "low", self.low, 0)
        at_least("dssp", "extra", self.extra, 0, "0 is ssp")
        each = Each(share("dssp", self.weight, "none", workers))
        settings = {"low": self.low, "extra": self.extra, "weight": each.share}
        return parameter_server(
            "dssp", "bounded", ShardPolicy(Rule(Predicted(self.low, self.extra), each), codec), settings
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupWorkers(Unheld):
    """The first `size` gradients of a step make the update; the late ones are dropped, or folded into the next."""

    size: int | None = None  # all but one
    late: Literal["drop", "fold"] = "drop"
    count: Literal["workers", "gradients"] = "workers"  # what `size` counts: TensorFlow counts gradients

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        size, several = max(1, workers - 1) if self.size is None else self.size, self.count == "gradients"
        if size < 1 or (size > workers and not several):
            more = "; with count=gradients it may be more, as a worker may supply several" if size > workers else ""
            raise PlanError(f"quorum(size={size}): with {workers} workers it must lie between 1 and {workers}{more}")
        gate = Tokens(max(size, workers)) if several else Newer()
        keeping = ShardPolicy(Rule(gate, Quorum(size, self.late, self.count)), codec, ending=self.ending("quorum"))
        settings = {"size": size, "late": self.late, "count": shown(self.count, "workers")}
        samples = "every sample once per epoch, but late gradients are dropped" if self.late == "drop" else ""
        return replace(parameter_server("quorum", "synchronous", keeping, settings, samples), leaves_behind=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Softsync(Unheld):
    """An update for every workers/groups gradients, of whatever age; groups=1 is nearly bsp, groups=workers is not."""

    groups: int = 1
    damping: Damping = "inverse"

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if not 1 <= self.groups <= workers:
            raise PlanError(f"softsync(groups={self.groups}): with {workers} workers from 1 to {workers} groups")
        gather = Soft(workers // self.groups, self.damping, self.groups)
        keeping = ShardPolicy(Rule(Open(), gather), codec, ending=self.ending("softsync"))
        settings = {"groups": self.groups, "damping": self.damping}
        return parameter_server("softsync", "asynchronous", keeping, settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayCompensated(Unheld):
    """Asynchronous, each gradient corrected for how far the parameters have moved since its worker read them."""

    strength: float | None = None  # 0.04, adaptive 2 (Zheng et al. 2017)
    adaptive: bool = False
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        strength = (2.0 if self.adaptive else 0.04) if self.strength is None else self.strength
        if strength < 0:
            raise PlanError(f"dc_asgd(strength={strength}): must be 0 or more; 0 is asynchronous")
        each = Each(share("dc_asgd", self.weight, "none", workers))
        correction = partial(compensation, strength=strength, adaptive=self.adaptive)
        keeping = ShardPolicy(Rule(Open(), each), codec, correction, ending=self.ending("dc_asgd"))
        settings = {"strength": strength, "adaptive": shown(self.adaptive, False), "weight": each.share}
        return parameter_server("dc_asgd", "asynchronous", keeping, settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueBound:
    """Reads wait while the weights have moved by `bound` in any number since the oldest copy that a worker is using."""

    bound: float = 0.1
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if not self.bound > 0:
            raise PlanError(
                f"value_bound(bound={self.bound:g}): the bound must be more than 0 (with a tiny one a read waits for "
                "all workers)"
            )
        if codec.pull:
            raise PlanError(
                "value_bound does not combine with pull, because its server tracks the exact weights of each "
                "worker: omit pull"
            )
        each = Each(share("value_bound", self.weight, "none", workers))
        settings = {"bound": self.bound, "weight": each.share}
        free = parameter_server("value_bound", "bounded", ShardPolicy(Rule(Near(self.bound), each), codec), settings)

        def roles(workers: int, servers: int) -> list[Role]:
            if servers != 1:  # each would hold somebody back for somebody whom another holds back
                raise PlanError(f"{option('servers', servers)}: value_bound needs 1 server, which compares all weights")
            return free.roles(workers, servers)

        return replace(free, roles=roles, leaves_behind=True)


def share(name: str, weight: float | None, damping: str, workers: int) -> float:
    """What a push counts before damping: 1/workers, or all of it where its age says how much."""
    if weight is not None and weight <= 0:
        raise PlanError(f"{name}(weight={weight}): the weight must be more than 0; omit it for 1/{workers}")
    return weight if weight is not None else 1 / workers if damping == "none" else 1.0


def at_least(name: str, key: str, value: int, least: int, note: str = "") -> None:
    if value < least:
        raise PlanError(f"{name}({key}={value}): must be {least} or more" + (f" ({note})" if note else ""))


def shown(value: object, usual: object) -> object:
    """A setting as the strategy's text shows it: not at all when it is as usual."""
    return None if value == usual else value
