"""Whether a codec pays, estimated before a run as `+ auto` does in one: encode, send and decode, against plain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from covey.advise import predict
from covey.advise.situation import Situation, codec_options
from covey.catalog import resolve
from covey.errors import PlanError
from covey.exchange.codec_costs import WORTH, best
from covey.simulate import BytesPerSecond, Link, format_rate
from covey.strategy import Strategy

WIDEST = 1e6  # times the links that there are, and as much narrower: further nobody looks
HALVINGS = 24  # of that range


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOffer:
    """The codec that would help a strategy most, whether it pays here, and on which links it would."""

    codec: str
    gain: float  # the share of a step that it saves; less than 0: it costs
    steps: float  # how many times the steps that it needs
    below: float  # bytes per second of the narrowest link, by formulas
    narrowest: float  # bytes per second of that link here
    quickest: str = ""  # the codec with the shortest steps, where that is another one

    @property
    def pays(self) -> bool:
        return WORTH * self.steps * (1 - self.gain) < 1

    def timed(self, plain: float, coded: float) -> CodecOffer:
        """The same, by steps that were timed: what is said of it then agrees with them."""
        return replace(self, gain=1 - coded / plain)

    def where(self) -> str:
        """The links on which it pays, in words; none where formulas put that on the other side of this network."""
        if self.pays != (self.narrowest < self.below):
            return "here" if self.pays else "on slower links"
        if self.below == 0:
            return "on no network"
        return "on any network" if math.isinf(self.below) else f"below {format_rate(self.below)}"

    def change(self) -> str:
        """What it makes of a step, in words."""
        return f"{self.gain:.0%} shorter" if self.gain > 0 else f"{-self.gain:.0%} longer"

    def words(self, coded: bool) -> str:
        """What it means for the strategy with this codec, or without."""
        if not self.pays:
            return f"no codec pays: {self.codec} would {self.where()}"
        what = f"{self.codec} makes a step {self.change()}"
        return f"{what}; it pays {self.where()}" if coded else f"with + {what}"


def offer(spec: str, now: Situation) -> CodecOffer | None:
    """What codecs would do for a strategy; None where it takes none."""
    calm = replace(now, cluster=replace(now.cluster, jitter=0.0))  # which lengthens steps with and without a codec
    plain = _strategy(spec, now.workers)
    coded = [found for option in codec_options()[1:] if (found := _strategy(f"{spec} + {option.name}", now.workers))]
    if plain is None or not coded:
        return None
    steps = [predict.step(strategy, calm).seconds for strategy in (plain, *coded)]
    whole = [_whole(strategy, calm) for strategy in (plain, *coded)]
    least = min(range(1, len(whole)), key=lambda number: whole[number])
    place = best(0.0, whole) or least
    strategy, quickest = (coded[number - 1].composition.codec for number in (place, least))
    needed = [all_steps / step for all_steps, step in zip(whole, steps, strict=True)]
    return CodecOffer(
        codec=strategy.name, gain=1 - steps[place] / steps[0], steps=needed[place] / needed[0],
        below=_below(plain, coded[place - 1], calm), narrowest=now.narrowest,
        quickest=quickest.name if least != place else "",
    )  # fmt: skip


def _whole(strategy: Strategy, now: Situation) -> float:
    """A step, as many times as rules of thumb say that they are needed."""
    step = predict.step(strategy, now)
    return step.seconds * predict.samples_needed(strategy, now, step.staleness)


def _strategy(spec: str, workers: int) -> Strategy | None:
    try:
        return resolve(spec, workers)
    except PlanError:
        return None


def _below(plain: Strategy, coded: Strategy, now: Situation) -> float:
    """Bytes per second of the narrowest link below which the codec pays, if all links were wider or narrower alike."""

    def pays(width: float) -> bool:
        there = _wider(now, width)
        return _whole(plain, there) > WORTH * _whole(coded, there)

    if not pays(1 / WIDEST):
        return 0.0
    if pays(WIDEST):
        return math.inf
    low, high = -math.log(WIDEST), math.log(WIDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if pays(math.exp(middle)) else (low, middle)
    return now.narrowest * math.exp(low)


def _wider(now: Situation, width: float) -> Situation:
    def wide(link: Link) -> Link:
        return replace(link, bandwidth=BytesPerSecond(link.bandwidth * width))

    world = now.cluster
    links = {host: wide(link) for host, link in world.links.items()}
    local = wide(world.local) if world.local else None
    return replace(now, cluster=replace(world, link=wide(world.link), links=links, local=local))
