"""What a launcher and its roles say to each other besides the exchange: typed, small, never counted as traffic."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import msgspec
import zmq

from covey.engines.transport.keys import LAUNCHER, Guard, Ring, private
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.token import NONE, seal, unseal
from covey.errors import WireError
from covey.message import Address
from covey.observe.recording import Lane
from covey.observe.tally import Tally
from covey.observe.usage import Use

MOST_UP, MOST_DOWN = 1 << 20, 16 << 20  # bytes of a word; ZeroMQ refuses more before it takes memory
AT_ONCE = 1000  # words that are heard in one go, so that a flood of them does not keep the launcher from the rest
CONFESS_EVERY = 0.2  # seconds


class Word(msgspec.Struct, frozen=True, tag=True):
    """Something said on the control line."""


# -- from a role to its launcher


class Bound(Word, frozen=True):
    """The role hears at this endpoint."""

    endpoint: str


class Ready(Word, frozen=True):
    """The role is built; roles with the same fingerprint start from the same weights."""

    fingerprint: str
    parameters: int


class Report(Word, frozen=True):
    """How it goes: the tally so far, and what the role waits for, if it does."""

    step: int
    tally: Tally
    waiting: str = ""
    since: float = 0.0  # seconds of training that it has waited, or computed
    use: Use | None = None  # now and then


class At(Word, frozen=True):
    """The step that would begin next; the role goes no further until told. None: it will begin no more."""

    step: int | None


class Held(Word, frozen=True):
    """The role waits before this step, or will never begin it."""

    step: int


class Frozen(Word, frozen=True):
    """No compute runs, and none will begin."""


class Counts(Word, frozen=True):
    """Messages sent and received in all; busy: something still moves."""

    sent: int
    received: int
    busy: bool


class Saved(Word, frozen=True):
    """The role's state is on disk."""


class Ended(Word, frozen=True):
    """The role's program is through."""

    tally: Tally
    lane: Lane | None = None  # of a run that is traced


class Failed(Word, frozen=True):
    """The role's code raised."""

    error: str
    traceback: str
    refusal: str = ""  # the kind of error, where it is covey that says no


class Refused(Word, frozen=True):
    """What the role has refused since it last said so: each reason, and how often."""

    counts: dict[str, int]


class Scored(Word, frozen=True):
    """What the model is worth."""

    metrics: dict[str, float]


# -- from the launcher to a role


class Book(Word, frozen=True):
    """Where everybody hears, by name."""

    endpoints: dict[str, str]


class Go(Word, frozen=True):
    """Everybody is ready: train."""


class Freeze(Word, frozen=True):
    """Begin no compute until thawed."""


class Thaw(Word, frozen=True):
    pass


class Where(Word, frozen=True):
    """Say which step would begin next, and hold there."""


class Hold(Word, frozen=True):
    """Go on, and hold before this step."""

    step: int


class Release(Word, frozen=True):
    """Go on; or else say goodbye without another step."""

    train: bool = True


class Stop(Word, frozen=True):
    """Go on, and train no more from this step on."""

    step: int


class Probe(Word, frozen=True):
    """Say how many messages you have sent and received."""


class Shoot(Word, frozen=True):
    """Send your part of the scored model to the scorer."""


class Save(Word, frozen=True):
    """Write your state into this directory."""

    directory: str


class Score(Word, frozen=True):
    """(To the scorer) put so many parts together, evaluate, and write the model if a file is named."""

    parts: int
    evaluate: bool
    file: str = ""


class Quit(Word, frozen=True):
    """End the process."""


Upward = Bound | Ready | Report | At | Held | Frozen | Counts | Saved | Ended | Failed | Refused | Scored
Downward = Book | Go | Freeze | Thaw | Where | Hold | Release | Stop | Probe | Shoot | Save | Score | Quit

upward: msgspec.msgpack.Decoder[Upward] = msgspec.msgpack.Decoder(Upward)
downward: msgspec.msgpack.Decoder[Downward] = msgspec.msgpack.Decoder(Downward)


class RoleLine:
    """A role's end of the control line."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, me: Address, ring: Ring | None = None,
        token: bytes = NONE,
    ) -> None:  # fmt: skip
        self.token = token
        self.refusals = Refusals()
        self.confessed = 0.0
        self.socket = context.socket(zmq.DEALER)
        self.socket.ipv6 = True
        if ring:
            ring.open(self.socket, LAUNCHER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_DOWN)
        self.socket.setsockopt(zmq.IDENTITY, f"{me.role}/{me.rank}".encode())
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(endpoint)

    def tell(self, word: Upward) -> None:
        self.socket.send(seal(self.token, word))

    def wait(self) -> Downward:
        """The next thing that the launcher says."""
        while True:
            try:
                return unseal(self.token, self.socket.recv(), downward)
            except WireError as error:
                self.refusals.note(str(error))

    def heard(self) -> Iterator[Downward]:
        """What the launcher has said since the last time; never waits."""
        while self.socket.poll(0):
            yield self.wait()

    def confess(self, now: bool = False) -> None:
        """Tell what was refused, if anything was; at most every so often unless it must be `now`."""
        if (now or time.monotonic() - self.confessed > CONFESS_EVERY) and (counts := self.refusals.news()):
            self.confessed = time.monotonic()
            self.tell(Refused(counts))


class Switchboard:
    """The launcher's end of all control lines."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, roles: Iterable[Address],
        ring: Ring | None = None, guard: Guard | None = None, token: bytes = NONE,
    ) -> None:  # fmt: skip
        self.names = {f"{address.role}/{address.rank}".encode(): address for address in roles}
        self.guard, self.token = guard, token
        self.refusals = guard.refusals if guard else Refusals()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.ipv6 = True
        if ring:
            ring.lock(self.socket)
        if guard:
            guard.watch(self.socket)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_UP)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a script that fails after its run speaks on a line of its own
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        private(self.endpoint)
        self.introduces = self.endpoint.startswith("tcp://")  # roles choose their ports, and are told the others'

    def tell(self, roles: Iterable[Address], word: Downward) -> None:
        data = seal(self.token, word)
        for address in roles:
            self.socket.send_multipart([f"{address.role}/{address.rank}".encode(), data])

    def heard(self) -> Iterator[tuple[Address, Upward]]:
        """What the roles have said since the last time; never waits. What no role says is refused, and counted."""
        for _ in range(AT_ONCE):
            if not self.socket.poll(0):
                return
            try:
                yield self._read(*self.socket.recv_multipart(copy=False))
            except WireError as error:
                self.refusals.note(str(error))

    def _read(self, name: zmq.Frame, *parts: zmq.Frame) -> tuple[Address, Upward]:
        who = self.names.get(name.bytes)
        if who is None or len(parts) != 1:
            raise WireError("the control line got something that no role of this run says")
        if self.guard and self.guard.who(parts[0]) != who:
            raise WireError(f"{self.guard.who(parts[0])} spoke to the launcher in the name of {who}")
        return who, unseal(self.token, parts[0].bytes, upward)
