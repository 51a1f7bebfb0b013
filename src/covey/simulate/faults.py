"""A plan of faults: what goes wrong with whom, and when. It is written as text, or drawn from a seed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, get_args

from covey.decoding import named_text
from covey.errors import PlanError, WireError
from covey.simulate.cluster import Host, parse_host
from covey.simulate.units import AT_ONCE, Seconds, parse_duration

FaultKind = Literal[
    "kill", "stop", "notice", "partition", "delay", "drop", "duplicate", "slow", "disk full", "leave", "join"
]  # fmt: skip

FORMS: Mapping[FaultKind, str] = {
    "kill": "kill worker 1@5s",
    "stop": "stop worker 1@5s for 200ms",
    "notice": "notice worker 1@5s for 30s",
    "partition": "partition worker 0 and worker 1@5s for 2s",
    "delay": "delay worker 1 -> server 0@5s by 50ms",
    "drop": "drop worker 1 -> server 0@5s",
    "duplicate": "duplicate worker 1 -> server 0@5s",
    "slow": "slow worker 1@5s for 2s by 4x",
    "disk full": "disk full@5s for 2s",
    "leave": "leave worker 1@5s",
    "join": "join worker 1@8s",
}
"""How each kind of fault is written; `#37` in place of `@5s` means the role's 37th effect."""

MAY_LAST: tuple[FaultKind, ...] = ("kill",)  # for how long a lost role is away may be left open
ON_LINKS: frozenset[FaultKind] = frozenset({"delay", "drop", "duplicate"})
OF_SEATS: tuple[FaultKind, ...] = ("leave", "join")  # where workers come and go
DRAWN: tuple[FaultKind, ...] = tuple(kind for kind in FORMS if kind not in OF_SEATS)
SILENCE = Seconds(30.0)  # after which a role that cannot be heard counts as lost

