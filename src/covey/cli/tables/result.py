"""The result of a run as a table on the output."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TypeGuard

from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.cli.progress.run_history import number
from covey.observe import choices
from covey.observe.membership import MembershipEvent, RunCost
from covey.observe.progress import Row
from covey.observe.result import Result, TimeShares
from covey.simulate.units import format_bytes, format_duration
from covey.target import Target, parse_target

BAR = 16  # characters of a role's bar
ROLES = 16  # more roles than this are shown by their kind
REASONS = 3  # for which rounds were not committed: as many are shown
CHANGES = 6  # of the workers that are there: as many are shown
_SHADES = (("compute", "█", "#", "green"), ("exchange", "▒", "=", "yellow"), ("waiting", "░", ".", "red"))


def print_result(
    console: Console, result: Result, until: str | None, files: Mapping[str, Path | None], *, everything: bool = False
) -> None:
    """Print why a run stopped, how good and how fast it was, what it sent, how each role spent its time."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(result, parse_target(until) if until else None, files):
        facts.add_row(name, value)
    console.print(facts)
    if result.roles:
        console.print()
        console.print(_roles(result.roles, everything, ascii_only=console.options.ascii_only))


def _facts(result: Result, target: Target | None, files: Mapping[str, Path | None]) -> Iterable[tuple[str, Text]]:
    yield "strategy", Text(f"{result.strategy}, {_who(result)}", "bold")
    yield "stopped", _stopped(result)
    if target:
        yield "target", _reached(result, target)
    if scores := _scores(result.history):
        untold = "not told (dp)" if result.privacy and result.privacy.delta is not None else "nan"
        shown = {name: untold if math.isnan(value) else number(value) for name, value in scores.items()}
        yield "final", Text("  ".join(f"{name} {value}" for name, value in shown.items()))
    if result.best:
        when = f"after {format_duration(result.best.seconds)} and {result.best.samples:,} samples"
        yield "best", Text(f"{result.best.metric} {number(result.best.value)}, {when}")
    yield "speed", Text(_speed(result))
    yield "traffic", Text(_traffic(result))
    yield from _read(result.notes)
    if chosen := _chosen(result):
        yield "codec", Text(chosen)
    if result.staleness.mean is not None:
        yield "staleness", Text(f"mean {result.staleness.mean:.2f}, max {result.staleness.max}")
    yield from _participation(result)
    yield from _privacy(result)
    yield from _membership(result)
    if result.cost:
        yield "cost", Text(_cost(result.cost))
    for failure in result.failures:
        yield "failure", Text(failure, "red")
    for name, path in files.items():
        if path is not None and str(path) != "-":
            yield name, Text(str(path))


def _membership(result: Result) -> Iterable[tuple[str, Text]]:
    if not result.membership or not result.goodput:
        return
    restarts = sum(event.event in ("restart", "rebirth") for event in result.membership)
    yield "restarts", Text(f"{restarts}; {result.goodput.ratio:.1%} of the work counts")
    if changes := _changes(result.membership):
        yield "workers", Text(changes)


def _cost(cost: RunCost) -> str:
    each = f", {cost.per_million:.3g} for a million samples" if cost.per_million is not None else ""
    return f"{cost.money:.3g} for {format_duration(cost.hours * 3600)} of all workers{each}"


def _changes(events: Iterable[MembershipEvent]) -> str:
    """Who came and went, and how many workers there were then."""
    words = {"leave": "left", "join": "joined"}
    told = [
        f"{event.who} {words[event.event]} after {format_duration(event.seconds)} ({event.workers} workers)"
        for event in events
        if event.event in words
    ]
    return "; ".join(told[:CHANGES]) + (f"; and {len(told) - CHANGES} more" if len(told) > CHANGES else "")


def _participation(result: Result) -> Iterable[tuple[str, Text]]:
    if not result.participation:
        return
    told = result.participation
    states = Counter[str]()
    for record in told.rounds:
        states[record.state] += record.tries
    uncommitted = "".join(f", {states[state]:,} {state}" for state in ("abandoned", "not begun") if states[state])
    lost = f", {told.drop_out:.1%} of those chosen dropped out" if told.drop_out else ""
    begun = [record for record in told.rounds if record.state != "not begun"]
    each = f"; a round took {format_duration(median(one.took for one in begun))} (median)" if begun else ""
    yield "rounds", Text(f"{told.committed:,} committed{uncommitted}{each}")
    reasons = Counter[tuple[str, str]]()
    for record in told.rounds:
        if record.why:
            reasons[record.state, record.why] += record.tries
    for (state, why), count in reasons.most_common(REASONS):
        yield state, Text(f"{_count(count, 'round')}: {why}", "yellow")
    there = [record.there for record in told.rounds if record.there]
    seen = f"; {min(there):,} to {max(there):,} were there" if there and min(there) < max(there) else ""
    yield "clients", Text(f"{told.took_part:,} of {told.clients:,} took part{lost}{seen}")


def _privacy(result: Result) -> Iterable[tuple[str, Text]]:
    """What was spent, and what was hidden."""
    if not (told := result.privacy):
        return
    parts = []
    if told.secure_sums:
        smallest = f"the service saw sums of reports only (smallest sum: {told.smallest_sum} clients)"
        parts.append(smallest if told.smallest_sum else "no sum of reports was opened")
    if told.delta is not None:
        spent = "unlimited (no noise)" if told.epsilon is None or math.isinf(told.epsilon) else f"{told.epsilon:.3g}"
        limit = f" of {told.limit:g}" if told.limit is not None else ""
        parts.append(f"epsilon {spent}{limit} spent at delta {told.delta:g}, noise {told.noise:.3g}")
    yield "privacy", Text("; ".join([*parts, f"chance from {told.randomness}"]))


