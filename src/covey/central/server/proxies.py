"""Two levels of servers: a proxy for each group of workers, as a cache between them and the servers.

It answers from its own copy of the parameters while that is at most `bound` steps of its group old, and pulls a new one
else. It writes its group's gradients back together: one push for each step of its slowest worker or, where nobody waits
for anybody, for as many gradients as the group has workers. Each level has its own bound: what a worker reads is at
most as old as both together (Langer et al. 2020, 3.4.1: proxies as a bidirectional write-back cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from covey.central.server.client import Servers, worker
from covey.central.server.shard import Params, Pull, Push, Shard, ShardPolicy
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.roles import addresses, serving
from covey.servers.server_program import serve
from covey.strategy import Role
from covey.synchronization import Bounded, GatherChoice, Open, Rule, Soft, Ticked
from covey.vector import chunk, mean, mean_


class Proxy(Shard):
    """A shard to its group, a worker to the servers: it has all of the parameters, and no optimizer."""

    only_rule = False

    def __init__(
        self, node: Node, replica: Replica, keeping: ShardPolicy, members: Sequence[int], above: Servers, bound: int
    ) -> None:
        super().__init__(node, replica, keeping=keeping, clients=members)
        self.above, self.bound = above, bound
        self.bounds = keeping.rule.gate.holds_by == "steps"
        self.clocks = [-1 - bound] * len(above.servers)  # of each server's piece; after a restart too the copy is old
        self.awaited = 0  # answers that servers owe
        self.hears[Params] = self.renew

    @property
    def clock(self) -> int:
        """How far the group is: steps of its slowest worker, or where nobody waits for it what was written back."""
        return self.board.slowest if self.bounds else self.board.version

    @property
    def too_old(self) -> bool:
        return min(self.clocks) < self.clock - self.bound

    async def renew(self, params: Params) -> None:
        index = params.sender.rank
        self.above.take(index, params)
        self.above.versions[index] = params.version
        self.clocks[index] = params.clock if self.bounds else params.step
        self.awaited -= 1

    async def update(self, choice: GatherChoice) -> None:
        """Write back: the mean of what the group pushed, which counts as many gradients as it is of."""
        pushes = [self.waiting[place] for place in choice.used]
        grads = [self.fresh(push) for push in pushes]
        grad = mean(grads, choice.weights)
        buffers = mean_(pushes[0].buffers.clone(), [push.buffers for push in pushes], [1.0] * len(pushes))
        version, samples = min(push.version for push in pushes), sum(push.samples for push in pushes)
        await self.above.choose(grad)
        self.board.version = self.clock if self.bounds and self.board.clocks else self.board.version + 1
        self.replica.updates.pass_on(self.node, [(push.sender, push.step) for push in pushes], self.board.version - 1)
        for index, address in enumerate(self.above.servers):
            wire = self.above.encode(index, grad.cut(self.above.pieces[index]))
            more = buffers if index == 0 else NOTHING
            push = Push(self.board.version - 1, version, samples, wire, more, len(pushes))
            await self.replica.updates.inform(self.node, address)
            await self.node.send(address, push, loan=True)
        await self.above.ended()
        self.forget(choice)

    def admits(self, rank: int) -> bool:
        return not self.too_old and super().admits(rank)

    async def answer(self) -> None:
        """Answer from the copy; where it is too old for one who may read, pull first."""
        if any(map(super().admits, self.parked)) and self.too_old and not self.awaited:
            self.awaited = len(self.above.servers)
            await self.above.ask(self.clock)
        await super().answer()

    def current(self, pull: Pull) -> Params:
        return Params(pull.step, min(self.above.versions), self.params, min(self.clocks))


async def proxy(
    node: Node, replica: Replica, *, members: Sequence[int], servers: int, keeping: ShardPolicy, bound: int
) -> None:
    """Serve a group until all of it has left; then all that it pushed is written back."""
    above = Servers(node, replica, addresses(servers), keeping.codec)
    await Proxy(node, replica, keeping, members, above, bound).serve()
    await above.leave()


def takes_sums(keeping: ShardPolicy) -> bool:
    """Whether servers can do with sums over groups: no rule that counts workers, nothing kept of each of them."""
    return keeping.rule.groups and keeping.correction is None and keeping.ending is None


def grouped(
    keeping: ShardPolicy, workers: int, servers: int, groups: int, bound: int, lagging_first: bool
) -> list[Role]:  # fmt: skip
    """The family's roles with a proxy for each group of workers: one bound inside the groups, one between them."""
    keeping, rule = replace(keeping, lagging_first=lagging_first), keeping.rule
    bounds = rule.gate.holds_by == "steps"
    members = [range(*chunk(workers, groups, group)) for group in range(groups)]
    root = replace(keeping, rule=Rule(Bounded(bound) if bounds else Open(), rule.gather))
    tend = partial(serve, Shard, clients=range(groups), keeping=root)
    work = partial(worker, codec=keeping.codec, clip=not rule.gather.averages)
    in_step = rule.gather.everyone and bound == 0
    roles = []
    for group, ranks in enumerate(members):
        address = Address("proxy", group)
        gather = Ticked(by_samples=rule.gather.averages) if bounds else Soft(len(ranks))
        below = replace(keeping, rule=Rule(rule.gate, gather))
        stand_in = partial(proxy, members=ranks, servers=servers, keeping=below, bound=bound)
        program = partial(work, servers=[address])
        roles += [
            Role(Address("worker", rank), program, trains=True, one_batch=in_step, heard_by_all=True) for rank in ranks
        ]
        roles.append(Role(address, stand_in))
    return [*roles, *serving(servers, tend)]
