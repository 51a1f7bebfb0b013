"""Poseidon: the gradient of a fully connected layer travels as its two sufficient factors, where they are smaller.

On K samples the gradient of an M x N weight is the product of its output's gradient (N x K) and its input (K x M).
Every worker gives both to all others, and each adds up the products of all, in rank order: the numbers that a sum would
give, for K (M + N) numbers in the place of M N (Zhang et al. 2017: sufficient factor broadcasting). Either way a layer
is exchanged as soon as backward is through with it, while backward goes on (wait-free backpropagation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.central.scheduled.parameter_gates import is_blind
from covey.exchange.averaging import mean_gradient
from covey.exchange.collectives.sums import scatter_gather
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.model.slots import TensorSlot
from covey.program import Node
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector


class Factors(Message):
    """What went into a layer and the gradient of what came out; nothing where they do not make the layer's gradient.

    `step` numbers the layers of all steps.
    """

    wire_name = "poseidon.factors"

    step: int
    factors: Vector


@dataclass(frozen=True, slots=True)
class FactorLayer:
    """A fully connected layer that could go by factors."""

    place: int
    module: nn.Linear
    slot: TensorSlot  # of its weight

    @property
    def name(self) -> str:
        return self.slot.layer or "the model"

    def pays(self, samples: int) -> bool:
        """Whether factors of this many samples, all workers' together, are no more bytes than a sum.

        Zhang et al. 2017: 2K(P1-1)(M+N) <= 2MN(P1+P2-2)/P2 for P1 workers and P2 servers, counting what a worker
        sends and what it gets. Workers that sum with each other are as many servers, P2 = P1 = n: each of them sends
        2MN(n-1)/n for a sum, and K(n-1)(M+N) as factors. Over all of them, batches of any sizes: (M+N) sum K <= 2MN.
        """
        rows, columns = self.slot.shape
        return (rows + columns) * samples <= 2 * rows * columns

    def room(self, samples: int, like: Tensor) -> Vector:
        """Where the factors of a batch fit in."""
        rows, columns = self.slot.shape
        return Vector(like.new_empty(samples, width) for width in (columns, rows))


def product(factors: Vector) -> Tensor:
    """The gradient that two factors make, computed as autograd does."""
    given, slope = factors.parts
    return slope.t().mm(given)


class Uses:
    """What one layer was used for in a step, as its hooks see it on the compute thread."""

    def __init__(self) -> None:
        self.found: list[tuple[Tensor, Tensor]] = []

    def forward(self, module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        strided = [value for value in given if isinstance(value, Tensor) and value.layout == torch.strided]
        if len(strided) == 1 and isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(partial(self._backward, strided[0]))

    def _backward(self, given: Tensor, slope: Tensor) -> None:
        self.found.append((_copy(given), _copy(slope)))

    def factors(self, room: Vector, grad: Tensor) -> Vector:
        """The factors, if they are the whole truth: their product is the gradient, to the bit.

        It is not where a layer was used twice, where its weight was used by itself (a penalty in the loss), where
        somebody's hooks change what comes out, and where something was computed in another precision.
        """
        if len(self.found) != 1 or not room.like(factors := Vector(self.found[0])):
            return NOTHING
        fits = [part.shape for part in factors.parts] == [part.shape for part in room.parts]
        return factors if fits and torch.equal(product(factors), grad) else NOTHING


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def layers_of(replica: Replica) -> list[FactorLayer]:
    """The layers that could go by factors: plain ones with a trained weight of their own, if one can look at them."""
    if is_blind(replica):
        return []
    modules = list(replica.module.modules())
    owners = Counter(id(weight) for module in modules for weight in module._parameters.values())
    slots = {id(replica.layout.parameters[slot.name]): slot for slot in replica.layout.slots}
    plain = [module for module in modules if type(module) is nn.Linear and id(module.weight) in slots]
    alone = [module for module in plain if owners[id(module.weight)] == 1]
    return [FactorLayer(place, module, slots[id(module.weight)]) for place, module in enumerate(alone)]


@contextmanager
def watched(layers: Sequence[FactorLayer]) -> Iterator[dict[int, Uses]]:
    """See how these layers are used, by their places."""
    with ExitStack() as stack:
        uses = {layer.place: Uses() for layer in layers}
        for layer in layers:
            stack.enter_context(layer.module.register_forward_hook(uses[layer.place].forward))
        yield uses


class LayerExchange:
    """One worker's layers, and what becomes of their gradients."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self.node, self.replica = node, replica
        self.layers = layers_of(replica)
        self.summed: list[int] = node.remember("summed", []).value  # layers whose gradient turned out to be no product

    def tried(self, step: int) -> list[FactorLayer]:
        """The layers that go by factors in this step, unless a worker finds that one of them cannot."""
        present = self.node.present(step)
        samples = self.replica.batch_source.together(present, step)
        able = [layer for layer in self.layers if layer.place not in self.summed]
        return [layer for layer in able if len(present) > 1 and layer.pays(samples)]

    async def during_backward(self, step: int, share: float) -> None:
        """Parameter by parameter, from the last to the first: by factors, or else by a sum of everybody's `share`."""
        tried = self.tried(step)
        by_place = {(layer.slot.part, layer.slot.start): layer for layer in tried}
        with watched(tried) as uses:
            async for piece in self.replica.stream(self.node, 0, otherwise="allreduce"):
                (where,) = [(part, ends[0]) for part, ends in enumerate(piece) if ends[0] < ends[-1]]
                layer = by_place.get(where)
                if not layer or not await self.swap(step, layer, uses[layer.place]):
                    await self.node.sum(self.replica.grad.cut(piece), self.node.members(step), scatter_gather, share)

    async def swap(self, step: int, layer: FactorLayer, uses: Uses) -> bool:
        """Give factors to all, and put the mean of everybody's products in place; whether that worked."""
        mine = self.own(step, layer, uses)
        message = Factors(self.number(step, layer), mine)
        for peer in self.node.members(step):
            if peer != self.node.address:
                await self.node.send(peer, message, loan=True)
        return await self.rebuild(step, layer, mine)

    def own(self, step: int, layer: FactorLayer, uses: Uses) -> Vector:
        grad = layer.slot.view(self.replica.grad)
        return uses.factors(layer.room(self.replica.batch_source.samples(self.node.rank, step), grad), grad)

    async def rebuild(self, step: int, layer: FactorLayer, mine: Vector) -> bool:
        """Add up the products in rank order, as the sum of the rest is: the same bits on all workers.

        All of them hear the same: where one has no factors, everybody sums this layer, now and from now on.
        """
        samples, number = self.replica.batch_source.samples, self.number(step, layer)
        members = self.node.members(step)
        came = {
            peer: mine if peer == self.node.address
            else (await self.node.receive(Factors, sender=peer, step=number)).factors
            for peer in members
        }  # fmt: skip
        if not all(factors.parts for factors in came.values()):
            self.summed.append(layer.place)
            if self.node.address == members[0]:
                await self.node.note(f"no factors of {layer.name}")
            return False
        together = self.replica.batch_source.together(self.node.present(step), step)
        grad = layer.slot.view(self.replica.grad).zero_()
        for peer in members:
            count = samples(peer.rank, step)
            factors = layer.room(count, grad).copy_(came[peer])  # which refuses what does not fit
            grad.add_(product(factors).mul_(count / together))
        return True

    def number(self, step: int, layer: FactorLayer) -> int:
        return step * len(self.layers) + layer.place


