"""What the numbers say, in plain words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from covey.advise.codecs import CodecOffer
from covey.advise.predict import StepTime
from covey.advise.ranked import RankedStrategy
from covey.advise.rules import bandwidth_poor
from covey.advise.situation import Situation
from covey.advise.trials.trial import SCORES
from covey.data.stripe_cache.expected_reads import FarData
from covey.simulate.backend import MOST_REQUESTS
from covey.simulate.units import format_bytes, format_duration, format_rate

IDLE = 0.1  # a share of the step: below this the network is no bottleneck
HELPS = 1.1  # times: what speeds a step up by less is not told
MOST_PREPARERS, WORTH = 16, 1.05  # tried; more are worth it if a step is shorter than this many times
STALE = 4.0  # updates: a gradient this old hurts
COMPRESSED = {"bsp": "where gradients go to a server", "allreduce": "where workers sum them"}
KEPT = "kept"  # the folder of checkpoints in commands
EVERY_STEP = ("allreduce", "bsp", "sliced")


def of(
    ranked: Sequence[RankedStrategy], now: Situation, steps: Mapping[str, StepTime],
    offers: Mapping[str, CodecOffer | None],
) -> list[str]:  # fmt: skip
    """The findings that hold here."""
    exchange = every_step(steps) or 0.0
    network = [*_data(ranked, now, exchange), *_reading(now, exchange), *_network(now, steps), *_compression(offers)]
    return [*_alone(ranked, now), *network, *_staleness(ranked), *_spread(now), *_spot(now)]


def _alone(ranked: Sequence[RankedStrategy], now: Situation) -> Iterator[str]:
    single = next(choice for choice in ranked if choice.workers == 1)
    best = next((choice for choice in ranked if choice.workers > 1), None)
    if best is None:
        return
    gain = single.relative / best.relative
    if gain <= 1:
        yield f"One worker alone is faster than {now.workers}: they would take {1 / gain:.2f} times as long."
    elif gain < 1.2:
        yield f"{now.workers} workers are only {gain:.2f} times as fast as one alone: hardly worth it."
    else:
        yield f"{now.workers} workers are {gain:.1f} times as fast as one alone."


def _data(ranked: Sequence[RankedStrategy], now: Situation, exchange: float) -> Iterator[str]:
    """Where transforming samples takes longer than the network: how many preparers would help, and how much."""
    compute = now.cluster.compute
    network = exchange / (1 - exchange) * now.compute if exchange < 1 else math.inf
    if now.prepare <= max(network, IDLE * compute):
        return
    least = max(compute + network, now.workers * (compute + now.prepare) / now.cores)  # preparers need cores, too
    times = {count: max(least, now.workers * now.prepare / count) for count in range(1, MOST_PREPARERS + 1)}
    fewest = next(count for count, step in times.items() if step <= WORTH * min(times.values()))
    own = (compute + now.prepare) * max(1.0, now.workers / now.cores) + network
    gain = (max(least, now.prepared_every) if now.preparers else own) / times[fewest]
    if gain < HELPS:
        return
    took = f"transforming a batch takes {format_duration(now.prepare)}, computing it {format_duration(compute)}"
    roles = "1 preparer" if fewest == 1 else f"{fewest} preparers"
    yield f"Data, not the network, limits you: {took}; {roles} would give {gain:.1f}x{_with(ranked, now, fewest)}."


def _reading(now: Situation, exchange: float) -> Iterator[str]:
    """Where reading takes longer than the network: how long, and what would help."""
    network = exchange / (1 - exchange) * now.compute if exchange < 1 else math.inf
    read = now.far.seconds() if now.far else 0.0
    if now.far is None or read <= max(network, IDLE * now.cluster.compute):
        return
    rest = now.cluster.compute + network + (0.0 if now.preparers else now.prepare)

    def gain(other: FarData) -> float:
        return (rest + read) / (rest + other.seconds())

    known, most = now.far.backend, gain(now.far.on(requests=MOST_REQUESTS))
    fewest = next(count for count in range(1, MOST_REQUESTS + 1) if WORTH * gain(now.far.on(requests=count)) >= most)
    when = "you" if known.cache == "none" else "the first pass"
    took = f"reading a batch from the backend takes {format_duration(read)}, computing it"
    found = [f"Data, not the network, limits {when}: {took} {format_duration(now.cluster.compute)}"]
    if most >= HELPS:
        found.append(f"{fewest} requests at once would give {most:.1f}x")
    if known.cache == "none":
        found.append('with cache = "host" only the first pass reads from it')
    elif known.cache == "host" and now.far.hosts > 1 and (shared := gain(now.far.on(cache="hosts"))) >= HELPS:
        found.append(f"keepers, which read the set once for all hosts, would give {shared:.1f}x")
    elif most < HELPS:
        found.append("more requests would not help")
    yield f"{'; '.join(found)}."


def _with(ranked: Sequence[RankedStrategy], now: Situation, preparers: int) -> str:
    """The command of the best strategy with so many; workers that come and go transform their samples themselves."""
    best = next(iter(ranked), None)
    return f": {best.command} --preparers {preparers}" if best and not now.spot else ""


def _network(now: Situation, steps: Mapping[str, StepTime]) -> Iterator[str]:
    share = every_step(steps)
    if share is None:
        return
    poor = bandwidth_poor(share)
    state = "a bottleneck" if poor.ok else "no bottleneck" if share < IDLE else "hardly a bottleneck"
    subject = "Exchange between processes" if now.one_machine else "The network"
    rate = "" if now.one_machine else f" at {format_rate(now.narrowest)}"
    what = f"exchanging {format_bytes(now.model)}{rate} every step takes {share:.0%} of it"
    exchange = share / (1 - share) * now.compute if share < 1 else math.inf
    light = poor.ok and 2 * now.model / now.narrowest < exchange / 2  # there and back
    why = "its messages take that, not their bytes: exchange less often, or gossip" if light else poor.reason
    yield f"{subject} is {state}: {what}{f'; {why}' if share >= IDLE else ''}."


def every_step(steps: Mapping[str, StepTime]) -> float | None:
    """The share of a step that is exchange, where workers exchange at every step: that of the best. All is from it."""
    return min((steps[spec].share() for spec in EVERY_STEP if spec in steps), default=None)


def _compression(offers: Mapping[str, CodecOffer | None]) -> Iterator[str]:
    """Of gradients to a server and of sums, which is where most people begin."""
    for plain, what in COMPRESSED.items():
        found = offers.get(plain)
        if found is None:
            continue
        spec = f"'{plain} + {found.codec}'"
        if found.pays:
            yield f"Compression pays {what}: {spec} makes a step {found.change()}, and pays {found.where()}."
        else:
            words = f"{spec} would make a step {found.change()}; it would pay {found.where()}"
            yield f"Compression does not pay {what}: {words}."


def _staleness(ranked: Sequence[RankedStrategy]) -> Iterator[str]:
    old = max((choice for choice in ranked if choice.family == "central, asynchronous"), key=_age, default=None)
    if old is not None and _age(old) >= STALE:
        age = f"a gradient is about {_age(old):.0f} updates old when it is applied"
        yield f"Staleness would hurt: under {old.spec} {age}."


def _age(choice: RankedStrategy) -> float:
    return choice.staleness


def _spread(now: Situation) -> Iterator[str]:
    if now.spread >= 0.1:
        yield f"Step times differ by {now.spread:.0%} between workers: whoever waits for all waits for the slowest."


def _spot(now: Situation) -> Iterator[str]:
    if now.spot and now.workers > 1:
        flags = f"--engine ray --workers {now.least}:{now.workers} --on-failure continue"
        yield f"On several machines a range of workers goes on without those that vanish with {flags}."


def schedule(epochs: int, given: bool) -> str:
    """Over how many passes schedules were spread, where the task has any that follows the length of a run."""
    why = "as --epochs says" if given else "as a run with only --until does: give --epochs for another length"
    return f"The learning-rate schedule was spread over {epochs} passes, {why}."


def command(
    name: str, spec: str, workers: int, until: str | None, like: str, spot: bool = False, epochs: int | None = None,
    least: int | None = None,
) -> str:  # fmt: skip
    """What to type to run it for real, scored as often as in the trials; `like` holds further flags.

    On spot machines it survives the loss of one: with a range of workers, or, on a cluster, from a checkpoint.
    """
    ranged = spot and workers > 1 and "--engine" not in like
    many = f"{least or max(workers // 2, 1)}:{workers}" if ranged else str(workers)
    words = ["covey", "run", name, "--strategy", spec, "--workers", many]
    words += ["--on-failure", "continue"] if ranged else []
    words += ["--checkpoint", KEPT, "--on-failure", "restart"] if spot and not ranged else []
    words += ["--until", until, "--scores", str(SCORES)] if until else []
    words += ["--epochs", str(epochs)] if epochs else []
    return shlex.join(words) + (f" {like}" if like else "")


def about(now: Situation) -> str:
    """The situation in one line."""
    timed = "measured here" if now.measured else "as described"
    batch = f"a batch of {now.batch} takes {format_duration(now.compute)} ({timed})"
    links = f"links of {format_rate(now.narrowest)}" if not now.one_machine else "processes of this machine"
    return f"{now.workers} workers, {links}; the model has {format_bytes(now.model)}; {batch}"
