"""The roles of nearly every strategy with parameter servers: workers with the data, servers with the truth."""

from __future__ import annotations

from functools import partial

from covey.message import Address
from covey.program import Program
from covey.strategy import Role


def workers_and_servers(
    workers: int, work: Program, servers: int, serve: Program, *, one_batch: bool = False
) -> list[Role]:
    """Workers that do `work`, and servers that do `serve(index=…, count=…)`, whose models are scored."""
    return [
        *(Role(Address("worker", rank), work, trains=True, one_batch=one_batch) for rank in range(workers)),
        *serving(servers, serve),
    ]


def serving(servers: int, serve: Program) -> list[Role]:
    """The servers, each of which is told its index and their count."""
    return [
        Role(address, partial(serve, index=index, count=servers), scored=True)
        for index, address in enumerate(addresses(servers))
    ]


def addresses(servers: int) -> list[Address]:
    return [Address("server", index) for index in range(servers)]