def _who(result: Result) -> str:
    if result.participation:
        return f"{_count(result.workers, 'client')}, {result.engine}"
    servers = f" and {_count(result.servers, 'server')}" if result.servers else ""
    return f"{_count(result.workers, 'worker')}{servers}, {result.engine}"


def _stopped(result: Result) -> Text:
    if result.stopped == "interrupted":
        return Text("interrupted; this is how far it came", "yellow")
    words = {
        "target": "the target was reached", "patience": "the metric did not get better any more",
        "privacy": "the privacy budget is spent", "declined": "clients declined the terms of secure sums",
    }
    return Text(words.get(result.stopped, "it ran to the end"))


def _reached(result: Result, target: Target) -> Text:
    """When the target was reached, or how near the run came."""
    if result.reached and not result.reached.samples:
        return Text(f"{target} is met by the initial weights: nothing was trained", "bold yellow")
    if result.reached:
        when = f"{format_duration(result.reached.seconds)} and {result.reached.samples:,} samples"
        return Text(f"{target} reached after {when}", "bold green")
    scored = [(value, row) for row in result.history if _finite(value := row.get(target.metric))]
    if not scored:
        return Text(f"{target} NOT reached: the model was never scored", "bold yellow")
    best, row = (max if target.op == ">=" else min)(scored, key=lambda pair: pair[0])
    when = format_duration(row["seconds"] or 0)
    return Text(f"{target} NOT reached: the best was {number(best)}, after {when}", "bold yellow")


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _scores(history: list[Row]) -> dict[str, float]:
    """The last value of every metric."""
    last = history[-1] if history else {}
    counted = ("seconds", "samples", "bytes")
    return {name: value for name, value in last.items() if name not in counted and value is not None}


def _speed(result: Result) -> str:
    virtual = " of virtual time" if result.engine.startswith("simulated") else ""
    speed = f"{result.samples / result.seconds:,.0f} samples/s: " if result.seconds else ""
    updates = _count(result.updates, "update")
    return f"{speed}{result.samples:,} samples in {format_duration(result.seconds)}{virtual}, {updates}"


def _traffic(result: Result) -> str:
    traffic = result.traffic
    if not traffic.messages:
        return "nothing was sent"
    pairs = "".join(f"\n{pair} {format_bytes(size)}" for pair, size in traffic.by_role.items())
    return f"{format_bytes(traffic.bytes)} in {_count(traffic.messages, 'message')}{pairs}"


def _read(notes: Mapping[str, float | None]) -> Iterable[tuple[str, Text]]:
    """Where the bytes of far data came from."""
    sizes = {"the store": "backend bytes", "other hosts": "peer bytes", "the cache": "cached bytes"}
    told = [f"{format_bytes(int(notes[name] or 0))} from {where}" for where, name in sizes.items() if name in notes]
    if told:
        yield "data", Text(", ".join(told))


def _chosen(result: Result) -> str:
    """What `auto` chose, and how long an exchange was with it and without."""
    lines = []
    for one in choices.chosen(result.notes):
        what = f"{one.what}: " if one.what else ""
        took, plain = format_duration(one.seconds), format_duration(one.plain)
        if one.codec == choices.PLAIN:
            lines.append(f"{what}auto found none that pays: plain numbers, {took} an exchange")
        else:
            lines.append(f"{what}auto chose {one.codec}: {took} an exchange, plain {plain}")
    return "\n".join(lines)


def _roles(roles: Mapping[str, TimeShares], everything: bool, ascii_only: bool) -> Table:
    """One bar for each role, or for each kind of role where there are many."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    marks = [f"{mark if ascii_only else block} {name}" for name, block, mark, _ in _SHADES]
    table.add_row("", "time spent", *marks, "memory", style="dim")
    for name, shares in (roles if everything or len(roles) <= ROLES else by_kind(roles)).items():
        percents = (f"{share:.0%}" for share in (shares.compute, shares.exchange, shares.waiting))
        memory = format_bytes(shares.memory) if shares.memory else ""
        table.add_row(name, bar(shares, ascii_only), *percents, memory)
    return table


def by_kind(roles: Mapping[str, TimeShares]) -> dict[str, TimeShares]:
    """The mean of all roles of a kind, and of each kind the one that waits most."""
    kinds: dict[str, dict[str, TimeShares]] = defaultdict(dict)
    for name, shares in roles.items():
        kinds[name.rpartition(" ")[0]][name] = shares
    rows: dict[str, TimeShares] = {}
    for kind, members in kinds.items():
        if len(members) == 1:
            rows.update(members)
            continue
        rows[f"all {len(members):,} {kind}s"] = _mean(list(members.values()))
        most = max(members, key=lambda name: members[name].waiting)
        rows[f"idlest: {most}"] = members[most]
    return rows


def bar(shares: TimeShares, ascii_only: bool = False) -> Text:
    """A role's time as a bar: what it computed, exchanged, waited."""
    text, begin, end = Text(), 0, 0.0
    for name, block, mark, color in _SHADES:
        end += getattr(shares, name)
        until = min(BAR, round(end * BAR))
        text.append((mark if ascii_only else block) * (until - begin), color)
        begin = max(begin, until)
    return text


def _mean(many: list[TimeShares]) -> TimeShares:
    compute, exchange, waiting = (
        sum(getattr(shares, name) for shares in many) / len(many) for name in ("compute", "exchange", "waiting")
    )
    return TimeShares(compute=compute, exchange=exchange, waiting=waiting, memory=max(shares.memory for shares in many))


def _count(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"
