"""Sites: neighbouring workers that step together, so that the site as a whole is one worker of a slow network."""

from __future__ import annotations

from covey.decentral.averaging.local_sgd import average
from covey.decentral.averaging.model_means import ModelMeans
from covey.decentral.averaging.optimizer_state import Momentum
from covey.exchange.averaging import mean_gradient
from covey.exchange.collectives.sums import Group, broadcast_tree, ring
from covey.model.replica import Replica
from covey.program import Node


class WorkerSite:
    """The site of one worker: `size` ranks in a row. The first of those present speaks for it to other sites."""

    def __init__(self, node: Node, size: int) -> None:
        self.node, self.size = node, size

    def home(self, members: Group) -> Group:
        """Those of the members that are in this site."""
        return tuple(who for who in members if who.rank // self.size == self.node.rank // self.size)

    def speakers(self, members: Group) -> Group:
        """The first member of each site."""
        first = {who.rank // self.size: who for who in reversed(members)}
        return tuple(who for who in members if first[who.rank // self.size] == who)

    async def step(self, replica: Replica, step: int) -> None:
        """Take a step on the mean gradient of the site."""
        if self.size == 1:
            replica.apply(await replica.gradient(self.node))
            return await self.node.note("update")
        await replica.gradient(self.node, clip=False)
        home = self.home(self.node.members(step))
        source = replica.batch_source
        replica.progress.begin(source.together([who.rank for who in home], step))
        await mean_gradient(self.node, replica, replica.grad, home, ring)
        replica.progress.begin(source.together(self.node.present(step), step))
        replica.updates.clip_(replica.grad)
        replica.update()
        if self.node.address == home[0]:
            await self.node.note("update")

    async def average(self, replica: Replica, models: ModelMeans, momentum: Momentum, members: Group) -> None:
        """Replace the model by the mean of all sites': only one worker of each sends to other sites."""
        speakers = self.speakers(members)
        if self.node.address in speakers:
            await average(replica, models, speakers, ring, momentum)
        await broadcast_tree(self.node, replica.model, self.home(members))
