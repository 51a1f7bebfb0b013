"""What every strategy keeps. Each law gives the reason why it is broken, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial

from torch import nn

from covey import catalog
from covey.check.restart import same_after_a_restart
from covey.check.trial_task import EVEN, STUCK, UNEVEN, WORKERS, task
from covey.check.unread import watched
from covey.message import Address, Message
from covey.model import build
from covey.observe.instruments import Instrument
from covey.observe.trace import Trace
from covey.registry import STRATEGIES
from covey.run import fit as fit_anywhere
from covey.strategy import CountedRun, TrafficFormula
from covey.task import Task

fit = partial(fit_anywhere, engine="simulated", runs=False)
MESSAGES = 8  # words without numbers that may lie on a link


class Endings(Instrument):
    """Who ended, and what had been sent and delivered by then."""

    def __init__(self) -> None:
        self.sends: list[tuple[Message, int]] = []
        self.deliveries: list[Message] = []
        self.ends: list[Address] = []

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.sends.append((message, size))

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.deliveries.append(message)

    def ended(self, at: float, who: Address) -> None:
        self.ends.append(who)


class SentMessages(Instrument):
    """Every message that was sent, by its link."""

    def __init__(self) -> None:
        self.sends: list[tuple[str, type[Message], int]] = []

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.sends.append((f"{sender}->{to}", type(message), size))

    def counted(self, traffic: TrafficFormula, run: CountedRun) -> CountedRun:
        """The run with the messages of which no formula knows how many there are, or how large."""
        sizes = Counter[str]()
        for link, kind, size in self.sends:
            sizes[link] += size if kind in traffic.sized else 0
        counts = Counter(link for link, kind, _ in self.sends if kind in traffic.counted)
        return replace(run, counts=counts, sizes=+sizes)


def unfinished(
    ends: Iterable[Address], roles: Collection[str], sends: Iterable[tuple[Message, int]], arrived: Iterable[Message]
) -> str:
    """Whether every role ended, and nothing was on its way to one that had."""
    if sorted(map(str, ends)) != sorted(roles):
        return f"not every role ended: {', '.join(sorted(set(roles) - set(map(str, ends))))} did not"
    there = {id(message) for message in arrived}
    lost = next((message for message, size in sends if size and id(message) not in there), None)
    return f"a {type(lost).__name__} was on its way when its receiver had ended" if lost else ""


def same_seed_same_trace(spec: str) -> str:
    """Two runs in virtual time with one seed are the same, message by message and to the bit."""

    def once() -> tuple[str, str]:
        trace = Trace()
        result = fit(task(), spec, WORKERS, epochs=1, seed=7, cluster=UNEVEN, instruments=[trace])
        return trace.text(), result.to_json()

    (first, result), (second, again) = once(), once()
    if first == second and result == again:
        return ""
    pairs = zip(first.splitlines(), second.splitlines(), strict=False)
    differing = next((f"{one!r} and {other!r}" for one, other in pairs if one != other), "their results")
    return f"two runs with the same seed differ: {differing}; is anything drawn or read that the node does not give?"


def ends_with_uneven_shares(spec: str) -> str:
    """A worker with fewer batches than the others ends earlier; all roles end, and weights are finite."""
    for samples in (97, 101, 5):
        log = Endings()
        result = fit(task(samples), spec, WORKERS, epochs=2, cluster=UNEVEN, instruments=[log])
        if why := unfinished(log.ends, result.roles, log.sends, log.deliveries):
            return f"with {samples} samples for {WORKERS} workers {why}"
        if not all(value.isfinite().all() for value in result.weights.values()):
            return f"with {samples} samples for {WORKERS} workers the weights are not finite"
    return ""


def stands_still_without_gradients(spec: str) -> str:
    """All begin with one model: a mean of equal models is that model, so without gradients it stays what it was."""
    still = replace(task(), loss=lambda output, y: 0.0 * nn.functional.cross_entropy(output, y))
    result = fit(still, spec, WORKERS, epochs=2, seed=7, cluster=UNEVEN)
    begun = build.model(still, 7).state_dict()
    moved = max(float((result.weights[name] - begun[name]).abs().max()) for name in begun)
    if moved < 1e-6:
        return ""
    return f"models that begin equal and have no gradients end {moved:.2g} away: do the shares of a mean add up to 1?"


def ends_at_a_target(spec: str) -> str:
    """A target that is reached at once, in the middle of everything."""
    log = Endings()
    result = fit(task(), spec, WORKERS, until="loss<=100", cluster=UNEVEN, instruments=[log])
    return unfinished(log.ends, result.roles, log.sends, log.deliveries)


def works_alone(spec: str) -> str:
    """One worker and two workers train as well."""
    for workers in (1, 2):
        log = Endings()
        result = fit(task(), spec, workers, steps=7, cluster=EVEN, instruments=[log])
        if why := unfinished(log.ends, result.roles, log.sends, log.deliveries):
            return f"with {workers} workers {why}"
    return ""


def bounded(spec: str, most: int = 2, of: Task | None = None, workers: int = WORKERS) -> str:
    """With links that hold one message nobody deadlocks, and a stuck worker fills no memory."""
    waiting = watched(of or task(64), spec, workers, STUCK, window=1, steps=12)
    if waiting.bytes > most * waiting.largest:
        return f"while a worker is stuck {waiting.bytes} bytes lie on a link, more than {most} messages"
    return f"while a worker is stuck {waiting.messages} messages lie on a link" if waiting.messages > MESSAGES else ""


def settings_shown(spec: str) -> str:
    """Every setting is in the strategy's text, which names the same strategy again."""
    strategy = catalog.resolve(spec, WORKERS)
    if entry := STRATEGIES.get(strategy.name):
        hidden = [field.name for field in fields(entry.settings) if field.init and field.name not in strategy.settings]
        if hidden:
            return f"settings={{…}} of its Strategy lacks {', '.join(hidden)}"
        if not entry.about or entry.about.startswith(f"{entry.settings.__name__}("):
            return "it has no docstring, which `covey strategies` would show"
    again = catalog.resolve(strategy.text, WORKERS).text
    return "" if again == strategy.text else f"{strategy.text!r} reads back as {again!r}"


