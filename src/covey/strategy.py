"""Where does it stand in the taxonomy? A strategy is a value: its coordinates, its settings, the roles it needs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec
from covey.program import Effect, Node
from covey.vector import Vector

Scheduling = Literal["synchronous", "bounded", "soft", "asynchronous"]
Taken = Literal["", "pushes", "exchanges"]
"""What a strategy has codecs for: nothing, what goes to servers (and back with `pull`), or both ways anyway."""
Clips = Literal["each gradient", "each update", "each update of one server", "never"]
"""What a task's `clip_norm` holds for: each worker's own gradient, or the mean of an update, over all servers."""


KEEP = "keep it"
GROW = "it may grow up to n-fold, after a warm-up"
"""n workers make a batch n times as large, or average n models as often as that (Goyal et al. 2017)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """Where a strategy stands in the surveys' taxonomy (Langer et al. 2020, Table 1).

    Args:
        parallelism: What is divided: "data", "model" or both.
        optimization: Whether one model is kept ("central"), workers keep their own ("decentral"), or clients do.
        architecture: Who holds the model, such as "server" or "peers".
        scheduling: How long a worker waits for others.
        exchange: How models or gradients travel, such as "reduce / broadcast".
        topology: Who speaks to whom.

    >>> place = covey.Taxonomy(
    ...     optimization="decentral", architecture="peers", scheduling="synchronous", exchange="1:1", topology="ring"
    ... )
    >>> place.parallelism
    'data'
    """

    parallelism: str = "data"
    optimization: Literal["central", "decentral", "federated"]
    architecture: str
    scheduling: Scheduling
    exchange: str
    topology: str


@dataclass(frozen=True, slots=True)
class Role:
    """One role of a run: an address and the program that runs there.

    Args:
        address: Who it is.
        program: An `async def` of a Node and a Replica.
        trains: Whether it has a share of the data.
        scored: Whether its model is scored and saved.
        host: The role on whose machine it lives; a machine of its own without it.
        one_batch: Whether all workers take each step together, at equal weights.
        part: What makes the replica of a role that has a part of the model only.
        stage: Of a model that is cut into stages.
        alias: What those with whom it runs the strategy call it.
        prepare: What takes long the first time, for weights such as these.
        heard_by_all: Whether those who step hear every worker's settings, not only one worker's.

    >>> async def work(node, replica):
    ...     for step in node.steps():
    ...         await replica.descend(node)
    >>> covey.Role(covey.Address("worker", 0), work, trains=True, scored=True).stage
    0
    """

    address: Address
    program: Callable[[Node, Replica], Coroutine[Effect[Any], Any, None]]
    trains: bool = False
    scored: bool = False
    host: Address | None = None  # the role on whose machine it lives; a machine of its own when None
    one_batch: bool = False  # all workers take each step together, at equal weights, as one with a large batch would
    heard_by_all: bool = False  # whoever steps hears every worker's settings, not only one's
    part: Callable[[ReplicaSpec], Replica] | None = (
        None  # makes the replica of a role that has only a part of the model
    )
    stage: int = 0  # of a model that is cut into stages
    alias: Address | None = None  # what it is called by those with whom it runs the strategy, if not by its address
    prepare: Callable[[Vector], None] | None = None  # what takes long the first time, for weights such as these

    def check(self, replica: Replica) -> None:
        """Refuse a model that asks for what this role's program cannot give."""
        if replica.norms:
            self.check_norms()

    def check_norms(self) -> None:
        """Refuse a model with layers that normalize over the batches of all workers, where there is no such batch."""
        if self.trains and not self.one_batch:
            raise PlanError(
                "nn.SyncBatchNorm has no meaning here: the workers of this strategy do not take each step together at "
                "equal weights, so there is no large batch to normalize over; use nn.BatchNorm, which each worker does "
                "for itself, or bsp, allreduce, firecaffe, sliced, bigdl or caffeonspark"
            )

    @property
    def home(self) -> Address:
        return self.host or self.address


