"""Downpour: workers push and fetch in separate periods and step locally in between; shards apply each push at once.

There is no order between shards: a worker may see one at version 10 and another at 12 (Dean et al. 2012).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch

from covey.central.server.leased_downpour import LeasedAccrued, leased_worker
from covey.central.server.store import Accrued, Fetched, FetchParameters, Store
from covey.errors import PlanError
from covey.exchange import filters
from covey.exchange.codec import Codec, dense
from covey.exchange.filters import Filter, KeyCache
from covey.message import Address
from covey.model.optimizers import active_groups
from covey.model.replica import Replica
from covey.observe.tally import GradientAge
from covey.program import Node
from covey.servers.dealing import DealingServer
from covey.servers.pieces import PieceServer
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.servers.standing import UNKNOWN, complete, remembered
from covey.strategy import KEEP, Description, Role, ServerPlan, Strategy, Taxonomy
from covey.vector import Vector


async def worker(
    node: Node, replica: Replica, *, count: int, push: int, fetch: int, sieve: Filter, codec: Codec
) -> None:  # fmt: skip
    """Fetch every `fetch` steps, push the sum of the gradients every `push` steps, move locally at every step."""
    store = Store(node, replica, count, codec, sieve)
    gathered = node.remember("gathered", replica.grad.map(torch.zeros_like)).value
    since = node.remember("since", [0, 0]).value  # the last push: gradients and samples
    for step in node.steps() if await store.rejoin(Fetched) else ():
        if step % fetch == 0 or not store.fetched:
            await store.fetch()
        gathered.add_(await replica.gradient(node))
        since[0], since[1] = since[0] + 1, since[1] + replica.batch.samples
        if step % push == 0:  # step 0 pushes too: the first push holds one gradient (Dean et al. 2012, Algorithm 7.1)
            await store.push(gathered, since[1], since[0])
            since[:] = [0, 0]
        replica.apply(replica.grad)
    if since[0]:  # what was gathered since the last push counts too
        await store.push(gathered, since[1], since[0], step=node.step - 1)
        since[:] = [0, 0]
    await complete(node, store.servers)
    await store.leave()


class DownpourShard(PieceServer):
    """A shard's work: answer every fetch at once, step with every push when it comes.

    The first `warm` updates are worker 0's alone: the others get their first parameters after those.
    """

    def __init__(
        self, node: Node, replica: Replica, *, count: int, step: ShardStep, codec: Codec, warm: int = 0
    ) -> None:
        super().__init__(node, replica, addresses(count), codec)
        self.warm, self.parked, self.step = warm, list[FetchParameters](), step
        self.hears = {FetchParameters: self.park, Accrued: self.take}
        self.version = node.remember("version", [0]).value
        self.squares = node.remember("squares", self.params.map(torch.zeros_like)).value if step.adagrad else None
        self.caches = [KeyCache() for _ in range(node.workers)]
        # the last step that each worker has pushed, where lost ones are replaced; a rigid run has not kept it
        lacking = dict.fromkeys(range(node.workers), UNKNOWN - 1) if self.version[0] else {}
        self.accepted = remembered(node, "accepted", lacking).value
        if step.adagrad:
            keys = {key for group in replica.optimizer.param_groups for key in group} - {"params", "lr"}
            replica.updates.pin(
                keys | ({"lr"} if step.gamma is not None else set()),
                "downpour's servers step with Adagrad, which uses only lr (and not even lr if gamma is given): use "
                "downpour(server=task)",
            )

    async def park(self, fetch: FetchParameters) -> None:
        self.parked.append(fetch)

    def next_step(self, rank: int) -> int:
        return self.accepted.get(rank, -1) + 1

    def forget_requests(self, rank: int) -> None:
        self.parked[:] = [fetch for fetch in self.parked if fetch.sender.rank != rank]

    async def settle(self) -> None:
        alone = self.version[0] < self.warm and self.has_first
        for fetch in [fetch for fetch in self.parked if fetch.sender.rank == 0 or not alone]:
            self.parked.remove(fetch)
            given = self.give(fetch.sender.rank, self.version[0])
            await self.node.send(fetch.sender, Fetched(fetch.step, self.version[0], *given))
            await self.answered(fetch)

    @property
    def has_first(self) -> bool:
        """Whether worker 0 trains."""
        return Address("worker", 0) not in self.gone

    async def answered(self, fetch: FetchParameters) -> None:
        """What a kind of shard does besides, when parameters have gone out."""

    async def take(self, push: Accrued) -> None:
        keys = self.keys_of(push)
        if self.node.incarnation.elastic:
            if push.step < self.next_step(push.sender.rank):
                return  # of a worker that was restarted: another server lacked it
            self.accepted[push.sender.rank] = push.step
        await self.add(push, keys)

    def keys_of(self, push: Accrued) -> Vector:
        """Those of its values; what is not added is read, too, as later signatures may be of its keys."""
        return self.caches[push.sender.rank].restore(push.signature, push.keys) if push.signature else push.keys

    async def add(self, push: Accrued, keys: Vector) -> None:
        """One step with what was pushed."""
        grad = filters.scatter(keys, push.values, self.params) if keys.parts else self.coder.decode(push.values)
        self.keep_buffers([push.buffers])
        await self.note_update([GradientAge(self.version[0] - push.version, push.sender)])
        self.replica.updates.follow(self.node, [(push.sender, push.step)])
        self.step.apply(self.replica, self.params, grad, self.squares, push.gradients)
        self.version[0] += 1
        self.replica.progress.add(push.samples)


class LeasedDownpour(DealingServer, DownpourShard):
    """A shard whose workers come and go."""

    def __init__(self, node: Node, replica: Replica, **settings: Any) -> None:
        self.next_steps = dict.fromkeys(range(node.workers), 0)
        super().__init__(node, replica, **settings)
        self.hears |= {LeasedAccrued: self.take}

    @property
    def taking_part(self) -> dict[int, int]:
        return self.next_steps

    @property
    def has_first(self) -> bool:
        return 0 in self.next_steps

    async def take(self, push: Accrued) -> None:
        assert isinstance(push, LeasedAccrued)
        self.ticked(push.sender.rank, push.step, push.counters)
        keys = self.keys_of(push)
        # that of a worker that is gone may come after another one has pushed its batches; they are given out again
        if any(lease in self.received for lease in push.leases):
            return
        for lease in push.leases:
            self.received.add(lease)
        await self.add(push, keys)


def any_shard(node: Node, replica: Replica, **settings: Any) -> DownpourShard:
    """The program of a shard: LeasedDownpour where workers come and go."""
    return (LeasedDownpour if node.incarnation.leased else DownpourShard)(node, replica, **settings)


async def any_worker(node: Node, replica: Replica, **settings: Any) -> None:
    """The program of a worker, in a run of a fixed number of workers or in one to which they come and go."""
    await (leased_worker if node.incarnation.leased else worker)(node, replica, **settings)


@dataclass(frozen=True, slots=True)
class ShardStep:
    """How a shard steps: the task's optimizer with a share of its rate, or Adagrad; then the l1 penalty, if any."""

    share: float
    adagrad: bool = False
    gamma: float | None = None
    l1: float = 0.0

    def apply(
        self, replica: Replica, params: Vector, grad: Vector, squares: Vector | None, gradients: int = 1
    ) -> None:  # fmt: skip
        """One step with the sum of this many gradients."""
        rate = replica.optimizer.param_groups[0]["lr"] * replica.progress.rate
        rates = rates_of(replica)
        if squares is None:
            replica.apply(grad, self.share)
        else:  # per number: h += x^2, w -= gamma x / sqrt(h)
            gamma = rate if self.gamma is None else self.gamma * replica.progress.rate
            if rates:
                grad = Vector(x * r.ne(0) for x, r in zip(grad.parts, rates.parts, strict=True))
            for place, (w, x, h) in enumerate(zip(params.parts, grad.parts, squares.parts, strict=True)):
                root = h.addcmul_(x, x).sqrt().add_(1e-10)
                if rates and self.gamma is None:
                    w.addcdiv_(x * rates.parts[place], root, value=-1)
                else:
                    w.addcdiv_(x, root, value=-gamma)
        if self.l1:  # the proximal step of gradient descent, once for each gradient: towards zero, and not across
            for place, w in enumerate(params.parts):
                if rates:
                    limit = rates.parts[place] * (self.l1 * self.share * gradients)
                    w.copy_(w.sign() * (w.abs() - limit).clamp_min(0))
                else:
                    w.copy_(torch.nn.functional.softshrink(w, self.l1 * rate * self.share * gradients))


