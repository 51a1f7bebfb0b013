"""How is torch imported for roles before their run is known? By the fork server, beside the launcher."""

from __future__ import annotations

from functools import partial

from covey.engines.process.forking.fork_server_client import forked_by_server
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.liveness import STALL


def start_fork_server(warm: str, threads: int, stall: float = STALL) -> None:
    """Start this process's fork server, if it has none that will do; it imports the module `warm` for later runs."""
    with RoleProcesses(warm, start=partial(forked_by_server, threads), stall=stall):
        pass  # a fork server that finds no work ends
