"""A binomial tree to one parameter server and back: FireCaffe."""

from __future__ import annotations

from dataclasses import dataclass

from covey.exchange.collectives.sums import broadcast_tree, reduce_tree
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy

SERVER = Address("server", 0)


class Next(Message):
    """Worker 0 has the gradient of another step, or says that there is none: worker 0 has the longest share of all."""

    wire_name = "tree.next"

    step: int
    more: int

    counted = False


def group(node: Node, step: int) -> tuple[Address, ...]:
    """The tree's ranks: the server at its root, then every worker that has this step."""
    return (SERVER, *node.members(step))


async def worker(node: Node, replica: Replica) -> None:
    """Differentiate; the gradient is added on its way up the tree, the new weights come down it."""
    for step in node.steps():
        grad = await replica.gradient(node, clip=False)
        if node.rank == 0:  # all others have the same settings
            await node.send(SERVER, Next(step, 1))  # only now: a loop of the user's own may have ended instead
            await replica.updates.inform(node, SERVER)
        present = node.present(step)
        grad.mul_(replica.batch.samples / replica.batch_source.together(present, step))
        replica.buffers.mul_(1 / len(present))
        await reduce_tree(node, grad.join(replica.buffers), group(node, step))
        await broadcast_tree(node, replica.model, group(node, step))
    if node.rank == 0:
        await node.send(SERVER, Next(node.step, 0))


async def server(node: Node, replica: Replica) -> None:
    """Be the root: step the optimizer once on what comes up, and send the weights down."""
    while (word := await node.receive(Next)).more:
        replica.grad.zero_()
        replica.buffers.zero_()
        await reduce_tree(node, replica.grad.join(replica.buffers), group(node, word.step))
        replica.updates.follow(node, [(Address("worker", 0), word.step)])
        replica.updates.clip_(replica.grad)
        replica.update()
        replica.progress.add(replica.batch_source.together(node.present(word.step), word.step))
        await node.note("update")
        await node.note("staleness", 0)
        await broadcast_tree(node, replica.model, group(node, word.step))


@dataclass(frozen=True, kw_only=True, slots=True)
class FireCaffe:
    """Gradients go up a binomial tree to one server and weights come down it: 2 log2(n+1) transfers a step."""

    def strategy(self, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            return [
                *(Role(Address("worker", rank), worker, trains=True, one_batch=True) for rank in range(workers)),
                Role(SERVER, server, scored=True),
            ]

        return Strategy(
            name="firecaffe", settings={}, roles=roles, servers=ServerPlan(1, fixed=True),
            description=Description(
                scored="the server's parameters", rate="unchanged: the mean over all workers' samples", scaling=GROW,
            ),
            terms=TaskTerms(clips="each update"),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="binomial tree",
                topology="single parameter server",
            ),
        )  # fmt: skip
