"""Servers and workers that exchange slices, the first layer's first: p3, tictac, bytescheduler and staggered.

A gradient leaves as soon as backward has made it, a server updates a slice as soon as all have pushed it, and the next
forward begins with the first layer's update, while others still travel. The numbers are bsp's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from covey.central.scheduled.forward_flow import Forward
from covey.central.scheduled.interleaved import interleaved
from covey.central.scheduled.parameter_gates import Gated
from covey.central.scheduled.pushing import Pushing, posting
from covey.central.scheduled.slice_server import SliceServer
from covey.central.scheduled.slices import (
    Order,
    SliceOrder,
    Statistics,
    Updated,
    form,
    of_slot,
    slices,
    span,
    view,
)
from covey.central.scheduled.tac import tac
from covey.central.scheduled.tuning import Tuning
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense, seed
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.pulls import Given, Landing
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy


class SlicedCopy:
    """A worker's parameters, slice by slice: which update each of them has."""

    def __init__(self, node: Node, replica: Replica, count: int, manner: SliceOrder, codec: Codec) -> None:
        self.node, self.replica = node, replica
        self.slices = slices(replica, manner, count)
        forms = [form(replica, where) for where in self.slices]
        self.coders = [codec.carrying().made(one, seed(node, place)) for place, one in enumerate(forms)]
        self.back = Landing(node, forms, codec)
        self.of_slot = of_slot(self.slices)
        self.have = node.remember("have", [-1] * len(self.slices)).value  # the step whose update each slice holds
        self.done = node.remember("done", [-1]).value  # the last step whose gradient was made

    def fresh(self, slot: int) -> bool:
        return all(self.have[place] >= self.done[0] for place in self.of_slot[slot])

    async def freshen(self, slots: Sequence[int]) -> None:
        """Wait for the last update of these parameters; forward, which uses none of what comes, stands still."""
        while not all(map(self.fresh, slots)):
            self.install(await self.node.receive(Updated))

    async def seconds_of_a_byte(self) -> float:
        """Wait for the last update of all parameters; how long a byte takes, by those that come after another."""
        first: float | None = None
        last, size = 0.0, 0
        while not all(map(self.fresh, range(len(self.of_slot)))):
            message = await self.node.receive(Updated)
            last = await self.node.now()
            self.install(message)
            if first is None:
                first = last
            else:
                size += message.params.nbytes
        return (last - first) / size if first is not None and size else 0.0

    def install(self, message: Updated) -> None:
        assert message.step <= self.done[0], "an update before this worker's gradient"
        numbers = view(self.replica.flat, span(self.slices, message.place, message.count))
        self.back.land(message.place, numbers, Given(message.params, message.whole))
        for place in range(message.place, message.place + message.count):
            self.have[place] = message.step

    def install_arrived(self) -> None:
        while message := self.node.receive_nowait(Updated):
            self.install(message)


async def worker(node: Node, replica: Replica, *, count: int, manner: SliceOrder, codec: Codec) -> None:
    """Differentiate as soon as the first layer is fresh, and push gradients while that goes on."""
    servers, everything = addresses(count), range(len(replica.layout.slots))
    copy = SlicedCopy(node, replica, count, manner, codec)
    gated = Gated(node, replica, copy.fresh, copy.freshen)
    pushing = Pushing(node, replica, servers, copy.slices, manner, copy.coders)
    tuning = Tuning(node, manner.grid(replica), manner.smallest(replica))
    await node.spawn(pushing.run())

    timing, seen = manner.timed and not gated.blind, None
    for step in node.steps():
        pushing.setting = await tuning.setting(step)
        copy.install_arrived()
        if seen and seen.end is not None:
            gated.order = await by_times(copy, seen, gated.order)
            timing, seen = False, None
        if gated.blind or timing:
            await copy.freshen(everything)
        seen = Forward(replica) if timing else None
        batch = await gated.compute(step, posting(node, gated.urgency, step), seen)
        copy.done[0] = step
        await replica.report(node, batch)
        if replica.buffers.parts:
            await node.send(servers[0], Statistics(step, replica.buffers))
    await copy.freshen(everything)
    await node.broadcast(servers, Goodbye())


