"""A recording of a run, role by role: blocks of computation, waits, and messages between lanes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.tally import Teller

MOST = 10_000  # events of one recorder, which fit into a word of the control line; a picture has room for far fewer
SHORT = 1e-6  # seconds: a wait that is shorter is none


class TimeSpan(msgspec.Struct, frozen=True, array_like=True):
    """A role did something from `begin` to `end`: compute, or wait for `what`."""

    who: str
    what: str  # empty: it computed
    begin: float
    end: float


class Arrow(msgspec.Struct, frozen=True, array_like=True):
    """A message on its way; `arrived` is None where the recording ended before."""

    sender: str
    to: str
    kind: str
    size: int
    sent: float
    arrived: float | None = None


class TorchOp(msgspec.Struct, frozen=True, array_like=True):
    """What torch did in a role, on one of its threads or on a stream of a GPU; one may lie within another."""

    who: str
    thread: str
    name: str
    begin: float
    end: float


class Recording(msgspec.Struct, kw_only=True):
    """A run, or its beginning, as lanes of roles."""

    schema: str = "covey.trace/1"
    strategy: str = ""
    engine: str = ""
    roles: list[str]
    spans: list[TimeSpan]
    arrows: list[Arrow]
    ops: list[TorchOp] | msgspec.UnsetType = msgspec.UNSET  # of a run that was profiled

    @property
    def seconds(self) -> float:
        ends = [span.end for span in self.spans] + [arrow.arrived or arrow.sent for arrow in self.arrows]
        return max(ends, default=0.0)

    @property
    def begin(self) -> float:
        return min((span.begin for span in self.spans), default=0.0)

    def excerpt(self, skip: int = 2, steps: int = 6, roles: int = 12) -> Recording:
        """A piece that fits into a picture: some steps of the first worker, after its first ones, of some roles."""
        shown = self.roles[:roles]
        blocks = [span for span in self.spans if span.who == self.roles[0] and not span.what]
        if not blocks:
            return Recording(strategy=self.strategy, engine=self.engine, roles=shown, spans=[], arrows=[])
        skip = min(skip, max(len(blocks) - steps, 0))
        begin, end = blocks[skip].begin, blocks[min(skip + steps, len(blocks)) - 1].end
        spans = [
            msgspec.structs.replace(span, begin=max(span.begin, begin), end=min(span.end, end))
            for span in self.spans
            if span.who in shown and span.begin < end and span.end > begin
        ]
        arrows = [
            msgspec.structs.replace(arrow, sent=max(arrow.sent, begin))
            for arrow in self.arrows
            if arrow.sender in shown and arrow.to in shown
            and arrow.sent < end and (arrow.arrived is None or begin < arrow.arrived)
        ]  # fmt: skip
        arrows = [msgspec.structs.replace(a, arrived=None) if (a.arrived or 0) > end else a for a in arrows]
        return Recording(strategy=self.strategy, engine=self.engine, roles=shown, spans=spans, arrows=arrows)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode() + "\n"


class RoleOps(msgspec.Struct, frozen=True):
    """What torch did in one role: for each operation the numbers of its thread and of its name, its begin and end."""

    threads: list[str] = []
    names: list[str] = []
    rows: list[tuple[int, int, float, float]] = []

    def of(self, who: str, later: float = 0.0) -> Iterator[TorchOp]:
        """The operations of this role, whose clock began `later` than others'."""
        for thread, name, begin, end in self.rows:
            if 0 <= thread < len(self.threads) and 0 <= name < len(self.names):
                yield TorchOp(who, self.threads[thread], self.names[name], begin + later, end + later)


