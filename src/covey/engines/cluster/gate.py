"""The launcher's end of the links to all sites: their messages, and which site is silent."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from covey.engines.cluster.cluster_keys import ClusterKeys
from covey.engines.cluster.site_messages import Downward, LeaveRun, Upward, upward
from covey.engines.process.control_lines import AT_ONCE, MOST_UP
from covey.engines.process.line_identity import line_identity
from covey.engines.process.liveness import STALL, Silence
from covey.engines.transport.keys import ConnectionGuard
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.token import NONE, seal, unseal
from covey.errors import WireError
from covey.message import Address

BROKEN = 2.5  # seconds after which a site is lost that has said nothing since a line broke


def readmit(door: zmq.Socket[bytes], keys: ClusterKeys | None, stall: float) -> None:
    """Before `bind`: admit holders of a key, also again on a new connection while their old one seems to be open.

    Who takes over an identity receives what is sent to it, such as the keys of roles. So identities are secret
    (`ClusterKeys.identity`), and without keys, where everybody can know them, nobody takes one over.
    """
    if keys and (key_ring := keys.own_ring()):
        key_ring.lock(door)
        door.setsockopt(zmq.ROUTER_HANDOVER, 1)
    door.setsockopt(zmq.HEARTBEAT_IVL, round(min(2.0, stall / 4) * 1000))  # ends connections of vanished hosts
    door.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(stall * 1000))


class SiteGate:
    """A door at which the sites of a run knock."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, sites: int, keys: ClusterKeys | None = None,
        guard: ConnectionGuard | None = None, stall: float = STALL,
    ) -> None:  # fmt: skip
        """`stall` is for how many seconds a site may give no sign of life."""
        self.guard, self.token = guard, keys.token if keys else NONE
        self.identity: Callable[[Address, int], bytes] = keys.identity if keys else line_identity
        self.refusals = guard.refusals if guard else Refusals()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_UP)
        self.socket.ipv6 = True
        self.socket.setsockopt(zmq.LINGER, 1000)
        readmit(self.socket, keys, stall)
        self.monitor = None
        if guard:
            guard.watch(self.socket, self._line_broke)
        else:
            self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.words_of = dict.fromkeys(range(sites), 0)  # how many came
        self.names = {self.identity(Address("site", number), 0): number for number in range(sites)}
        self.replaced: set[bytes] = set()  # the names of sites that were given up
        self.silence: Silence[int] = Silence(stall)
        self.broken = -1.0  # when a line broke last, by the clock of that silence
        self.socket.bind(endpoint)

    @property
    def endpoint(self) -> str:
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def tell(self, number: int, word: Downward) -> None:
        name = next(name for name, site in self.names.items() if site == number)
        self.socket.send_multipart([name, seal(self.token, word)])

    def renew(self, number: int, incarnation: int) -> None:
        """Hear another site of this number, and have an earlier one leave that turns up after all."""
        self.replaced |= {name for name, site in self.names.items() if site == number}
        self.names = {name: site for name, site in self.names.items() if site != number}
        self.names[self.identity(Address("site", number), incarnation)] = number

    def words(self) -> list[tuple[int, Upward]]:
        """What the sites have said since the last time; never waits."""
        found = []
        for _ in range(AT_ONCE):
            if not self.socket.poll(0):
                break
            name, *parts = self.socket.recv_multipart(copy=False)
            if name.bytes in self.replaced:
                leave = LeaveRun(False, "the run went on without this site")
                self.socket.send_multipart([name.bytes, seal(self.token, leave)])
                continue
            try:
                number, word = self._read(name, *parts)
            except WireError as error:
                self.refusals.note(str(error))
            else:
                self.words_of[number] += 1
                found.append((number, word))
        while self.monitor and self.monitor.poll(0):
            self.monitor.recv_multipart()
            self._line_broke()
        self.silence.look(self.words_of)
        return found

    def silent(self, number: int) -> float:
        """For how many seconds a site has given no sign of life, if that is too long; else 0."""
        quiet = self.silence.quiet(number)
        since_then = self.silence.awake - quiet < self.broken  # it has said nothing since a line broke
        return quiet if quiet > (min(BROKEN, self.silence.stall) if since_then else self.silence.stall) else 0.0

    def close(self) -> None:
        self.socket.disable_monitor()
        if self.monitor:
            self.monitor.close(0)

    def _line_broke(self, file: int = -1) -> None:
        self.broken = self.silence.awake

    def _read(self, name: zmq.Frame, *parts: zmq.Frame) -> tuple[int, Upward]:
        number = self._number(name.bytes)
        if len(parts) != 1:
            raise WireError(f"site {number} sent a message that sites do not send")
        if self.guard and (other := self.guard.impostor(parts[0], Address("site", number))):
            raise WireError(f"{other} sent the launcher a message in the name of site {number}")
        return number, unseal(self.token, parts[0].bytes, upward)

    def _number(self, name: bytes) -> int:
        if name not in self.names:
            raise WireError(f"{name[:40]!r} is not a site of this run")
        return self.names[name]
