"""What could be run here? Everything that the catalog holds and that the task and the cluster allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.optim import Optimizer

from covey import registry
from covey.advise import codecs, rules
from covey.advise.codecs import CodecOffer
from covey.advise.predict import Load, period
from covey.advise.rules import Suitability
from covey.advise.situation import Situation
from covey.catalog import STRATEGIES, resolve
from covey.errors import PlanError
from covey.model import build
from covey.run.checks import why_not_continue, why_stuck
from covey.strategy import Role, Strategy
from covey.task import Task

ALONE = "local_sgd"  # with one worker: plain training, as without covey
SYNCHRONOUS = "allreduce"  # the same, for models that need workers that take each step together


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy that can run here, with what the rules say of it."""

    spec: str
    strategy: Strategy
    verdicts: tuple[Suitability, ...] = ()
    offer: CodecOffer | None = None  # what a codec does for it, or would

    @property
    def mathematics(self) -> str:
        """What its learning curve depends on: the same for strategies that make the same updates."""
        entry = STRATEGIES.get(self.strategy.name)
        plain = self.strategy.composition.codec.traits.plain
        return entry.mathematics if entry and entry.mathematics and plain else self.strategy.text

    @property
    def shares(self) -> bool:
        """Whether other strategies have the same mathematics."""
        return self.mathematics != self.strategy.text

    @property
    def compression(self) -> list[str]:
        """What is to be said of codecs, where it may have one."""
        mine = self.strategy.composition.codec
        known = self.offer if mine.traits.plain or (self.offer and mine.name == self.offer.codec) else None
        return [known.words(coded=not mine.traits.plain)] if known else []

    @property
    def risks(self) -> list[str]:
        return [verdict.reason for verdict in self.verdicts if not verdict.ok]


def candidates(task: Task, now: Situation) -> Iterator[Candidate]:
    """Each strategy of the catalog as it trains a small task and with the settings that its entry names.

    Where codecs pay, also with the one that loses least and with the quickest.
    """
    registry.search()
    usual = {name: entry for name, entry in STRATEGIES.items() if not entry.unadvised}
    optimizer = build.optimizer(task)
    for spec in (spec for name, entry in usual.items() for spec in (entry.example or name, *entry.tries)):
        if plain := _candidate(spec, task, optimizer, now):
            found = codecs.offer(spec, now)
            yield replace(plain, offer=found)
            for codec in filter(None, (found.codec, found.quickest)) if found and found.pays else ():
                if coded := _candidate(f"{spec} + {codec}", task, optimizer, now):
                    yield replace(coded, offer=found)


def _candidate(spec: str, task: Task, optimizer: Optimizer, now: Situation) -> Candidate | None:
    """The strategy, if it can run here."""
    try:
        strategy = resolve(spec, now.workers)
        roles = strategy.layout(now.workers, None)
        if strategy.terms.accept:
            strategy.terms.accept(optimizer)
        if task.clip_norm is not None:
            strategy.check_clip(strategy.servers.count)
    except PlanError:
        return None
    if strategy.taxonomy.architecture == "memory" and not now.one_machine:
        return None
    if now.spot and not _comes_and_goes(strategy, roles, task):
        return None
    verdicts = tuple(judge(strategy, now))
    kept = all(verdict.ok for verdict in verdicts[:MUST])
    return Candidate(spec=spec, strategy=strategy, verdicts=verdicts) if kept else None


def _comes_and_goes(strategy: Strategy, roles: Sequence[Role], task: Task) -> bool:
    """Whether a range of workers of this strategy goes on when some are lost."""
    free = strategy.ranges and not strategy.terms.chooses
    return free and not why_not_continue(strategy, roles) and not why_stuck(task, strategy, roles)


MUST = 3  # of the verdicts of `judge`: without these a strategy is no candidate


def judge(strategy: Strategy, now: Situation) -> Iterator[Suitability]:
    """What the survey's rules say of a strategy here; the first ones must hold."""
    place = strategy.taxonomy
    together = place.scheduling == "synchronous"
    yield rules.repeatable(now.reproducible, together)
    yield rules.exactly_once(now.once, strategy.description.samples)
    yield rules.decentral_fits(now.model, now.state, now.memory)
    if place.optimization == "decentral" or not together:
        yield rules.large_balanced(now.samples, now.workers, now.batch, now.skew)
    yield rules.holds_together(now.spread, place.scheduling, now.spot)
    yield rules.statistics_hold(now.normalized, now.batch)
    if place.architecture == "server" and not together:
        part = now.model / (now.server_rate(strategy.servers.count) * max(1, strategy.servers.count))
        yield rules.server_keeps_up(now.workers, part, now.cluster.update * now.model, now.compute * period(strategy))
    if not strategy.composition.codec.traits.plain:
        load, n = Load.of(strategy, now), now.workers
        gathers = "all-" in place.exchange and not load.codec.traits.summable
        gathered, summed = ((n - 1) * load.size, 2 * (n - 1) / n * now.model) if gathers else (0.0, 0.0)
        yield rules.combines(load.codec.name, gathered, summed, load.codec.traits.feedback == "own", now.spot)