_FAULT = re.compile(
    rf"(?P<kind>{'|'.join(get_args(FaultKind))})\b *(?P<who>[^@#]*?) *(?:@ *(?P<at>\S+)|# *(?P<effect>[0-9]{{1,9}}))"
    r"(?: +for +(?P<lasts>\S+))?(?: +by +(?P<by>\S+))?"
)
_FACTOR = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x?")
_SEEDS = re.compile(r"(?P<first>[0-9]{1,12})(?:\.\.(?P<last>[0-9]{1,12}))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that goes wrong: at a time, or at the `effect`-th effect of the first role that it names."""

    kind: FaultKind
    who: tuple[Host, ...] = ()  # of a fault on a link: its sender and its receiver
    at: Seconds | None = None
    effect: int | None = None
    lasts: Seconds = AT_ONCE
    by: float = 0.0  # seconds of a delay, or the factor of a slow worker
    optional: bool = False  # the run may well end before it

    def __str__(self) -> str:
        between = " -> " if self.kind in ON_LINKS else " and "
        who = f" {between.join(self.who)}" if self.who else ""
        when = f"@{_short(self.at)}" if self.at is not None else f"#{self.effect}"
        amount = f"{self.by:g}x" if self.kind == "slow" else _short(self.by)
        lasts, by = f" for {_short(self.lasts)}" if self.lasts else "", f" by {amount}" if self.by else ""
        return f"{self.kind}{who}{when}{lasts}{by}"

    def check(self, roles: Collection[Host], trainers: Collection[Host]) -> None:
        """Refuse a fault of roles that the run does not have, or that could not do anything to it."""
        for host in self.who:
            if host not in roles:
                raise PlanError(f"'{self}': there is no such role; this run has {', '.join(roles)}")
        if self.kind in OF_SEATS and self.who[0] not in trainers:
            raise PlanError(f"'{self}': only workers come and go: name one of {', '.join(trainers)}")
        if self.kind == "join" and self.at is None:
            raise PlanError(f"'{self}': who is not there has no effects: give a time, as in '{FORMS['join']}'")
        if self.kind == "slow" and self.who[0] not in trainers:
            raise PlanError(f"'{self}': only workers compute batches; slow one of {', '.join(trainers)}")
        if self.kind == "partition" and set(self.who) == set(roles):
            raise PlanError(f"'{self}': all roles are on one side, so nothing is cut; name only some of them")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of a run."""

    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))

    def __bool__(self) -> bool:
        return bool(self.faults)

    @property
    def absent(self) -> list[Host]:
        """Those who join before they leave: their seats are empty when the run begins."""
        of_seats: dict[Host, list[Fault]] = {}
        for fault in self.faults:
            if fault.kind in OF_SEATS or fault.kind == "notice":
                of_seats.setdefault(fault.who[0], []).append(fault)
        return [host for host, faults in of_seats.items() if _first(faults).kind == "join"]

    def check(self, roles: Collection[Host], trainers: Collection[Host]) -> None:
        """Refuse a plan that does not fit the roles of a run."""
        for fault in self.faults:
            fault.check(roles, trainers)


def _first(faults: Sequence[Fault]) -> Fault:
    """The earliest fault; where one has no time, the order in which they are written says which that is."""
    return faults[0] if any(fault.at is None for fault in faults) else min(faults, key=lambda fault: fault.at or 0.0)


def parse_faults(text: str) -> FaultPlan:
    """The plan that a text describes: faults between semicolons or on lines; lines that begin with # are comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    items = [item.strip() for line in lines for item in line.split(";")]
    if not any(items):
        raise PlanError(f"--faults {text!r} has no fault in it; write for example '{FORMS['kill']}'")
    return FaultPlan(tuple(_fault(item) for item in items if item))


def parse_seeds(text: str) -> range | None:
    """The seeds that a text names, such as 17 or 0..9999; None where it is something else."""
    match = _SEEDS.fullmatch(text.strip())
    if match is None:
        return None
    first, last = int(match["first"]), int(match["last"] or match["first"])
    if last < first:
        raise PlanError(f"--faults {text}: the first seed comes first; write {last}..{first}")
    return range(first, last + 1)


def read_faults(text: str) -> FaultPlan | range:
    """What `--faults` was given: a seed or a range of seeds, a plan, or a file that contains one."""
    seeds = parse_seeds(text)
    if seeds is not None:
        return seeds
    try:
        is_file = "\n" not in text and os.path.exists(text)  # a long plan is no name of a file
        return parse_faults(named_text(Path(text)) if is_file else text)
    except (OSError, UnicodeDecodeError, WireError) as error:
        raise PlanError(f"--faults {text}: the file cannot be read: {error}") from None


def _fault(text: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None:
        meant = next((form for kind, form in FORMS.items() if text.startswith(kind)), None)
        how = f"write it like '{meant}'" if meant else f"the faults are {', '.join(FORMS)}, as '{FORMS['kill']}'"
        raise PlanError(f"cannot read the fault {text!r}: {how}")
    kind = next(kind for kind in FORMS if kind == match["kind"])
    form = FORMS[kind]
    fault = Fault(
        kind=kind, who=_who(kind, match["who"], text), at=parse_duration(match["at"]) if match["at"] else None,
        effect=int(match["effect"]) if match["effect"] else None,
        lasts=parse_duration(match["lasts"]) if match["lasts"] else AT_ONCE, by=_amount(kind, match["by"], text),
    )  # fmt: skip
    if (bool(fault.lasts) != (" for " in form) and kind not in MAY_LAST) or bool(fault.by) != (" by " in form):
        raise PlanError(f"cannot read the fault {text!r}: write it like '{form}'")
    if fault.effect == 0 or (kind == "disk full" and fault.effect):
        raise PlanError(f"cannot read the fault {text!r}: effects of a role are counted from 1, as in '{form}'")
    return fault


def _who(kind: FaultKind, text: str, whole: str) -> tuple[Host, ...]:
    if kind == "disk full":
        names = [text] if text else []
    elif kind in ON_LINKS:
        names = text.split("->")
    else:
        names = text.split(" and ") if kind == "partition" else [text]
    wanted = 0 if kind == "disk full" else 2 if kind in ON_LINKS else len(names) if kind == "partition" else 1
    if len(names) != wanted:
        raise PlanError(f"cannot read the fault {whole!r}: write it like '{FORMS[kind]}'")
    found = tuple(map(parse_host, names))
    if len(set(found)) < len(found):
        raise PlanError(f"the fault {whole!r} names {found[0]} twice; write it like '{FORMS[kind]}'")
    return found


def _amount(kind: FaultKind, text: str | None, whole: str) -> float:
    if text is None:
        return 0.0
    if kind != "slow":
        return parse_duration(text)
    match = _FACTOR.fullmatch(text)
    if match is None or float(match[1]) <= 1:
        raise PlanError(f"cannot read the fault {whole!r}: write how many times slower, as in '{FORMS['slow']}'")
    return float(match[1])


def _short(seconds: float) -> str:
    """A time that is read as exactly this one."""
    short = f"{seconds * 1000:.9g}ms" if seconds < 1 else f"{seconds:.9g}s"
    return short if parse_duration(short) == seconds else f"{seconds!r}s"


# -- plans from a seed ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsedRun:
    """What is known of a run after it was done once without faults: where faults can strike."""

    seconds: float
    effects: Mapping[Host, int]  # how many each role performed
    trainers: Sequence[Host]
    links: Sequence[tuple[Host, Host]] = field(default_factory=list)  # that carried messages
    restarted: bool = False  # lost roles are restarted, after a time that is drawn


def draw(seed: int, run: RehearsedRun, among: Iterable[FaultKind] = DRAWN) -> FaultPlan:
    """One to four faults of these kinds for this run; the same seed and run give the same plan.

    Where not all kinds are drawn from, only workers are killed.
    """
    chance, kinds = Random(f"faults/{seed}"), [kind for kind in among if run.links or kind not in ON_LINKS]
    plan = FaultPlan(tuple(_drawn(chance, run, chance.choice(kinds)) for _ in range(chance.randint(1, 4))))
    some = not {*DRAWN} - ON_LINKS <= {*kinds}
    return plan if not some else FaultPlan(tuple(_of_worker(fault, run, chance) for fault in plan.faults))


def _of_worker(fault: Fault, run: RehearsedRun, chance: Random) -> Fault:
    """The same fault, or where another role would be killed, of a worker."""
    spared = fault.kind == "kill" and fault.who[0] not in run.trainers
    return replace(fault, who=(chance.choice(run.trainers),)) if spared else fault


def _drawn(chance: Random, run: RehearsedRun, kind: FaultKind) -> Fault:
    roles, length = list(run.effects), Seconds(round(run.seconds * chance.uniform(0.02, 0.3), 6))
    who: tuple[Host, ...] = (chance.choice(roles),)
    if kind in ON_LINKS:
        who = chance.choice(run.links)
    elif kind == "slow":
        who = (chance.choice(run.trainers),)
    elif kind in OF_SEATS:  # the first worker stays
        who = (chance.choice(run.trainers[1:] or run.trainers),)
    elif kind == "partition" and len(roles) > 2:
        who = tuple(chance.sample(roles, chance.randint(1, len(roles) - 1)))
    elif kind == "disk full":
        who = ()
    at, effect = Seconds(round(run.seconds * chance.random(), 6)), chance.random() < 0.5
    number = chance.randint(1, max(1, run.effects[who[0]])) if who and effect and kind != "join" else None
    lasting = kind in ("stop", "notice", "partition", "slow", "disk full") or (kind == "kill" and run.restarted)
    by = {"delay": float(length), "slow": float(chance.randint(2, 8))}.get(kind, 0.0)
    return Fault(
        kind=kind, who=who, at=None if number else at, effect=number, lasts=length if lasting else AT_ONCE, by=by
    )  # fmt: skip


def reduced(plan: FaultPlan, fails: Callable[[FaultPlan], bool], most: int = 12) -> FaultPlan:
    """The plan without the faults that it does not need to fail; asks at most this many times."""
    tries = 0
    smaller = True
    while smaller and len(plan.faults) > 1:
        smaller = False
        for place in range(len(plan.faults)):
            rest = FaultPlan(plan.faults[:place] + plan.faults[place + 1 :])
            tries += 1
            if tries > most:
                return plan
            if fails(rest):
                plan, smaller = rest, True
                break
    return plan