class RoleTimeline(msgspec.Struct):
    """What one recorder saw, of one role or of all.

    The clocks of roles begin when each is told to go: `zero` is that moment by the clock of their machine.
    """

    spans: list[TimeSpan] = []
    sends: list[Arrow] = []
    arrivals: list[Arrow] = []  # when it was sent is not known here: `sent` is the arrival
    who: str = ""  # of one role
    machine: str = ""
    zero: float = 0.0

    def later(self, seconds: float) -> RoleTimeline:
        """The same, by a clock that began this many seconds earlier."""
        if not seconds:
            return self
        spans = [msgspec.structs.replace(s, begin=s.begin + seconds, end=s.end + seconds) for s in self.spans]
        sends = [msgspec.structs.replace(a, sent=a.sent + seconds) for a in self.sends]
        arrivals = [msgspec.structs.replace(a, sent=a.sent + seconds) for a in self.arrivals]
        return RoleTimeline(spans, sends, arrivals, self.who, self.machine, self.zero)

    @property
    def full(self) -> bool:
        return len(self.spans) + len(self.sends) + len(self.arrivals) >= MOST


class Recorder(Instrument):
    """Writes down what happens, as long as there is room."""

    def __init__(self) -> None:
        self.lane = RoleTimeline()

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if sender != to and not self.lane.full:
            self.lane.sends.append(Arrow(str(sender), str(to), _short(message), size, at))

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if sender != to and not self.lane.full:
            self.lane.arrivals.append(Arrow(str(sender), str(to), _short(message), size, at, at))

    def computed(self, begin: float, end: float, who: Address) -> None:
        if not self.lane.full:
            self.lane.spans.append(TimeSpan(str(who), "", begin, end))

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        if end - begin > SHORT and not self.lane.full:
            self.lane.spans.append(TimeSpan(str(who), what, begin, end))


class RecordingTeller(Teller):
    """A teller that writes down what it hears, too."""

    explains = True

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        super().sent(at, sender, to, message, size)
        self.recorder.sent(at, sender, to, message, size)

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.recorder.delivered(at, sender, to, message, size)

    def computed(self, begin: float, end: float, who: Address) -> None:
        super().computed(begin, end, who)
        self.recorder.computed(begin, end, who)

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        super().waited(begin, end, who, what, wire)
        self.recorder.waited(begin, end, who, what, wire)


def lateness(lanes: Sequence[RoleTimeline]) -> dict[str, float]:
    """How much later the clock of each role began than the first one of its machine; 0 where that is not known."""
    first: dict[str, float] = {}
    for lane in lanes:
        first[lane.machine] = min(lane.zero, first.get(lane.machine, lane.zero))
    return {lane.who: lane.zero - first[lane.machine] if lane.machine else 0.0 for lane in lanes}


def joined(
    lanes: Sequence[RoleTimeline], roles: Sequence[Address], strategy: str = "", engine: str = "",
    ops: Mapping[str, RoleOps] | None = None,
) -> Recording:  # fmt: skip
    """One recording of what several recorders saw: each message's sending meets its arrival, in order by kind.

    Roles of one machine are aligned by its clock.
    """
    late = lateness(lanes)
    lanes = [lane.later(late[lane.who]) for lane in lanes]
    arrivals: dict[tuple[str, str, str], deque[float]] = defaultdict(deque)
    for arrow in sorted((a for lane in lanes for a in lane.arrivals), key=lambda arrow: arrow.sent):
        arrivals[arrow.sender, arrow.to, arrow.kind].append(arrow.sent)
    arrows = []
    for arrow in sorted((a for lane in lanes for a in lane.sends), key=lambda arrow: arrow.sent):
        waiting = arrivals[arrow.sender, arrow.to, arrow.kind]
        arrived = max(waiting.popleft(), arrow.sent) if waiting else None
        arrows.append(msgspec.structs.replace(arrow, arrived=arrived))
    spans = sorted((s for lane in lanes for s in lane.spans), key=lambda span: (span.begin, span.end))
    found = Recording(strategy=strategy, engine=engine, roles=[str(who) for who in roles], spans=spans, arrows=arrows)
    if ops is not None:
        found.ops = [op for who, of_role in ops.items() for op in of_role.of(who, late.get(who, 0.0))]
    return found


def _short(message: Message) -> str:
    return type(message).__name__
