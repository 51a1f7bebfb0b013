"""Nobody to wait for: one worker computes the gradients of all, one after the other; each counts its share of the time.

So the steps are those of synchronous training, and the time is what they would take without any network.
"""

from __future__ import annotations

import time
from itertools import count

from benchmarks.peers.seat import EVERY, Seat


def main() -> None:
    seat, spent = Seat(), 0.0
    feeds = [seat.feed(rank) for rank in range(seat.size)]
    seat.ready()
    for step in count(1):
        begin = time.perf_counter()
        seat.optimizer.zero_grad()
        for feed in feeds:
            seat.gradient(seat.model, feed)
        between = time.perf_counter()
        for parameter in seat.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= seat.size
        seat.optimizer.step()
        spent += (between - begin) / seat.size + time.perf_counter() - between
        if step % EVERY == 0 and not seat.goes_on(step, step * seat.batch, spent):
            return


if __name__ == "__main__":
    main()
