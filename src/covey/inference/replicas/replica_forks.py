"""Processes of replicas, as the front's process asks for them: forked from one that has the model already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import msgspec

from covey.engines.process.child_process import write
from covey.engines.process.forking.die_with_parent import leashed
from covey.engines.transport import handles
from covey.inference.replicas.fork_orders import EndOrder, StartOrder
from covey.inference.replicas.replica_process import ReplicaConfig
from covey.inference.served_model import ModelPlace
from covey.model.threads import limited_to

SERVER = "covey.inference.replicas.replica_fork_server"  # the program; imported here, it could not be run as one
PATIENCE = 5.0  # seconds in which a fork server ends its replicas, and then itself


class ReplicaForks:
    """A fork server of one model, and the replicas that it has forked; all of them end with this process.

    Args:
        place: Where the model is; the fork server begins to load it at once.
        threads: Of each replica.
        trial: Seconds that a batch may take which a replica measures, and the largest of them.
        after: Layers after which the model is cut; each stage of a replica is then a process.
    """

    def __init__(
        self, place: ModelPlace, threads: int, trial: tuple[float, int], after: tuple[int, ...] = ()
    ) -> None:
        self._place, self._threads, self._trial, self._after = place, threads, trial, after
        self._begin()

    def start(self, rank: int) -> socket.socket:
        """Let a replica be forked; the front's end of its link, which hangs up when the replica has ended."""
        if self._process.poll() is not None:
            self._line.close()
            self._begin()
        mine, theirs = socket.socketpair()
        with theirs:
            config = ReplicaConfig(rank=rank, threads=self._threads, trial=self._trial, after=self._after)
            self._order(StartOrder(config), theirs)
        return mine

    def end(self, rank: int) -> None:
        """Kill a replica's process, if there is one."""
        self._order(EndOrder(rank))

    def begin(self) -> None:
        """The first replicas are ready; here nothing waits for that."""

    def close(self, gently: bool = False) -> None:
        """End all processes; `gently` lets the fork server wait for its replicas."""
        self._line.close()
        try:
            self._process.wait(PATIENCE if gently else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _begin(self) -> None:
        self._line, theirs = socket.socketpair()
        words = [sys.executable, "-m", SERVER, str(theirs.fileno()), msgspec.json.encode(self._place).decode()]
        # NumPy's threads would be there before a fork, and need not be: torch's compute.
        path = os.pathsep.join(path for path in sys.path if path)  # a process of an engine may have found modules so
        environment = {**os.environ, **limited_to(self._threads), "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
        with theirs:  # what tasks print is not the address
            self._process = subprocess.Popen(
                leashed(words, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()],
                start_new_session=True, env=environment,
            )  # fmt: skip

    def _order(self, order: StartOrder | EndOrder, given: socket.socket | None = None) -> None:
        try:
            write(self._line, msgspec.msgpack.encode(order))
            if given is not None:
                handles.give(self._line, [given.fileno()])
        except OSError:
            pass  # it has just ended: the links of all replicas hang up, that of this one too
