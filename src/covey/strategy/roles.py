"""Who runs what: the roles of a run, and the plan that an engine performs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from covey.errors import PlanError
from covey.membership import by_seniority
from covey.message import Address
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec
from covey.names import option
from covey.program import Effect, Node
from covey.vector import Vector


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
        together: Whether its waits for peers end with ViewChanged when one of them is restarted.
        warned: Whether its program hears that its machine departs soon, and says itself when it is ready for that.
        copies: Who else holds what this server holds, itself among them, where `--replicas` asks for copies.

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
    together: bool = False  # a wait for a peer ends with ViewChanged when somebody is restarted
    warned: bool = False  # its program gets a LeaveNotice, and is ready to go when it computes nothing
    copies: tuple[Address, ...] = ()  # who holds what this server holds, itself among them
    part: Callable[[ReplicaSpec], Replica] | None = (
        None  # makes the replica of a role that has only a part of the model
    )
    stage: int = 0  # of a model that is cut into stages
    alias: Address | None = None  # what it is called by those with whom it runs the strategy, if not by its address
    prepare: Callable[[Vector], None] | None = None  # what takes long the first time, for weights such as these

    def check(self, replica: Replica) -> None:
        """Refuse a model that asks for what this role's program cannot give."""
        if replica.compute.norms:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an engine performs: roles, each worker's budget of steps, and how they are held together."""

    roles: tuple[Role, ...]
    limits: tuple[int | None, ...]
    lockstep: bool
    in_step: bool = False  # a worker whose loop ends earlier than the others' would keep them waiting
    seed: int = 0
    window: int = 64 << 20
    elastic: bool = False  # a lost worker is restarted
    least: int = 0  # workers, where they come and go; 0: their number is fixed
    replicas: int = 1  # copies of what each server holds
    resumed: bool = False  # such a run goes on from a checkpoint, of which workers take nothing
    traced: bool = False  # every role writes down what it does
    profiled: bool = False  # and what torch does
    allowance: float | None = None  # bytes per second that may leave on each link
    sites: Mapping[str, int] = field(default_factory=dict)  # where a cluster has placed the roles; none: on one machine

    def check(self, role: Role, replica: Replica) -> None:
        """Refuse a model that the role's program, or a run in which workers are restarted, cannot have."""
        role.check(replica)
        if self.elastic and replica.compute.norms:
            raise PlanError(
                f"{option('on_failure', 'continue')}: layers of nn.SyncBatchNorm wait for all workers in the middle of "
                f"a step, which a lost one cannot repeat alone; use {option('on_failure', 'restart')}, or nn.BatchNorm"
            )

    def steps_of(self, rank: int) -> int | None:
        """After how many steps a worker ends; None: when no batch is left, or when it is told to."""
        return None if self.least else self.limits[rank]

    def role(self, address: Address) -> Role:
        return next(role for role in self.roles if role.address == address)

    def shortened(self, steps: int) -> Plan:
        """The same, in which nobody does more than this many steps."""
        limits = tuple(steps if limit is None else min(limit, steps) for limit in self.limits)
        return replace(self, limits=limits, resumed=False)

    def shown(self) -> list[Role]:
        """Whose snapshots make the scored model; where no scored role computes, the first worker's counters do too."""
        scored = [role for role in self.roles if role.scored]
        if any(role.trains for role in scored):
            return scored
        first = {role.stage: role for role in reversed(self.roles) if role.trains}
        return [*scored, *(first[stage] for stage in sorted(first))]

    @property
    def copies(self) -> dict[Address, tuple[Address, ...]]:
        """Who holds what each server holds, where there are copies."""
        return {role.address: role.copies for role in self.roles if role.copies}

    def away(self, address: Address) -> list[Address]:
        """The roles that do not live on this one's machine."""
        home = self.role(address).home
        return [role.address for role in self.roles if role.home != home]

    def homes(self) -> dict[Address, Address]:
        """On whose machine each role lives."""
        return {role.address: role.home for role in self.roles}


def with_copies(roles: Sequence[Role], replicas: int) -> list[Role]:
    """The roles, and for every server the backups that hold the same."""
    servers = [role.address for role in roles if role.address.role == "server"]
    chains = {who: copies_of(who.rank, len(servers), replicas) for who in servers}
    leading = [replace(role, copies=chains.get(role.address, ())) for role in roles]
    backups = [replace(role, address=who, host=None) for role in leading for who in role.copies[1:]]
    return [*leading, *sorted(backups, key=lambda role: role.address.rank)]


def leader(role: Role, there: Collection[Address], incarnations: Mapping[Address, int]) -> Address:
    """The role itself; of the copies of a server, the one that has been there longest."""
    copies = [who for who in role.copies if who in there]
    return by_seniority(copies, incarnations)[0] if copies else role.address


def copies_of(index: int, servers: int, replicas: int) -> tuple[Address, ...]:
    """Who holds the piece of this number: its server, and its backups."""
    return Address("server", index), *(Address("backup", index + place * servers) for place in range(replicas - 1))


def workers(count: int) -> tuple[Address, ...]:
    """The addresses of all workers, in rank order."""
    return tuple(Address("worker", rank) for rank in range(count))


def shown_by_any(roles: list[Role], least: int) -> list[Role]:
    """The roles; where workers without a server come and go, any of them may be the one whose model is scored.

    Whoever comes or goes then ends what the others wait for.
    """
    alone = least and all(role.trains for role in roles)
    return [replace(role, scored=True, together=True) if alone else role for role in roles]