async def worker(node: Node, replica: Replica) -> None:
    """Differentiate, exchange each layer meanwhile, step; the replicas stay bit-identical."""
    exchange = LayerExchange(node, replica)
    for step in node.steps():
        present, group = node.present(step), node.members(step)
        together = replica.batch_source.together(present, step)
        if replica.batch_source.chosen is None:  # a loop of one's own may change gradients after backward
            await replica.gradient(node, clip=False)
            replica.progress.begin(together)
            await mean_gradient(node, replica, replica.grad, group, scatter_gather)
        else:
            share = replica.batch_source.samples(node.rank, step) / together
            await exchange.during_backward(step, share)
            replica.progress.begin(together)
            if replica.buffers.parts:  # of which everybody counts the same
                await node.sum(replica.buffers.mul_(1 / (share * len(group))), group, scatter_gather, share)
        replica.updates.clip_(replica.grad)
        replica.update()
        if node.rank == present[0]:
            await node.note("update")
            await node.note("staleness", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Poseidon:
    """All-reduce of each layer while backward runs; fully connected ones go as factors where that is fewer bytes."""

    def strategy(self, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            return [
                Role(Address("worker", rank), worker, trains=True, scored=rank == 0, one_batch=True)
                for rank in range(workers)
            ]

        return Strategy(
            name="poseidon", settings={}, roles=roles,
            description=Description(
                scored="worker 0's model: all are the same", rate="unchanged: the mean over all workers' samples",
                scaling=GROW,
            ),
            terms=TaskTerms(clips="each update"),
            taxonomy=Taxonomy(
                optimization="central", architecture="peers", scheduling="synchronous",
                exchange="sufficient factors / all-reduce", topology="complete",
            ),
        )  # fmt: skip
