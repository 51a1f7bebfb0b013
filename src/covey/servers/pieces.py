"""Servers that divide the parameters: each holds one piece, decodes what comes for it, and gives it out."""

from __future__ import annotations

from collections.abc import Sequence

from covey.exchange.codec import Codec, dense, seed
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.clipping import clip_part
from covey.servers.pulls import Given, pulls
from covey.servers.server_program import ServerProgram
from covey.vector import Vector, mean


class PieceServer(ServerProgram):
    """One of the `servers` that divide the parameters; a proxy, which is none of them, has all.

    `together`: all clients are given the same versions.
    """

    def __init__(
        self, node: Node, replica: Replica, servers: Sequence[Address], codec: Codec = dense, *,
        together: bool = False, clients: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(node, replica, clients)
        self.servers, self.first = servers, node.address in servers[:1]
        if servers:
            replica.keep(replica.pieces(len(servers))[servers.index(node.address)], buffers=self.first)
        self.params, form = replica.flat.cut(replica.trained), replica.form(replica.trained)
        self.coder = codec.made(form, seed(node))
        self.pulls = pulls(node, form, codec, together)

    def give(self, rank: int, version: int) -> Given:
        """The parameters as they travel to a client."""
        return self.pulls.give(rank, self.params, version)

    async def mean(self, grads: Sequence[Vector], weights: Sequence[float], step: int) -> Vector:
        """The mean gradient of an update, added in the order given, and clipped by the norm over all servers."""
        device = next((part.device for part in self.params.parts), None)
        grad = mean(grads, weights, device)  # on the GPU where the server has one: pushes lie in pinned memory
        await clip_part(self.node, self.replica, grad, step, self.servers)
        return grad


def epoch_of(replica: Replica, workers: int) -> list[list[int]]:
    """The samples of each batch of every worker's epoch."""
    batch_source = replica.batch_source
    return [[batch_source.samples(rank, step) for step in range(batch_source.steps(rank))] for rank in range(workers)]
