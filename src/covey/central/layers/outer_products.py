"""Project Adam's pushes: inputs and errors of fully connected layers instead of gradients, where they are fewer bytes.

On K samples the gradient of an M x N weight is the product of its output's gradient and its input. A worker sends both,
K (M + N) numbers in the place of M N, and the servers multiply: a server that has some rows of the weight gets the
errors of these outputs alone. All other gradients travel as they are (Chilimbi et al. 2014).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from covey.central.layers.poseidon import FactorLayer, Uses, layers_of, watched
from covey.central.server.client import Servers, catch_up
from covey.central.server.parameter_server import Unheld, parameter_server, share
from covey.central.server.shard import Push, Shard, ShardPolicy
from covey.errors import WireError
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.model.slots import TensorSlot
from covey.program import Node
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import Role, Strategy
from covey.synchronization import Each, Open, Rule
from covey.vector import Piece, Vector, ranges


class Outer(Push):
    """A push in which weights, by their places in the layout, come as what went into a layer and its errors.

    `grad` has what is left of the rest of the server's piece, and then two matrices for each range of these weights.
    """

    wire_name = "outer_products.push"

    weights: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HeldRange:
    """What one range of a server's piece has of a weight: from a place in its first row on."""

    part: int  # of the vector that the piece cuts out
    start: int
    stop: int
    rows: tuple[int, int]
    skip: int  # numbers of the first row that belong to somebody else

    @property
    def size(self) -> int:
        return self.stop - self.start

    def room(self, samples: int, width: int, like: Tensor) -> Vector:
        """Where the inputs and errors of this many samples fit in."""
        first, last = self.rows
        return Vector(like.new_empty(samples, many) for many in (width, last - first))

    def product(self, inputs: Tensor, errors: Tensor) -> Tensor:
        """The gradient of this range."""
        numbers = errors.t().mm(inputs).reshape(-1)
        return numbers[self.skip : self.skip + self.size]


def held(slot: TensorSlot, piece: Piece) -> list[HeldRange]:
    """The ranges of a piece that have something of a weight."""
    found, number, width = list[HeldRange](), 0, slot.shape[1]
    for part, ends in enumerate(piece):
        for first, last in ranges(ends):
            start, stop = max(slot.start, first), min(slot.stop, last)
            if part == slot.part and start < stop:
                rows = (start - slot.start) // width, -(-(stop - slot.start) // width)
                skip = start - slot.start - rows[0] * width
                found.append(HeldRange(number, start - first, stop - first, rows, skip))
            number += 1
    return found


def pays(ranges: Sequence[HeldRange], samples: int, slot: TensorSlot) -> bool:
    """Whether inputs and errors of this many samples are fewer numbers than the gradient of these ranges."""
    factors = sum(samples * (slot.shape[1] + one.rows[1] - one.rows[0]) for one in ranges)
    return factors < sum(one.size for one in ranges)


def rest(cut: Vector, taken: Sequence[HeldRange]) -> Vector:
    """What a piece has beside these ranges."""
    taken = sorted(taken, key=lambda one: (one.part, one.start))
    ends = [
        (0, *(end for one in taken if one.part == number for end in (one.start, one.stop)), part.numel())
        for number, part in enumerate(cut.parts)
    ]
    return Vector((part for part in cut.cut(tuple(ends)).parts if part.numel()), cut.origin)


