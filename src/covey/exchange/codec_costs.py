"""When does a codec pay? What it takes to encode, send and decode a vector, against sending it as it is.

`+ auto` reckons so with what it has measured in a run, `covey advise` with what formulas say before one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import thread_time

import torch

from covey.exchange.codec import Codec
from covey.model.flat import Form
from covey.model.threads import one_thread
from covey.simulate import CodecTime, CpuTime, Seconds

WORTH = 1.05  # time to the goal may be this many times the shortest, if less is lost on the way
TURNS = 4  # of encoding and decoding; the quickest of each counts
SAMPLE = 1 << 22  # bytes of plain numbers on which a codec is timed where no vector is at hand
COLUMNS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one vector takes on its way: seconds of work, and bytes with the codec and without."""

    encode: float
    decode: float
    sent: float
    plain: float

    def seconds(self, bandwidth: float) -> float:
        """From plain numbers to plain numbers over a link of this many bytes per second."""
        return self.encode + self.sent / bandwidth + self.decode

    @property
    def below(self) -> float:
        """The bytes per second of a link below which this is quicker than sending plain numbers."""
        saved, work = self.plain - self.sent, self.encode + self.decode
        if saved <= 0:
            return 0.0
        return saved / work if work > 0 else math.inf


def timed(codec: Codec, form: Form, turns: int = TURNS) -> Cost:
    """Encode and decode normal numbers of this form, on one thread of this machine's CPU."""
    chance = torch.Generator().manual_seed(0)
    vector = form.like.map(lambda part: (torch.randn(part.shape, generator=chance) / 100).to(part.dtype))
    coder = codec.carrying().made(replace(form, like=vector), 0)
    memory, wire, encoding, decoding = coder.memory, vector, list[float](), list[float]()
    with one_thread():
        for _ in range(1 + turns):
            begin = thread_time()
            wire, memory = coder.encode(vector, memory)
            middle = thread_time()
            coder.decode(wire)
            encoding.append(middle - begin)
            decoding.append(thread_time() - middle)
    # the first time may compile something
    return Cost(encode=min(encoding[1:]), decode=min(decoding[1:]), sent=wire.nbytes, plain=vector.nbytes)


def prices(codecs: Sequence[Codec], size: float = SAMPLE) -> Mapping[str, CodecTime]:
    """What codecs cost on this machine, by their names; timed on a matrix of at most this many bytes."""
    rows = max(1, round(min(size, SAMPLE) / (4 * COLUMNS)))
    form = Form.matrix(torch.empty(rows * COLUMNS), COLUMNS)
    found = {codec.name: timed(codec, form) for codec in codecs}
    return {
        name: CodecTime(encode=_each(cost.encode, cost.plain), decode=_each(cost.decode, cost.plain))
        for name, cost in found.items()
    }


def _each(seconds: float, size: float) -> CpuTime:
    return CpuTime(byte=Seconds(seconds / size))


def best(rest: float, times: Sequence[float], more: Sequence[float] = ()) -> int:
    """The first option with which the goal is reached hardly later than with the quickest.

    A step is its `rest` and an exchange, which takes these `times`; `more` says how many times the steps are needed.
    """
    factors = more or [1.0] * len(times)
    whole = [(rest + time) * factor for time, factor in zip(times, factors, strict=True)]
    return next(number for number, time in enumerate(whole) if time <= WORTH * min(whole))