class ModelMesh(Protocol):
    """How one model is cut over several workers, which together are one replica."""

    @property
    def stages(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy that can be run: its place in the taxonomy, its settings, and its roles.

    Args:
        name: What SPECs call it.
        taxonomy: Where it stands.
        settings: Every setting with its value, as a SPEC would say it.
        roles: The roles for a number of workers and of servers.
        scored: Which model is scored and saved, in words.
        rate: What happens to the task's learning rate, in words.
        scaling: What a user should make of that rate with more workers, in words.
        servers: How many servers there are unless `--servers` says so; 0 for none.
        over: The topology that it runs over.
        codec: The codec, as in a SPEC.
        samples: Which samples count how often, in words.
        fixed_servers: Whether `--servers` is refused.
        leaves_behind: Whether a slow worker may fall behind without limit.
        clips: What a task's `clip_norm` holds for.
        parts: The number of parts in which a batch is computed.
        chooses: Whether it says itself which samples a gradient is of.
        grouped: The roles with proxies in between.
        accept: What refuses an optimizer of the task that cannot work.
        mesh: How its model is cut.

    >>> place = covey.Taxonomy(
    ...     optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="none", topology="none"
    ... )
    >>> alone = covey.Strategy(
    ...     name="alone", taxonomy=place, settings={"pace": 2}, roles=lambda workers, servers: [],
    ...     scored="the mean of the workers' models", rate="unchanged",
    ... )
    >>> alone.text
    'alone(pace=2)'
    """

    name: str
    taxonomy: Taxonomy
    settings: dict[str, Any]
    roles: Callable[[int, int], list[Role]]
    scored: str
    rate: str  # what happens to the user's learning rate
    scaling: str = KEEP  # what the user should make of it with more workers
    servers: int = 0
    over: str | None = None
    codec: str = "dense"
    samples: str = "every sample once per epoch"
    fixed_servers: bool = False  # the SPEC says how many servers there are
    leaves_behind: bool = False  # a slow worker may fall behind without limit, whatever the taxonomy says of waiting
    clips: Clips = "each gradient"
    parts: int = 1  # in which a batch is computed
    chooses: bool = False  # says itself which samples a gradient is of, which a loop of the user's own cannot give
    # with proxies: (workers, servers, groups, bound, whether lagging ones are answered first)
    grouped: Callable[[int, int, int, int, bool], list[Role]] | None = None
    accept: Callable[[Optimizer], None] | None = None  # refuses an optimizer of the task that cannot work
    mesh: ModelMesh | None = None  # where a replica is a group of workers

    def replicas(self, workers: int) -> int:
        """How many copies of the model so many workers hold: each has its share of the data."""
        return workers // self.mesh.stages if self.mesh else workers

    def check_clip(self, servers: int) -> None:
        """Refuse a task's `clip_norm`, or a loop's `member.clip`, that no role could keep to."""
        if self.mesh and self.clips != "each gradient":
            raise PlanError(
                f"{self.name} clips where gradients meet, and a cut model's never do in one place: use a strategy that "
                "clips each worker's own, such as ssp or local_sgd, or omit clipping"
            )
        if self.clips == "never":
            raise PlanError(f"{self.name} uses a line search and cannot clip gradients: omit clipping")
        if self.clips == "each update of one server" and servers > 1:
            raise PlanError(
                f"{self.name} with {servers} servers cannot clip: an update may hold other gradients on each server, "
                "so that no whole gradient has the norm; use 1 server, or bsp"
            )

    def layout(self, workers: int, servers: int | None) -> list[Role]:
        """The roles for so many workers and servers (the strategy's own number when None)."""
        if workers < 1:
            raise PlanError(f"--workers {workers}: at least 1 is needed")
        if servers is not None and servers != self.servers and not self.servers:
            raise PlanError(f"{self.name} has no servers: omit --servers, or use bsp, ssp or asynchronous")
        if servers is not None and servers != self.servers and self.fixed_servers:
            raise PlanError(f"--servers {servers}: '{self.text}' already says that there are {self.servers}")
        if servers is not None and servers < 1 <= self.servers:
            raise PlanError(f"--servers {servers}: {self.name} needs at least 1")
        return self.roles(workers, self.servers if servers is None else servers)

    @property
    def text(self) -> str:
        """The SPEC of this strategy, with every setting it was given or took by default."""
        settings = ", ".join(f"{key}={_short(value)}" for key, value in self.settings.items() if value is not None)
        codec = f" + {self.codec}" if self.codec != "dense" else ""
        over, mesh = f" over {self.over}" if self.over else "", f" with {self.mesh}" if self.mesh else ""
        return self.name + (f"({settings})" if settings else "") + codec + over + mesh

    @property
    def lockstep(self) -> bool:
        """Whether workers wait for one another, so that they must stop at a common step."""
        waits = self.taxonomy.scheduling in ("synchronous", "bounded") and not self.leaves_behind
        return waits or self.mesh is not None  # the stages of a replica wait for one another

    @property
    def in_step(self) -> bool:
        """Whether workers wait for each other's steps, so that all of them must take equally many."""
        return self.taxonomy.scheduling == "synchronous" and not self.leaves_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an engine performs: roles, each worker's budget of steps, and how they are held together."""

    roles: tuple[Role, ...]
    limits: tuple[int | None, ...]
    lockstep: bool
    in_step: bool = False  # a worker whose loop ends earlier than the others' would keep them waiting
    seed: int = 0
    window: int = 64 << 20
    traced: bool = False  # every role writes down what it does
    allowance: float | None = None  # bytes per second that may leave on each link
    sites: Mapping[str, int] = field(default_factory=dict)  # where a cluster has placed the roles; none: on one machine

    def role(self, address: Address) -> Role:
        return next(role for role in self.roles if role.address == address)

    def shown(self) -> list[Role]:
        """Whose snapshots make the scored model; where no scored role computes, the first worker's counters do too."""
        scored = [role for role in self.roles if role.scored]
        if any(role.trains for role in scored):
            return scored
        first = {role.stage: role for role in reversed(self.roles) if role.trains}
        return [*scored, *(first[stage] for stage in sorted(first))]

    def away(self, address: Address) -> list[Address]:
        """The roles that do not live on this one's machine."""
        home = self.role(address).home
        return [role.address for role in self.roles if role.home != home]

    def homes(self) -> dict[Address, Address]:
        """On whose machine each role lives."""
        return {role.address: role.home for role in self.roles}


@dataclass(frozen=True, slots=True)
class Entry:
    """A named strategy: the settings that make it, its paper, the graph it runs over by default, may it have codecs."""

    settings: type[Any]
    paper: str
    graph: str | None = None
    codecs: Taken = ""  # for what goes to servers, and back with `pull`; both ways anyway
    plain: str = ""  # why it takes none
    placed: bool = False  # has servers, which `over` places
    whole: str = ""  # why its workers need the whole model, which then cannot be cut
    example: str = ""  # what trains the digits, where the bare name's defaults are for far longer runs or refuse them

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").strip()


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def workers(count: int) -> tuple[Address, ...]:
    """The addresses of all workers, in rank order."""
    return tuple(Address("worker", rank) for rank in range(count))
