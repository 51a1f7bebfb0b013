"""A strategy as a value: its coordinates, its settings, the roles that it needs, and what it asks of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.membership import OnLoss
from covey.names import option
from covey.strategy.roles import Role, with_copies
from covey.strategy.taxonomy import Description, Taxonomy

Clips = Literal["each gradient", "each update", "each update of one server", "never"]
"""What a task's `clip_norm` holds for: each worker's own gradient, or the mean of an update, over all servers."""


class ModelMesh(Protocol):
    """How one model is cut over several workers, which together are one replica."""

    @property
    def stages(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def cut_in_layers(self) -> bool: ...
    @property
    def tensors(self) -> int: ...
    @property
    def members(self) -> int: ...
    @property
    def flushes(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """The servers of a strategy.

    Args:
        count: How many there are unless `--servers` says so; 0 for none.
        fixed: Whether `--servers` is refused.
        grouped: The roles with proxies in between, for (workers, servers, groups, bound, lagging ones first).
        copied: Whether what each of them holds may have copies, which outlive it (`--replicas`).

    >>> covey.ServerPlan(1, fixed=True).count
    1
    """

    count: int = 0
    fixed: bool = False
    grouped: Callable[[int, int, int, int, bool], list[Role]] | None = None
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTerms:
    """What a strategy asks of a task, and of its batches.

    Args:
        clips: What a task's `clip_norm` holds for.
        accept: What refuses an optimizer of the task that cannot work.
        parts: The number of parts in which a batch is computed.
        chooses: Whether it says itself which samples a gradient is of, which a loop of the user's own cannot give.
        streams: Whether gradients leave while backward runs, which a cut model cannot do.
        undivided: Why members of a mesh cannot divide experts with it; empty where they can.

    >>> covey.TaskTerms(clips="each update").parts
    1
    """

    clips: Clips = "each gradient"
    accept: Callable[[Optimizer], None] | None = None
    parts: int = 1
    chooses: bool = False
    streams: bool = False
    undivided: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a SPEC has put around a strategy: `+ codec`, `over topology`, `with mesh(...)`."""

    codec: Codec = dense
    over: str | None = None
    mesh: ModelMesh | None = None  # where a replica is a group of workers

    def __str__(self) -> str:
        codec = "" if self.codec.traits.plain else f" + {self.codec.name}"
        over, mesh = f" over {self.over}" if self.over else "", f" with {self.mesh}" if self.mesh else ""
        return codec + over + mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy that can be run: its place in the taxonomy, its settings, and its roles.

    Args:
        name: What SPECs call it.
        taxonomy: Where it stands.
        settings: Every setting with its value, as a SPEC would say it.
        roles: The roles for a number of workers and of servers.
        description: What a person should know of a run, in words.
        servers: How many servers there are, and who may change that; none without it.
        terms: What it asks of a task.
        leaves_behind: Whether a slow worker may fall behind without limit, whatever the taxonomy says of waiting.
        composition: The codec, the topology and the mesh of the SPEC. covey fills it in.
        on_loss: What a run can do when it loses a worker: "continue" while it is restarted, or "restart" as a whole.
        rigid: Why a lost worker cannot be restarted with these settings, if that is so.
        ranges: Whether the number of workers may change while a run goes on.
        lease_always: Whether a lost worker can be replaced only where batches are leased, as in a range. A fixed number
            of workers that goes on after a loss is then a range of that number alone.

    >>> place = covey.Taxonomy(
    ...     optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="none", topology="none"
    ... )
    >>> alone = covey.Strategy(
    ...     name="alone", taxonomy=place, settings={"pace": 2}, roles=lambda workers, servers: [],
    ...     description=covey.Description(scored="the mean of the workers' models", rate="unchanged"),
    ... )
    >>> alone.text
    'alone(pace=2)'
    """

    name: str
    taxonomy: Taxonomy
    settings: dict[str, Any]
    roles: Callable[[int, int], list[Role]]
    description: Description
    servers: ServerPlan = ServerPlan()
    terms: TaskTerms = TaskTerms()
    leaves_behind: bool = False
    composition: Composition = Composition()
    on_loss: OnLoss = "restart"
    rigid: str = ""
    ranges: bool = False
    lease_always: bool = False

    def replicas(self, workers: int) -> int:
        """How many copies of the model this many workers hold: each has its share of the data."""
        mesh = self.composition.mesh
        return workers // (mesh.stages * mesh.tensors) if mesh else workers

    def check_clip(self, servers: int) -> None:
        """Refuse a task's `clip_norm`, or a loop's `member.clip`, that no role could keep to."""
        if self.composition.mesh and self.terms.clips != "each gradient":
            raise PlanError(
                f"{self.name} clips where gradients meet, and no worker has the whole gradient of a divided model: use "
                "a strategy that clips each worker's own, such as ssp or local_sgd, or omit clipping"
            )
        if self.terms.clips == "never":
            raise PlanError(f"{self.name} uses a line search and cannot clip gradients: omit clipping")
        if self.terms.clips == "each update of one server" and servers > 1:
            raise PlanError(
                f"{self.name} with {servers} servers cannot clip: an update may hold other gradients on each server, "
                "so that no whole gradient has the norm; use 1 server, or bsp"
            )

    def layout(self, workers: int, servers: int | None, replicas: int = 1) -> list[Role]:
        """The roles for this many workers and servers (the strategy's own number when None), each with its copies."""
        if workers < 1:
            raise PlanError(f"{option('workers', workers)}: at least 1 is needed")
        if servers is not None and servers != self.servers.count and not self.servers.count:
            raise PlanError(f"{self.name} has no servers: omit {option('servers')}, or use bsp, ssp or asynchronous")
        if servers is not None and servers != self.servers.count and self.servers.fixed:
            raise PlanError(
                f"{option('servers', servers)}: '{self.text}' already says that there are {self.servers.count}"
            )
        if servers is not None and servers < 1 <= self.servers.count:
            raise PlanError(f"{option('servers', servers)}: {self.name} needs at least 1")
        roles = self.roles(workers, self.servers.count if servers is None else servers)
        return with_copies(roles, replicas) if replicas > 1 else roles

    @property
    def text(self) -> str:
        """The SPEC of this strategy, with every setting it was given or took by default."""
        settings = ", ".join(f"{key}={_short(value)}" for key, value in self.settings.items() if value is not None)
        return self.name + (f"({settings})" if settings else "") + str(self.composition)

    @property
    def lockstep(self) -> bool:
        """Whether workers wait for one another, so that they must stop at a common step."""
        waits = self.taxonomy.scheduling in ("synchronous", "bounded") and not self.leaves_behind
        return waits or self.composition.mesh is not None  # the stages of a replica wait for one another

    @property
    def in_step(self) -> bool:
        """Whether workers wait for each other's steps, so that all of them must take equally many."""
        return self.taxonomy.scheduling == "synchronous" and not self.leaves_behind


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
