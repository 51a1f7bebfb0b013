"""What every strategy and every codec keeps. Each law gives the reason why it is broken, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial

import torch
from torch import nn

from covey import catalog
from covey.check.unread import watched
from covey.exchange.codec import Codec, Coder, Memory
from covey.message import Address, Message
from covey.model.flat import Form
from covey.observe.instruments import Instrument
from covey.observe.trace import Trace
from covey.registry import STRATEGIES
from covey.run import fit as fit_anywhere
from covey.simulate import Cluster, Seconds
from covey.strategy import CountedRun, TrafficFormula
from covey.task import Task
from covey.vector import Vector

WORKERS = 4
fit = partial(fit_anywhere, engine="simulated", runs=False)
EVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 2.0})
STUCK = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 1000.0})
DRAWS = 300  # of a codec's chance, over which it has to be right
GIVEN = 100  # vectors, for error feedback
MESSAGES = 8  # words without numbers that may lie on a link


def task(samples: int = 97) -> Task:
    """A small one: of 97 samples worker 0 has 25, in 4 batches, and the others 24, in 3."""
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 6, dtype=torch.float64, generator=chance)
    y = (x @ torch.randn(6, 3, dtype=torch.float64, generator=chance)).argmax(1)
    return Task(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), data=(x, y),
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1), loss=nn.functional.cross_entropy, batch_size=8,
    )  # fmt: skip


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
    "one and two workers": works_alone, "bounded while a worker is stuck": bounded,
    "bytes as declared": bytes_as_declared,
}  # fmt: skip


# -- codecs ------------------------------------------------------------------------------------------------------------


def vector(seed: int, dtype: torch.dtype = torch.float32) -> Vector:
    chance = torch.Generator().manual_seed(seed)
    return Vector([torch.randn(37, generator=chance).to(dtype), torch.randn(5, generator=chance).to(dtype)])


def comes_back_in_its_form(codec: Codec) -> str:
    """What is decoded has the shapes and types of what was encoded, and finite numbers; what was given is unchanged."""
    for dtype in (torch.float32, torch.float64):
        given = vector(1, dtype)
        before, coder = given.clone(), codec.made(Form.plain(given), 3)
        wire, _ = coder.encode(given, coder.memory)
        if not all(map(torch.equal, given.parts, before.parts)):
            return "encode changes the vector that it is given"
        back = coder.decode(wire).clone()
        given.zero_()
        if not codec.traits.plain and not all(map(torch.equal, coder.decode(wire).parts, back.parts)):
            return "what encode gives changes with the vector: copy what is sent"
        if not back.like(given):
            return f"decode gives {back} for {given}"
        if not back.finite():
            return "decode gives numbers that are not finite"
    return ""


def carries_on(codec: Codec) -> str:
    """With error feedback nothing is lost: of a vector that is given again and again most has arrived in the end."""
    if codec.traits.feedback == "none":
        return ""
    made, total, sent = codec.carrying(), vector(0).map(torch.zeros_like), vector(0).map(torch.zeros_like)
    coder: Coder = made.made(Form.plain(total), 3)
    memory: Memory = coder.memory
    for _ in range(GIVEN):
        given = vector(1) * 0.1  # small, for codecs that send a fixed amount
        wire, memory = coder.encode(given, memory)
        total.add_(given)
        sent.add_(coder.decode(wire))
    missing = (total - sent).norm() / total.norm()
    return "" if missing < 0.5 else f"after {GIVEN} steps {missing:.0%} of the sum never arrived"


def decoded_elsewhere(codec: Codec) -> str:
    """Another role decodes, with another seed: all that it needs travels."""
    if codec.traits.summable:
        return ""  # its coders agree on common numbers
    given, coders = vector(1), [codec.made(Form.plain(vector(1)), seed) for seed in (3, 4)]
    wire, _ = coders[0].encode(given, coders[0].memory)
    same = all(map(torch.equal, coders[0].decode(wire).parts, coders[1].decode(wire).parts))
    return "" if same else "decode uses the seed, which is another one where it runs: send what it needs"


def right_on_average(codec: Codec) -> str:
    """Without error feedback nothing is missing of what is decoded, on average."""
    if codec.traits.feedback != "none" or codec.traits.momentum == "own":
        return ""
    given, coder = vector(1), codec.made(Form.plain(vector(1)), 3)
    memory, total = coder.memory, vector(1).map(torch.zeros_like)
    for _ in range(DRAWS):
        wire, memory = coder.encode(given, memory)
        total.add_(coder.decode(wire), alpha=1 / DRAWS)
    missing = (given - total).norm() / given.norm()
    return "" if missing < 0.5 else f'{missing:.0%} of a vector never arrives: its traits need feedback="needed"'


def stateless_if_for_weights(codec: Codec) -> str:
    """A codec for weights remembers nothing and leaves nothing to chance."""
    if not codec.traits.weights:
        return ""
    given, coders = vector(1), [codec.made(Form.plain(vector(1)), seed) for seed in (3, 4)]
    wires = [coder.encode(given, coder.memory)[0] for coder in coders]
    if any(coder.memory is not None for coder in coders):
        return "weights=True, but its coders remember something"
    same = all(map(torch.equal, *(wire.parts for wire in wires)))
    return "" if same else "weights=True, but its wires differ with the seed"


def exact_if_it_says_so(codec: Codec) -> str:
    """A codec that is plain, or begins so, gives back the first vector as it was."""
    if not codec.traits.plain and not codec.traits.exact_start:
        return ""
    given, coder = vector(1), codec.made(Form.plain(vector(1)), 3)
    back = coder.decode(coder.encode(given, coder.memory)[0])
    same = all(map(torch.equal, back.parts, given.parts))
    return "" if same else "plain=True or exact_start=True, but the first vector comes back changed"


def size_is_told(codec: Codec) -> str:
    """`nbytes` is about what travels."""
    given = vector(1)
    form = Form.plain(given)
    coder = codec.made(form, 3)
    size, told = coder.encode(given, coder.memory)[0].nbytes, codec.nbytes(form)
    return "" if abs(size - told) <= max(16, 0.5 * size) else f"{size} bytes travel, nbytes says {told:g}"


def adds_if_it_says_so(codec: Codec) -> str:
    """Coders of a summable codec have `total`, and no others."""
    has = codec.made(Form.plain(vector(1)), 3).total is not None
    told = codec.traits.summable
    return "" if has == told else f"summable={told}, but its coders have {'a' if has else 'no'} total"


CODEC_LAWS: Mapping[str, Callable[[Codec], str]] = {
    "comes back in its form": comes_back_in_its_form, "nothing is lost": carries_on, "size is told": size_is_told,
    "summable if it says so": adds_if_it_says_so, "right on average": right_on_average,
    "decoded elsewhere": decoded_elsewhere,
    "exact if it says so": exact_if_it_says_so, "stateless if for weights": stateless_if_for_weights,
}  # fmt: skip
