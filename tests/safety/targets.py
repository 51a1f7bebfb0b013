"""What the fuzzers throw bytes at: each target takes any bytes, and raises only if covey did something wrong with them.

What it returns tells how it went, which leads the fuzzer where it cannot look: into msgspec's decoders, written in C.
`python -m tests.safety.fuzz` runs them under atheris, `test_fuzz.py` for a moment under hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import torch

from covey.decoding import WireFormat
from covey.engines.cluster import site_messages
from covey.engines.process import control
from covey.engines.transport import frames, token
from covey.engines.transport.inbox import Inbox
from covey.errors import PlanError, WireError
from covey.message import Address, Message, vectors
from covey.program import Receive
from covey.simulate import cluster_file, units
from covey.spec import Spec, expand, parse, parse_call, parse_list
from covey.vector import Vector

A, B = Address("worker", 0), Address("worker", 1)
TOKEN = bytes(range(token.TOKEN))
LIMIT = 1 << 12
MARK = b"\xff\x00\xff\x00"  # between two frames of one input


class Load(Message, kw_only=True):
    """A kind with everything that a kind can have."""

    wire_name = "targets.load"

    step: int = 0
    name: str = ""
    loss: float = 0.0
    pair: tuple[int, int] = (0, 0)
    what: Vector
    more: Vector = Vector(())


def messages(data: bytes) -> list[str]:
    """Frames of a link, one after the other: each is refused, or ends in a message of the sender that it names."""
    inbox = Inbox([A, B], LIMIT, TOKEN)
    into = Vector([torch.zeros(3)])
    inbox.expect(Receive((Load,), sender=B, into=into))
    story = []
    for piece in data.split(MARK):
        head, _, body = piece.partition(b"\xfe\x00\xfe")
        try:
            story.append(_whole(_arrive(inbox, head, body)))
        except WireError as error:
            story.append(str(error))
    held = [arrival.header.nbytes for arrivals in inbox.arrivals for arrival in arrivals.values()]
    assert sum(held) <= 2 * LIMIT
    return story


def _arrive(inbox: Inbox, head: bytes, body: bytes) -> Message | None:
    frame, rest = frames.read(head)
    inbox.admit(frame)
    if frame.kind == frames.OPEN:
        return inbox.open(frame, rest)
    place = inbox.place(frame)
    assert len(place) == frame.size <= LIMIT
    place[: len(body)] = body[: len(place)]
    return inbox.filled(frame)


def _whole(message: Message | None) -> str:
    if message is None:
        return ""
    assert message.sender in (A, B)
    assert sum(vector.nbytes for vector in vectors(message)) <= LIMIT
    return type(message).__name__


DECODERS: tuple[WireFormat[Any], ...] = (
    control.upward, control.downward, site_messages.upward, site_messages.downward, site_messages.configs,
)  # fmt: skip


def says(data: bytes) -> list[str]:
    """Words of the control line and of the line to the sites: refused, or words that can be said again."""
    story = []
    for sealed in (data, TOKEN + data):
        for decoder in DECODERS:
            try:
                word = token.unseal(TOKEN, sealed, decoder)
                assert (
                    decoder.read(msgspec.msgpack.encode(word)) == word or data.find(b"\xcb") >= 0
                )  # NaN is not itself
                story.append(type(word).__name__)
            except WireError as error:
                story.append(str(error))
    return story


def specs(data: bytes) -> list[str]:
    """SPECs: refused with a reason, or read; and what is read is written so that it can be read again."""
    text = data.decode(errors="surrogateescape")
    for read in (parse, parse_call):
        with suppress(PlanError):
            found = read(text)
            again = read(str(found))
            assert again == found, (found, again)
    with suppress(PlanError):
        for spec in parse_list(text, grids=True):
            if _combinations(spec) < 100:
                expand(spec)
    return []


def _combinations(spec: Spec) -> int:
    return math.prod(len(getattr(v, "values", (v,))) for v in spec.strategy.settings.values()) * 2 ** len(spec.codecs)


def clusters(data: bytes) -> list[str]:
    """Cluster files: refused with a reason, or a cluster that a run can be simulated on."""
    text = data.decode(errors="replace")
    with suppress(PlanError):
        cluster = cluster_file.read(text)
        for link in (cluster.link, *cluster.links.values()):
            assert 0 < link.bandwidth < math.inf and 0 <= link.latency < math.inf
        assert all(0 < slow < math.inf for slow in cluster.slowdowns.values())
        with suppress(PlanError):
            cluster.check(cluster.workers or 4)
    for read in (units.parse_duration, units.parse_rate, units.parse_size):
        with suppress(PlanError):
            assert 0 <= read(text[:100]) < math.inf
    return []


TARGETS: dict[str, Callable[[bytes], list[str]]] = {
    "messages": messages, "says": says, "specs": specs, "clusters": clusters,
}  # fmt: skip