class OuterServers(Servers):
    """The servers as a worker sees them that may send them factors."""

    def __init__(self, node: Node, replica: Replica, servers: Sequence[Address]) -> None:
        super().__init__(node, replica, servers)
        places = {slot.name: place for place, slot in enumerate(replica.layout.slots)}
        self.layers = {places[layer.slot.name]: layer for layer in layers_of(replica)}
        self.held = [{place: held(layer.slot, piece) for place, layer in self.layers.items()} for piece in self.pieces]

    def paying(self, index: int, samples: int) -> list[int]:
        """The weights of which factors are fewer numbers for this server than its part of the gradient."""
        return [place for place, layer in self.layers.items() if pays(self.held[index][place], samples, layer.slot)]

    def tried(self, samples: int) -> list[FactorLayer]:
        """The layers of which somebody may get factors."""
        wanted = {place for index in range(len(self.servers)) for place in self.paying(index, samples)}
        return [self.layers[place] for place in sorted(wanted)]

    async def push_outer(self, uses: Mapping[int, Uses]) -> None:
        """Give each server its piece of the gradient; where factors pay, and make it to the bit, as factors."""
        replica, samples = self.replica, self.replica.batch.samples
        factors = {place: self.factors(layer, uses) for place, layer in self.layers.items()}
        if replica.updates.clip_norm is not None:
            norm = replica.grad.norm()
            replica.updates.clip_(replica.grad, norm)
            replica.updates.clip_(Vector(found.parts[1] for found in factors.values() if found.parts), norm)
        for index, address in enumerate(self.servers):
            weights = [place for place in self.paying(index, samples) if factors[place].parts]
            parts = [(place, one) for place in weights for one in self.held[index][place]]
            wire = rest(replica.grad.cut(self.pieces[index]), [one for _, one in parts])
            for place, one in parts:
                inputs, errors = factors[place].parts
                wire = wire.join(Vector([inputs, errors[:, slice(*one.rows)].contiguous()]))
            push = Outer(self.node.step, self.versions[index], samples, wire, self.buffers(index), 1, tuple(weights))
            await replica.updates.inform(self.node, address)
            await self.node.send(address, push, loan=True)

    def factors(self, layer: FactorLayer, uses: Mapping[int, Uses]) -> Vector:
        if layer.place not in uses:
            return NOTHING
        grad = layer.slot.view(self.replica.grad)
        return uses[layer.place].factors(layer.room(self.replica.batch.samples, grad), grad)


class OuterShard(Shard):
    """A server that multiplies what comes as factors."""

    def __init__(
        self, node: Node, replica: Replica, *, keeping: ShardPolicy, clients: Collection[int], count: int
    ) -> None:
        super().__init__(node, replica, keeping=keeping, clients=clients, count=count)
        self.hears[Outer] = self.take

    def fresh(self, push: Push) -> Vector:
        """The gradient of this server's piece."""
        if not isinstance(push, Outer):
            return push.grad
        slots, grad = self.replica.layout.slots, self.params.map(torch.empty_like)
        weights = [slots[place] for place in push.weights if 0 <= place < len(slots)]
        found = [(slot, one) for slot in weights for one in held(slot, self.replica.trained)]
        plain = rest(grad, [one for _, one in found])
        dense, factors = push.grad.parts[: len(plain.parts)], push.grad.parts[len(plain.parts) :]
        if len(factors) != 2 * len(found):
            raise WireError(f"{push.sender} sent {len(factors)} factors, which do not make {len(found)} gradients")
        plain.copy_(Vector(dense, push.grad.origin))
        for (slot, one), *pair in zip(found, factors[::2], factors[1::2], strict=True):
            into = grad.parts[one.part]
            room = one.room(push.samples, slot.shape[1], into)
            room.copy_(Vector(pair, push.grad.origin))  # which refuses what does not fit
            into[one.start : one.stop] = one.product(*room.parts)
        return grad


async def worker(node: Node, replica: Replica, *, servers: Sequence[Address]) -> None:
    """Pull, differentiate, push."""
    store = OuterServers(node, replica, servers)
    while node.training():
        await store.pull()
        if not await catch_up(node, replica, store.over):
            break
        layers = store.tried(replica.batch_source.samples(node.rank, node.step))
        if not layers:
            await store.push(await replica.gradient(node))
            continue
        with watched(layers) as uses:
            await replica.gradient(node, clip=False)
        await store.push_outer(uses)
    await store.leave()


UNDIVIDED = "makes gradients of the inputs and errors of its own batch, and experts compute tokens of other members"


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterProducts(Unheld):
    """Asynchronous; of fully connected layers inputs and errors go to the servers where they are fewer bytes."""

    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int) -> Strategy:
        name, each = "outer_products", Each(share("outer_products", self.weight, "none", workers))
        keeping = ShardPolicy(Rule(Open(), each), ending=self.ending(name))

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, servers=addresses(servers))
            tend = partial(serve, OuterShard, clients=range(workers), keeping=keeping)
            return workers_and_servers(workers, work, servers, tend)

        found = parameter_server(name, "asynchronous", keeping, {"weight": each.share, "epoch": self.epoch})
        terms = replace(found.terms, undivided=UNDIVIDED)
        return replace(found, roles=roles, servers=replace(found.servers, grouped=None), terms=terms)