def bytes_as_declared(spec: str) -> str:
    """On every link there are the bytes that the entry's formula says, if it has one; a codec would change them."""
    asked = catalog.chosen(spec, WORKERS)
    entry = STRATEGIES.get(asked.strategy.name)
    if entry is None or entry.traffic is None or asked.codecs:
        return ""
    for workers in (2, WORKERS):
        result = fit(task(), spec, workers, steps=7, cluster=EVEN, instruments=[log := SentMessages()])
        numbers = sum(weight.numel() for weight in result.weights.values())
        settings = catalog.resolve(spec, workers).settings
        plain = CountedRun(workers=workers, steps=7, numbers=numbers, width=8, settings=settings)
        run = log.counted(entry.traffic, plain)
        links, said = result.traffic.by_link, entry.traffic.links(run)
        for link in sorted({*links, *said}):
            if links.get(link, 0) != said.get(link, 0):
                return (
                    f"with {workers} workers {links.get(link, 0)} bytes went {link} in {run.steps} steps of "
                    f"{run.model} bytes, and traffic=… says {said.get(link, 0)}"
                )
    return ""


STRATEGY_LAWS: Mapping[str, Callable[[str], str]] = {
    "settings shown": settings_shown, "same seed, same trace": same_seed_same_trace,
    "ends with uneven shares": ends_with_uneven_shares, "ends at a target": ends_at_a_target,
    "equal models stay equal": stands_still_without_gradients,
    "one and two workers": works_alone, "bounded while a worker is stuck": bounded,
    "bytes as declared": bytes_as_declared, "the same after a restart": same_after_a_restart,
}  # fmt: skip
