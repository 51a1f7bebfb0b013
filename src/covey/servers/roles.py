"""The usual roles of a strategy with parameter servers: workers with data, servers with parameters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node, Program
from covey.strategy import Role, Strategy
from covey.vector import Piece


def workers_and_servers(
    workers: int, work: Program, servers: int, serve: Program, *, one_batch: bool = False
) -> list[Role]:
    """Workers that do `work`, and servers that do `serve(count=…)`, whose models are scored."""
    return [
        *(
            Role(Address("worker", rank), work, trains=True, one_batch=one_batch, heard_by_all=True)
            for rank in range(workers)
        ),
        *serving(servers, serve),
    ]


def serving(servers: int, serve: Program) -> list[Role]:
    """The servers, each of which is told their count."""
    return [Role(address, partial(serve, count=servers), scored=True) for address in addresses(servers)]


def addresses(servers: int) -> list[Address]:
    return [Address("server", index) for index in range(servers)]


def holding_whole(strategy: Strategy, codec: str) -> Strategy:
    """The strategy whose servers, if it has some, hold whole parameters, as the codec looks at their shapes."""

    def roles(workers: int, servers: int) -> list[Role]:
        found = strategy.roles(workers, servers)
        return [replace(role, program=partial(_undivided, program=role.program, codec=codec)) for role in found]

    return replace(strategy, roles=roles)


async def _undivided(node: Node, replica: Replica, *, program: Program, codec: str) -> None:
    if replica.divide is None:
        replica.divide = partial(_whole, codec=codec)
    await program(node, replica)


def _whole(replica: Replica, pieces: int, *, codec: str) -> list[Piece]:
    if pieces > len(replica.layout.slots):
        raise PlanError(
            f"{codec} looks at whole parameters, and there are only {len(replica.layout.slots)} for {pieces} owners: "
            f"use {len(replica.layout.slots)} or fewer"
        )
    return replica.layout.whole(pieces)
