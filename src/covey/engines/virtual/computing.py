"""How work takes time in virtual time: it is done at once, and its result comes when the cluster model says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.engines.virtual.agenda import Agenda
from covey.engines.virtual.seat import Seat, Thread
from covey.engines.virtual.stall import blame
from covey.observe.instruments import Instrument
from covey.program import Compute
from covey.simulate.cluster import Cluster

Later = Callable[[Any, Any], None]


class Computing:
    """The compute of every role: one piece of work at a time, in the order of asking."""

    def __init__(self, cluster: Cluster, agenda: Agenda, watch: Instrument, resume: Later, deliver: Later) -> None:
        self._cluster, self._agenda, self._watch = cluster, agenda, watch
        self._resume, self._deliver = resume, deliver

    def ask(self, thread: Thread, effect: Compute[Any]) -> None:
        """Begin the work, or get in line behind what the role computes already."""
        if thread.seat.busy:
            thread.seat.line.append((thread, effect))
        else:
            self._begin(thread, effect)

    def _begin(self, thread: Thread, effect: Compute[Any]) -> None:
        """Do the work now, with the weights as they are; its result and its posts come in their time."""
        seat, begin = thread.seat, self._agenda.now
        seat.busy, seat.posts = True, []
        try:
            result = effect.work()
        except Exception as error:
            blame(error, seat.name, begin)
            raise
        finally:
            posts, seat.posts = seat.posts, None
        end = begin + self._duration(seat, effect.load)
        # The result comes before a post of the same moment: who got the last bucket finds the batch complete.
        self._agenda.at(end, self._end, thread, (begin, result))
        for message, progress in posts:
            self._agenda.at(min(end, begin + progress * (end - begin)), self._deliver, seat, message)

    def _end(self, thread: Thread, begun: tuple[float, Any]) -> None:
        begin, result = begun
        seat = thread.seat
        if seat.ended:
            return
        if self._agenda.now > begin:
            self._watch.computed(begin, self._agenda.now, seat.address)
        self._resume(thread, result)
        seat.busy = False
        while seat.line and not seat.busy:
            waiting, effect = seat.line.popleft()
            if not waiting.done:
                self._begin(waiting, effect)

    def _duration(self, seat: Seat, load: float) -> float:
        if seat.role.trains:
            return self._cluster.compute_time(seat.address.rank, load, seat.jitter)
        held = seat.replica.snapshot().params.nbytes if self._cluster.update else 0
        return self._cluster.update * held * load
