"""One shared fork server for the sites of a machine: torch is imported once there, and not once for each site.

The launcher offers its own to sites of its machine; elsewhere the first site does. The socket is one as the memory
broker's: only processes of the same kernel, network and user that know the run's secret get through. Its name is made
of that secret and of all that a process cannot be given after its start, so that sites meet there only if a fork of one
server suits all of them. A site that finds nothing it may use starts a fork server of its own.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from struct import Struct

import msgspec

from covey.engines.cluster.memory_broker import GUESTS, Broker, admitted, check_user, introduced
from covey.engines.process import liveness
from covey.engines.process.forking.fork_server_client import SharedForkServer, started
from covey.engines.process.forking.role_processes import ForkServer, spawned
from covey.engines.process.forking.run_fork_server import RunForkServer
from covey.engines.process.forking.shared_fork_server import HANDLES, ForkRequest, fork_requests
from covey.engines.process.inherited import environment as own_environment
from covey.engines.process.inherited import files, fixed_in_any_session, inherited
from covey.engines.transport import handles
from covey.model.threads import limited_to

PATIENCE = 60.0  # seconds that either end waits for the other, which may be busy
LEAVING = 5.0  # seconds that a site waits for the end of its fork server, which the roles of others may still need
PAUSE = 0.02

_pid = Struct("<i")


class ForkBroker(Broker):
    """Passes the requests of sites on to the fork server of this process, until it is closed."""

    patience = PATIENCE

    def __init__(self, server: SharedForkServer, secret: bytes, listener: socket.socket) -> None:
        self.server = server
        super().__init__(listener, secret, "fork broker")

    def answer(self, line: socket.socket) -> None:
        line.send(admitted(line, self.secret) + _pid.pack(self.server.pid))
        text, *given = handles.take(line, 1 + HANDLES)
        try:
            with open(text, "rb") as file:
                request = fork_requests.read(file.read(), "a site")
            self.server.ask(msgspec.structs.replace(request, asker=check_user(line)), given)
        finally:
            handles.close(given)
        line.send(b"+")


class BorrowedServer:
    """The fork server of another process of this machine."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def stopped(self) -> bool:
        return liveness.state(self.pid) in liveness.STOPPED

    def imports(self) -> bool:
        return True  # as far as one knows here

    def own(self) -> bool:
        return False

    def release(self) -> None:
        """Its owner sees to it."""

    def loss(self) -> str:
        return "has ended"


class OfferedForkServer(RunForkServer):
    """A run's fork server, forked by one that other sites use, too, which ends with the last of their runs."""

    def __init__(self, server: SharedForkServer, report: socket.socket, broker: ForkBroker) -> None:
        super().__init__(server, report)
        self.shared, self.broker = server, broker

    def reap(self) -> None:
        super().reap()
        self.broker.close()
        self.shared.retire()
        until = time.monotonic() + LEAVING
        while self.shared.own() and not self.shared.stopped() and time.monotonic() < until:
            time.sleep(PAUSE)


def offered(secret: bytes, threads: int, parent: ForkServer) -> Callable[[], None]:
    """(The launcher) Offer its fork server, of which `parent` is a fork, to sites; what is returned ends that."""
    server = parent.server if isinstance(parent, RunForkServer) else None
    if isinstance(server, SharedForkServer):
        with suppress(OSError):  # the sites will have their own
            if listener := _listener(_door(secret, own_environment(**limited_to(threads)))):
                return ForkBroker(server, secret, listener).close
    return lambda: None


def forked(
    secret: bytes, threads: int, ours: socket.socket, theirs: socket.socket, directory: Path, warm: str, stall: float,
    apart: bool = False,
) -> ForkServer:  # fmt: skip
    """(A site) The run's fork server, forked by the one that the sites of its machine share; else by one of its own.

    A site that is to be lost without the others is `apart` from them: it shares with the launcher only.
    """
    environment = own_environment(**limited_to(threads))
    request, door = request_of(environment, directory, warm, stall), _door(secret, environment)
    until = time.monotonic() + PATIENCE
    with suppress(OSError):
        while time.monotonic() < until:
            if broker := connected(door):
                with broker:
                    return borrowed(broker, secret, theirs, request)
            if apart:
                break
            if listener := _listener(door):
                server = started(environment, str(directory))
                report = server.fork(theirs, msgspec.structs.replace(request, offered=True)).report
                return OfferedForkServer(server, report, ForkBroker(server, secret, listener))
            time.sleep(PAUSE)  # another site came first, and will listen in a moment
    return spawned(threads, ours, theirs, directory, warm, stall)


def connected(door: str) -> socket.socket | None:
    """A line to the broker that listens at this socket, if there is one."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(PATIENCE)
    try:
        line.connect(f"\0{door}")
    except OSError as error:
        line.close()
        if isinstance(error, ConnectionRefusedError):
            return None
        raise
    return line


def request_of(environment: dict[bytes, bytes], directory: Path, warm: str, stall: float) -> ForkRequest:
    """The request for a fork server that is as if this process had started it."""
    return ForkRequest(inherited=inherited(environment), directory=str(directory), warm=warm, stall=stall)


def borrowed(broker: socket.socket, secret: bytes, line: socket.socket, request: ForkRequest) -> RunForkServer:
    """A fork server from the shared one behind a broker; OSError if it gives none."""
    report, theirs = socket.socketpair()
    text = os.memfd_create("covey-request", os.MFD_CLOEXEC)
    try:
        with theirs, files() as opened:
            os.write(text, msgspec.msgpack.encode(request))
            os.lseek(text, 0, os.SEEK_SET)
            told = introduced(broker, secret)
            if len(told) != _pid.size:
                raise ConnectionError("the broker of the fork server does not say which process that is")
            handles.give(broker, [text, theirs.fileno(), line.fileno(), *opened])
            if not broker.recv(1):
                raise ConnectionAbortedError("the broker could not pass the request on")
        return RunForkServer(BorrowedServer(_pid.unpack(told)[0]), report)
    except BaseException:
        report.close()
        raise
    finally:
        os.close(text)


def _door(secret: bytes, environment: dict[bytes, bytes]) -> str:
    """The name of the socket where those meet whom one fork server suits."""
    return f"covey-{hmac.digest(secret, repr(fixed_in_any_session(environment)).encode(), 'sha256').hex()[:32]}"


def _listener(door: str) -> socket.socket | None:
    """A socket of this name, unless another process has it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0{door}")
        listener.listen(GUESTS)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener
