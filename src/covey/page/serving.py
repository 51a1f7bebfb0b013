"""Serving the page: an address, a token, and an end."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

from covey.errors import PlanError
from covey.page.folder import WatchedFolder
from covey.page.host_names import own_names

PORT = 8470


def serve(runs: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Show this folder until the process is interrupted."""
    try:
        import uvicorn

        from covey.page.connections import BoundedConnection
        from covey.page.server import application
    except ModuleNotFoundError as error:
        raise PlanError(f"the page needs {error.name}: pip install 'covey[page]'") from None
    with listening(host, port) as listener:
        bound, port = listener.getsockname()[:2]
        local = ip_address(bound).is_loopback
        token = "" if local else secrets.token_urlsafe(24)
        folder = WatchedFolder(runs)
        folder.changes(0)  # the first look at a thousand runs takes a while
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/"
        say(f"{address}{f'?token={token}' if token else ''}")
        app = application(folder, token, own_names(host, bound) if local else ())
        settings = uvicorn.Config(
            app, log_level="critical", lifespan="off", server_header=False, http=BoundedConnection, ws="none",
            timeout_graceful_shutdown=1, access_log=False,
        )  # fmt: skip
        uvicorn.Server(settings).run(sockets=[listener])


def listening(host: str, port: int, there: str = "another page may be open there") -> socket.socket:
    """A socket at this address; `there` says why it may be taken."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise PlanError(f"--host {host}: {error.strerror}") from None
        what = f"{there}; --port 0 takes a free one"
        raise PlanError(f"port {port} of {host} cannot be used ({error.strerror}): {what}") from None
    return listener