async def by_times(copy: SlicedCopy, seen: Forward, used: Iterable[int]) -> dict[int, int]:
    """The places of the parameters in TAC's order, for a forward as it was seen and updates as they come."""
    byte = await copy.seconds_of_a_byte()
    sizes = {slot: sum(view(copy.replica.flat, copy.slices[at]).nbytes for at in copy.of_slot[slot]) for slot in used}
    order = tac(seen.ops(), {slot: byte * size for slot, size in sizes.items()})
    return {slot: place for place, slot in enumerate(order)}


def check(name: str, settings: dict[str, object]) -> None:
    for key, value in settings.items():
        if isinstance(value, int) and value < 0:
            raise PlanError(f"{name}({key}={value}): must be 0 or more; 0 sets no limit")


def scheduled(name: str, manner: SliceOrder, settings: dict[str, object], codec: Codec) -> Strategy:
    """The family: slices in any manner; a codec sees each slice by itself, and one that looks at shapes whole ones."""
    manner = replace(manner, most=0) if codec.traits.shapes else manner
    check(name, settings)

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(worker, count=servers, manner=manner, codec=codec)
        tend = partial(serve, SliceServer, manner=manner, codec=codec)
        return workers_and_servers(workers, work, servers, tend, one_batch=True)

    return Strategy(
        name=name, settings=settings, roles=roles, servers=ServerPlan(1),
        description=Description(
            scored="the servers' parameters", rate="unchanged: the mean over all workers' samples", scaling=GROW,
        ),
        terms=TaskTerms(clips="each update"),
        taxonomy=Taxonomy(
            optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
            topology="parameter servers",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class P3:
    """Parameters in slices, those of the first layers first both ways; forward waits for each layer by itself."""

    slice: int = 50_000  # numbers (Jayarajan et al. 2019); 0: parameters stay whole
    order: Order = "layers"  # fifo: as gradients are made; pulls: layers first only on the way back

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return scheduled("p3", SliceOrder(self.order, self.slice), {"slice": self.slice, "order": self.order}, codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class TicTac:
    """Whole parameters come back in the order in which forward uses them (TIC); gradients leave as they are made."""

    order: Literal["tic", "tac"] = "tic"  # tac: by measured times of layers and transfers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        timed = self.order == "tac"
        return scheduled("tictac", SliceOrder("pulls", timed=timed), {"order": "tac"} if timed else {}, codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteScheduler:
    """Partitions of `partition` bytes, the first layers first; no more than `credit` bytes are on their way."""

    partition: int | Literal["auto"] = 4_096_000  # bytes; auto: measured
    credit: int | Literal["auto"] = 16_384_000  # bytes of a worker that servers have not confirmed; auto: measured
    exchange: Literal["servers", "allreduce"] = "servers"  # allreduce: workers sum partitions, and there is no server

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        settings: dict[str, object] = {"partition": self.partition, "credit": self.credit}
        most, credit = 0 if self.partition == "auto" else self.partition, None if self.credit == "auto" else self.credit
        manner = SliceOrder(most=most, in_bytes=True, credit=credit, sized=self.partition == "auto")
        if credit is None and self.partition == 0:
            raise PlanError(
                "bytescheduler(partition=0, credit=auto): credits are multiples of a partition; set partition to a "
                "size or to auto"
            )
        if manner.sized:
            codec.refuse(
                "bytescheduler(partition=auto)", "the codec needs slices of one size; set partition to a size"
            )  # fmt: skip
        if self.exchange == "servers":
            return scheduled("bytescheduler", manner, settings, codec)
        check("bytescheduler", settings)
        codec.refuse(
            "bytescheduler(exchange=allreduce)", "it sums uncompressed values; omit the codec, or use exchange=servers"
        )
        return interleaved("bytescheduler", manner, {**settings, "exchange": self.exchange})


@dataclass(frozen=True, kw_only=True, slots=True)
class Staggered:
    """Workers take turns, a parameter at a time: at most `flows` push to a server at once, and none slows another."""

    flows: int = 1

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.flows < 1:
            raise PlanError(f"staggered(flows={self.flows}): at least 1 worker must be allowed to push")
        return scheduled("staggered", SliceOrder("fifo", flows=self.flows), {"flows": self.flows}, codec)