def rates_of(replica: Replica) -> Vector | None:
    """The rate of every number of a shard; None where all of them have the first group's."""
    optimizer = replica.optimizer
    active = [id(group) for group in active_groups(optimizer)]
    rates = [group["lr"] * replica.progress.rate if id(group) in active else 0.0 for group in optimizer.param_groups]
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
    if len(set(rates)) == 1 and held == replica.flat.cut(replica.trained).numel:
        return None
    found = replica.flat.map(torch.zeros_like)
    for rate, group in zip(rates, optimizer.param_groups, strict=True):
        for p in group["params"]:
            for part, into in zip(replica.flat.parts, found.parts, strict=True):
                start = (p.data_ptr() - part.data_ptr()) // part.element_size()
                if p.requires_grad and p.dtype == part.dtype and 0 <= start < part.numel():
                    into[start : start + p.numel()] = rate
    return found.cut(replica.trained)


@dataclass(frozen=True, kw_only=True, slots=True)
class Downpour:
    """Downpour SGD: own periods for push and fetch, local moves between, Adagrad on the shards (Dean et al. 2012)."""

    push: int = 1
    fetch: int = 1
    server: Literal["adagrad", "task"] = "adagrad"  # whose rule the shards step by
    gamma: float | None = None  # Adagrad's rate; the task's learning rate
    warm: int = 0  # updates of one worker alone before the others begin
    filter: filters.Kind = "none"
    threshold: float = 0.001  # significance: what a number must have gathered
    l1: float = 0.0  # kkt: the penalty, applied by the servers
    slack: float = 0.0  # kkt: send this much before the penalty would let go
    skip: float = 0.5  # random_skip: the probability

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        self.check()
        if self.filter != "none":
            codec.refuse(f"downpour(filter={self.filter})", "both select what is sent; use one of them")
        step = ShardStep(1 / workers, self.server == "adagrad", self.gamma, self.l1)

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(any_worker, count=servers, push=self.push, fetch=self.fetch, sieve=self.sieve(), codec=codec)
            tend = partial(serve, any_shard, step=step, warm=self.warm, codec=codec)
            return workers_and_servers(workers, work, servers, tend)

        adagrad = "Adagrad with the task's rate, or gamma: no share, as it scales itself"
        return Strategy(
            name="downpour", settings=asdict(self) | {"warm": self.warm or None}, roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the servers' parameters",
                rate=adagrad if self.server == "adagrad" else "each push counts 1/workers",
                scaling="gamma may be 10 times a good fixed rate, for any n" if self.server == "adagrad" else KEEP,
            ),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="asynchronous", exchange="ad hoc",
                topology="parameter servers",
            ),
        )  # fmt: skip

    def sieve(self) -> Filter:
        return {
            "none": filters.everything, "significance": filters.significance(self.threshold),
            "kkt": filters.kkt(self.l1, self.slack), "random_skip": filters.random_skip(self.skip),
            "key_caching": filters.key_caching,
        }[self.filter]  # fmt: skip

    def check(self) -> None:
        for name in ("push", "fetch"):
            if getattr(self, name) < 1:
                raise PlanError(f"downpour({name}={getattr(self, name)}): every 1 step or more")
        if self.gamma is not None and not self.gamma > 0:
            raise PlanError(f"downpour(gamma={self.gamma:g}): Adagrad's rate is more than 0; omit it for the task's")
        if self.warm < 0:
            raise PlanError(f"downpour(warm={self.warm}): 0 updates or more of worker 0 alone")
        if self.threshold < 0 or not 0 <= self.skip < 1:
            raise PlanError("downpour: threshold must be 0 or more, and skip at least 0 and less than 1")
        if (self.l1 > 0) != (self.filter == "kkt") or not 0 <= self.slack <= self.l1:
            raise PlanError("downpour: filter=kkt and a penalty l1 > 0 go together, with a slack of at most l1")
        if self.l1 and self.server == "adagrad":
            raise PlanError("downpour(filter=kkt): the l1 step needs one rate for all numbers: add server=task")
