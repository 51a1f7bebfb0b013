"""What a launcher and its roles say to each other besides the exchange: typed, small, never counted as traffic."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import zmq

from covey.engines.transport.keys import LAUNCHER, Ring
from covey.errors import WireError
from covey.message import Address
from covey.observe.tally import Tally


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


class Failed(Word, frozen=True):
    """The role's code raised."""

    error: str
    traceback: str
    refusal: str = ""  # the kind of error, where it is covey that says no


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


Upward = Bound | Ready | Report | At | Held | Frozen | Counts | Saved | Ended | Failed | Scored
Downward = Book | Go | Freeze | Thaw | Where | Hold | Release | Stop | Probe | Shoot | Save | Score | Quit

_upward = msgspec.msgpack.Decoder(Upward)
_downward = msgspec.msgpack.Decoder(Downward)


class RoleLine:
    """A role's end of the control line."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, me: Address, ring: Ring | None = None
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.ipv6 = True
        if ring:
            ring.open(self.socket, LAUNCHER)
        self.socket.setsockopt(zmq.IDENTITY, f"{me.role}/{me.rank}".encode())
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(endpoint)

    def tell(self, word: Upward) -> None:
        self.socket.send(msgspec.msgpack.encode(word))

    def wait(self) -> Downward:
        """The next thing that the launcher says."""
        word: Downward = _downward.decode(self.socket.recv())
        return word

    def heard(self) -> Iterable[Downward]:
        """What the launcher has said since the last time; never waits."""
        while self.socket.poll(0):
            yield self.wait()


class Switchboard:
    """The launcher's end of all control lines."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, roles: Iterable[Address], ring: Ring | None = None
    ) -> None:
        self.names = {f"{address.role}/{address.rank}".encode(): address for address in roles}
        self.socket = context.socket(zmq.ROUTER)
        self.socket.ipv6 = True
        if ring:
            ring.lock(self.socket)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a script that fails after its run speaks on a line of its own
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.introduces = self.endpoint.startswith("tcp://")  # roles choose their ports, and are told the others'

    def tell(self, roles: Iterable[Address], word: Downward) -> None:
        data = msgspec.msgpack.encode(word)
        for address in roles:
            self.socket.send_multipart([f"{address.role}/{address.rank}".encode(), data])

    def heard(self) -> Iterable[tuple[Address, Upward]]:
        """What the roles have said since the last time; never waits."""
        while self.socket.poll(0):
            name, data = self.socket.recv_multipart()
            try:
                yield self.names[name], _upward.decode(data)
            except (KeyError, msgspec.DecodeError) as error:
                raise WireError(f"the control line got something that no role of this run says: {error}") from None
