"""Two strategies and a codec of one's own: covey run examples/digits.py --plugin THIS_FILE --strategy median."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import covey
from covey import Address, Codec, Coder, Message, Node, Replica, Role, Strategy, Taxonomy, Vector, register

SERVER = Address("server", 0)


class Gradient(Message):
    wire_name = "median.gradient"
    step: int
    samples: int
    grad: Vector
    buffers: Vector


class Weights(Message):
    wire_name = "median.weights"
    model: Vector


class Goodbye(Message):
    wire_name = "median.goodbye"


async def push(node: Node, replica: Replica) -> None:
    """Send each gradient to the server, and go on with the weights that it answers."""
    for step in node.steps():
        grad = await replica.gradient(node)
        gradient = Gradient(step, replica.batch.samples, grad, replica.buffers)
        replica.model.copy_((await node.ask(SERVER, gradient, Weights)).model)
    await node.send(SERVER, Goodbye())


async def serve(node: Node, replica: Replica) -> None:
    """Step on the median of the workers' gradients, number by number: one worker that is wrong moves nothing."""
    replica.keep(replica.pieces(1)[0], buffers=True)
    left = node.remember("left", list(range(node.workers)))
    while left.value:
        came = [await node.receive_any(Gradient, Goodbye, sender=Address("worker", rank)) for rank in left.value]
        grads = [message for message in came if isinstance(message, Gradient)]
        left.value = [message.sender.rank for message in grads]
        if grads:
            replica.progress.add(sum(message.samples for message in grads))
            replica.buffers.copy_(grads[0].buffers)
            replica.apply(median([message.grad for message in grads]))
            await node.note("update")
        await node.broadcast([message.sender for message in grads], Weights(replica.model))


def median(vectors: Sequence[Vector]) -> Vector:
    return Vector(torch.stack(parts).median(0).values for parts in zip(*(v.parts for v in vectors), strict=True))


def both_ways(run: Any) -> dict[str, int]:
    """The gradient to the server and the weights back, every step: bytes on each link."""
    up = {f"worker {rank}->server 0": run.steps * run.model for rank in run.ranks}
    return up | {f"server 0->worker {rank}": run.steps * run.model for rank in run.ranks}


@register(
    "median", paper="Yin et al. 2018", use="Workers that may send nonsense.",
    traffic=covey.TrafficFormula("2", both_ways),
)  # fmt: skip
@dataclass(frozen=True, kw_only=True)
class Median:
    """Every step waits for every worker, and takes the median of their gradients, number by number."""

    def strategy(self, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            training = [Role(Address("worker", rank), push, trains=True) for rank in range(workers)]
            return [*training, Role(SERVER, serve, scored=True)]

        place = Taxonomy(
            optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
            topology="parameter server",
        )  # fmt: skip
        return Strategy(
            name="median", taxonomy=place, settings={}, roles=roles, servers=covey.ServerPlan(1, fixed=True),
            description=covey.Description(scored="the server's parameters", rate="unchanged: the median gradient"),
        )  # fmt: skip


class Shifted(Message):
    wire_name = "shifting.model"
    step: int
    model: Vector


async def shift(node: Node, replica: Replica, *, weight: float) -> None:
    """Step alone, then move towards the model of a worker that stands one place further away each time."""
    for step in node.steps():
        await replica.descend(node)
        await node.note("update")
        group, count = node.members(step), len(node.members(step))
        if count > 1:
            mine, far = group.index(node.address), 1 + step % (count - 1)
            await node.send(group[(mine + far) % count], Shifted(step, replica.model))
            came = await node.receive(Shifted, sender=group[(mine - far) % count], step=step)
            replica.model.lerp_(came.model, weight)


@register("shifting")
@dataclass(frozen=True, kw_only=True)
class Shifting:
    """Each worker averages with one other at every step, with each of them in turn."""

    weight: float = 0.5  # of the other's model

    def strategy(self, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(shift, weight=self.weight)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        place = Taxonomy(
            optimization="decentral", architecture="peers", scheduling="synchronous", exchange="1:1", topology="shifts"
        )
        words = covey.Description(scored="the mean of the workers' models", rate="unchanged: each worker's own")
        return Strategy(
            name="shifting", taxonomy=place, settings={"weight": self.weight}, roles=roles, description=words
        )


def signs(form: Any, seed: int) -> Coder:
    def encode(vector: Vector, memory: Any) -> tuple[Vector, Any]:
        scales = [part.abs().sum() / max(1, part.numel()) for part in vector.parts]
        pairs = zip(vector.parts, scales, strict=True)
        return Vector(t for part, scale in pairs for t in (part.sign().to(torch.int8), scale.float().view(1))), memory

    def decode(wire: Vector) -> Vector:
        pairs = zip(wire.parts[::2], wire.parts[1::2], form.like.parts, strict=True)
        return Vector(sign.to(like.dtype) * scale.to(like.dtype) for sign, scale, like in pairs)

    return Coder(lambda: None, encode, decode)


@register("scaled_signs")
@dataclass(frozen=True, kw_only=True)
class ScaledSigns:
    """The sign of each number in a byte, and their mean size; what that drops is carried on."""

    def codec(self) -> Codec:
        size = lambda form: form.like.numel + 4 * len(form.like.parts)  # noqa: E731
        return Codec(name="scaled_signs", make=signs, nbytes=size, traits=covey.CodecTraits(feedback="needed"))
