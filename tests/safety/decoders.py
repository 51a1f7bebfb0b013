"""Every decoder of what comes from another process, and damaged input for each: read, or refused with a WireError."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, cast

import msgspec
import torch

import covey
from covey.decoding import WIRE_FORMATS, WireFormat
from covey.engines.process.role.sums.offers import SumOffer, SumOffers
from covey.engines.transport import frames, token
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.shared.lane import PLACE, Lane
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import SLOT, SharedSegment
from covey.errors import WireError
from covey.message import KINDS, Address, Message, pack, vectors
from covey.program import Receive
from covey.vector import Vector
from tests.safety.mutating import damaged
from tests.safety.samples import ME, sample

YOU = Address("worker", 1)
TOKEN = bytes(range(token.TOKEN))
LIMIT = 1 << 12
ENGINES = ("mpi", "ray", "spark")  # that need not be installed


def every_module() -> None:
    """Import all of covey, so that every kind of message and every format is known."""
    for module in pkgutil.walk_packages(covey.__path__, "covey."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)


def kinds() -> list[type[Message]]:
    return [kind for name, kind in sorted(KINDS.items()) if kind.__module__.startswith("covey.")]


class Formats:
    """Whatever is read by a `WireFormat`."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def throw(self, rng: Random) -> None:
        form = rng.choice(WIRE_FORMATS)
        self.seen[form.name] += self.read(form, rng)

    def read(self, form: WireFormat[Any], rng: Random) -> bool:
        value = sample(form.kind, rng)
        data = damaged(rng, msgspec.msgpack.encode(value, enc_hook=lambda vector: len(vector.parts)))
        if form.form == "json":
            with suppress(Exception):  # what JSON cannot write is thrown at it as it is
                data = msgspec.json.encode(msgspec.msgpack.decode(data))
        try:
            form.read(data, YOU)
        except WireError:
            return False
        return True


class Links:
    """Frames of a link, through sockets and through shared memory."""

    def __init__(self) -> None:
        segment = SharedSegment([ME, YOU])
        self.theirs, mine = HostMemory(YOU, segment), HostMemory(ME, segment)
        self.theirs.blocks.house(Vector([torch.arange(64.0)]))
        self.spans = [region.span for region in self.theirs.blocks.lasting]
        self.inbox = Inbox([ME, YOU], LIMIT, TOKEN, mine.neighbours)
        self.lane = segment.lane(YOU, ME)
        self.number, self.kinds = 0, kinds()
        self.seen: Counter[str] = Counter()

    def throw(self, rng: Random) -> None:
        message = sample(rng.choice(self.kinds), rng)
        message.sender = YOU
        header, tensors = pack(message)
        self.number += rng.choice([0, 1, 1, 1])
        shared = rng.random() < 0.5
        if rng.random() < 0.1:
            self.inbox.expect(Receive((type(message),), sender=YOU, into=Vector(tensors)))
        places = self.theirs.blocks.place_tensors(ME, tensors, lent=False) if shared else None
        head = damaged(rng, header)
        rest = damaged(rng, msgspec.msgpack.encode(places)) if shared else b"".join(bytes(t.nbytes) for t in tensors)
        kind = frames.SHARED if shared else frames.OPEN
        size = rng.choice([len(head)] * 20 + [0, len(head) + 1, 1 << 31])
        frame = frames.Frame(kind, rng.choice([1] * 30 + [0, 9]), size, self.number, 0, TOKEN).pack() + head + rest
        try:
            frame = self._by_lane(frame, rng) if rng.random() < 0.5 else frame
            self.seen[kind_of(self._arrive(frame))] += 1
        except WireError:
            pass
        finally:
            self.theirs.blocks.take_back(places)
            self.inbox.arrivals = [{}, {}]
            self.inbox.wants.clear()

    def _by_lane(self, frame: bytes, rng: Random) -> bytes:
        """The frame as it is read there, where its length may be wrong."""
        lane = Lane(*self.lane)
        lane.clear()
        if not lane.put(frame, 0):
            return frame
        if rng.random() < 0.05:
            lane._places[0][:4] = rng.randbytes(rng.choice((2, 4))).ljust(4, b"\0")
        lane._next = 0
        found = lane.take()
        assert found is not None and len(found.data) <= PLACE
        return found.data

    def _arrive(self, data: bytes) -> Message | None:
        frame, rest = frames.read(data)
        self.inbox.admit(frame)
        message = self.inbox.share(frame, rest) if frame.kind == frames.SHARED else self.inbox.open(frame, rest)
        if message is not None:
            assert message.sender in (ME, YOU) and sum(vector.nbytes for vector in vectors(message)) <= LIMIT
        return message


class Offers:
    """What members of a sum lay out for each other."""

    def __init__(self) -> None:
        self.segment = SharedSegment([ME, YOU])
        self.offers = SumOffers(ME, HostMemory(ME, self.segment))
        self.theirs = HostMemory(YOU, self.segment)
        self.parts = [torch.zeros(8), torch.zeros(3, dtype=torch.float64)]
        self.seen: Counter[str] = Counter()

    def throw(self, rng: Random) -> None:
        places = self.theirs.blocks.place_tensors(ME, self.parts, lent=False)
        text = damaged(rng, msgspec.msgpack.encode(SumOffer(places, 0.5)))[: SLOT - 4]
        size = rng.choice([len(text)] * 20 + [0, len(text) + 1, (1 << 32) - 1])
        self.segment.slot(YOU)[: 4 + len(text)] = size.to_bytes(4, "little") + text
        try:
            offer = self.offers.read(YOU, self.offers.text_of(YOU))
            if offer.places is not None:
                found = self.offers.tensors(YOU, offer, self.parts)
                assert [one.shape for one in found] == [part.shape for part in self.parts]
                self.seen["sum"] += 1
        except WireError:
            pass
        finally:
            self.theirs.blocks.take_back(places)


def kind_of(message: Message | None) -> str:
    return "half" if message is None else message.wire_name


TARGETS: dict[str, Callable[[], Any]] = {"formats": Formats, "links": Links, "offers": Offers}


def fuzz(name: str, count: int, seed: int) -> Counter[str]:
    """Throw so many; what got through, by kind. Whatever is neither read nor refused by name is raised."""
    every_module()
    rng, target = Random(seed), TARGETS[name]()
    for _ in range(count):
        target.throw(rng)
    return cast("Counter[str]", target.seen)
