"""The time of a ring all-reduce by one recurrence, for rings too large to simulate each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from covey.simulate.machines import Link

Times = NDArray[np.float64]


def ring_ends(begins: Sequence[float], links: Sequence[Link], sizes: Sequence[float]) -> list[float]:
    """When each rank has the whole sum, if rank r began at `begins[r]`; slice c of the vector has `sizes[c]` bytes.

    Every round a rank sends one slice on, then takes one: what the messages of `exchange.collectives.ring` do, card
    by card, on links of any speed. Only what else travels on the same links at that time is left out.
    """
    size = len(begins)
    now: Times = np.array(begins, dtype=float)
    if size < 2:
        return now.tolist()  # type: ignore[no-any-return]
    rate = np.array([link.goodput for link in links])
    own = np.array([float(link.latency) for link in links])
    latency = np.maximum(own, np.roll(own, -1))  # to the next rank: the larger of both counts
    takes = _durations(np.array(sizes, dtype=float), rate)
    out, into = np.zeros(size), np.zeros(size)  # when the cards are free: mine to send, the next rank's to receive
    begin, arrived = np.empty(size), np.empty(size)  # written again in every turn: there are twice as many as ranks
    for turn in range(2 * (size - 1)):
        sending, receiving = takes(turn)
        np.maximum(now, out, out=begin)
        np.add(begin, sending, out=out)
        np.add(begin, latency, out=begin)  # when the first byte is there
        np.maximum(begin, into, out=into)
        np.add(into, receiving, out=into)
        np.add(out, latency, out=arrived)
        np.maximum(arrived, into, out=arrived)
        now[0] = max(now[0], arrived[-1])
        np.maximum(now[1:], arrived[:-1], out=now[1:])
    return now.tolist()  # type: ignore[no-any-return]


def _durations(parts: Times, rate: Times) -> Callable[[int], tuple[Times, Times]]:
    """How long the cards are busy in a turn: each rank's with sending, and the next one's with receiving."""
    size, twice = len(parts), np.concatenate([parts, parts])

    def sent(turn: int) -> Times:
        """Rank r sends slice r - turn, while summing and while gathering."""
        first = size - turn % size
        return twice[first : first + size]

    if (rate == rate[0]).all():  # as fast as each other: each slice takes as long with every rank
        twice = twice / rate[0]
        return lambda turn: (sent(turn), sent(turn))
    onward = np.roll(rate, -1)
    return lambda turn: (sent(turn) / rate, sent(turn) / onward)
