"""The time of a ring all-reduce by one recurrence, for rings too large to simulate each message."""

from __future__ import annotations

from collections.abc import Sequence

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
    onward = np.roll(rate, -1)
    out, into = np.zeros(size), np.zeros(size)  # when the cards are free: mine to send, the next rank's to receive
    parts = np.array(sizes, dtype=float)
    for turn in range(2 * (size - 1)):
        sent = np.roll(parts, turn)  # rank r sends slice r - turn, while summing and while gathering
        begin = np.maximum(now, out)
        out = begin + sent / rate
        into = np.maximum(begin + latency, into) + sent / onward
        arrived = np.maximum(out + latency, into)
        now = np.maximum(now, np.roll(arrived, 1))
    return now.tolist()  # type: ignore[no-any-return]
