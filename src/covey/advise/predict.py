"""How long does a step take? By formulas alone, from a strategy's place in the taxonomy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

import torch

from covey.advise.delay import rounds
from covey.advise.situation import Situation
from covey.exchange.codec import Codec
from covey.model.flat import Form
from covey.simulate import CodecTime, Seconds, coding_of
from covey.strategy import Strategy
from covey.vector import Vector

DRAWS = 64  # of the slowest of all workers
BLOCK = 8  # steps between two averages: longer periods cost samples, and in shorter ones block momentum does


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step of the mean worker: seconds in all, and of these the exchange that nothing hides."""

    seconds: float
    exchange: float
    staleness: float = 0.0  # updates of others between a read and its use

    def share(self) -> float:
        return self.exchange / self.seconds if self.seconds else 0.0


def step(strategy: Strategy, now: Situation) -> StepTime:
    """A step of this strategy, with no other traffic on the links; preparers may be slower."""
    found = _on_ready_batches(strategy, now)
    if found.seconds >= now.prepared_every:
        return found
    return replace(found, seconds=now.prepared_every, exchange=0.0)  # which passes while a worker waits for its batch


def _on_ready_batches(strategy: Strategy, now: Situation) -> StepTime:
    place, n = strategy.taxonomy, now.workers
    mean = now.compute * sum(now.slownesses) / n
    if place.architecture == "memory" or (n == 1 and place.architecture != "server"):
        return StepTime(seconds=mean, exchange=0.0, staleness=n - 1 if place.scheduling == "asynchronous" else 0)
    every = period(strategy)
    if place.scheduling == "synchronous":
        alone, waited = slowest(now, every), _together(strategy, now) / every
        if place.exchange in ("2:1 reduce", "push-sum"):  # neighbours' models travel while the gradient is computed
            return StepTime(seconds=max(alone, waited), exchange=max(0.0, waited - alone))
        return StepTime(seconds=alone + waited, exchange=waited)
    return _apart(strategy, now, mean, every)


def period(strategy: Strategy) -> float:
    """Steps between two exchanges."""
    settings = strategy.settings
    if settings.get("probability"):
        return 1 / float(settings["probability"])
    return float(settings.get("period") or settings.get("up") or settings.get("push") or 1)


def round_to_periods(strategy: Strategy, steps: int, begun: int) -> int:
    """`begun` steps, which do not count, and about as many whole periods, each with its exchange, as make `steps`."""
    every = max(1, round(period(strategy)))
    return begun + every * max(1, round((steps - begun) / every))


def slowest(now: Situation, steps: float = 1) -> float:
    """The mean time of a step that waits for all workers, every few steps."""
    draw, whole = Random(0), max(1, min(32, round(steps)))
    if now.cluster.jitter == 0:
        return now.compute * max(now.slownesses)
    total, world = 0.0, replace(now.cluster, compute=Seconds(now.compute), slowdowns=dict(enumerate(now.slownesses)))
    for _ in range(DRAWS):
        ranks = range(now.workers) if now.workers <= 256 else draw.sample(range(now.workers), 256)
        total += max(sum(world.compute_time(rank, 1, draw) for _ in range(whole)) / whole for rank in ranks)
    return total / DRAWS


def _together(strategy: Strategy, now: Situation) -> float:
    """One exchange that all wait for: encode, send, decode."""
    n, latency, load = now.workers, now.latency, Load.of(strategy, now)
    wire, exchange = load.size / now.narrowest, strategy.taxonomy.exchange
    gathered = "all-reduce" in exchange and not load.codec.traits.summable
    if exchange == "all-gather" or gathered:  # everybody's goes to all
        return load.encode + (n - 1) * (wire + latency) + n * load.decode
    if "all-reduce" in exchange:
        summed = share(load.codec, now, n) * now.model / now.narrowest
        return load.encode + 2 * (n - 1) / n * summed + 2 * (n - 1) * latency + load.decode
    if exchange == "scatter-reduce":
        return load.encode + (n - 1) / n * (wire + load.back / now.narrowest + load.decode) + 2 * latency
    if exchange == "binomial tree":
        return 2 * rounds(n + 1) * (wire + latency + load.decode) + load.encode
    if exchange == "push-sum" or exchange == "pairwise":
        return load.encode + wire + latency + load.decode
    if exchange == "2:1 reduce":
        return load.encode + min(2, n - 1) * (wire + load.decode) + latency
    there, back = _server(strategy, now, load)
    # Who is answered first also pushes first: of the quicker way only the last one's transfer is waited for.
    return load.encode + max(there, back) + min(there, back) / n + 3 * latency + load.served(strategy, n)


def _server(strategy: Strategy, now: Situation, load: Load) -> tuple[float, float]:
    """Seconds in which all gradients get to the servers, and all parameters back."""
    servers = max(1, strategy.servers.count)
    rate = min(now.server_rate(strategy.servers.count) * servers / now.workers, now.narrowest)
    return load.size / rate, load.back / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A vector of all parameters on its way: bytes there and back, seconds of work at either end."""

    codec: Codec
    size: float
    back: float
    encode: float
    decode: float

    @classmethod
    def of(cls, strategy: Strategy, now: Situation) -> Load:
        """As the strategy sends it, on the machines that there are."""
        codec = strategy.composition.codec
        both = codec.pull or strategy.taxonomy.optimization == "decentral"
        price, size = coding_of(now.coding, codec.names) or CodecTime(), share(codec, now) * now.model
        return cls(
            codec=codec.carrying(), size=size, back=size if both else now.model,
            encode=price.encode.of(now.model), decode=price.decode.of(now.model),
        )  # fmt: skip

    def served(self, strategy: Strategy, clients: int) -> float:
        """The work of each server, for all of its clients, and that of a client with its answer."""
        answers = (clients * self.encode, self.decode) if self.back == self.size else (0.0, 0.0)
        return (clients * self.decode + answers[0]) / max(1, strategy.servers.count) + answers[1]


def share(codec: Codec, now: Situation, summed: int = 0) -> float:
    """How much of the model's bytes a gradient takes on its way, or a sum of this many."""
    form = now.form or Form.plain(Vector([torch.empty(now.model // 4, device="meta")]))
    size = codec.sum_bytes(form, summed) if summed else codec.nbytes(form)
    return size / form.like.nbytes if form.like.nbytes else 1.0


def _apart(strategy: Strategy, now: Situation, mean: float, every: float) -> StepTime:
    """Nobody waits for anybody: a step takes its own time, unless a link or a server is full."""
    n, wire = now.workers, now.model / now.narrowest
    if strategy.taxonomy.architecture == "server":
        servers = max(1, strategy.servers.count)
        part = now.model / (now.server_rate(strategy.servers.count) * servers)
        load = Load.of(strategy, now)
        there, back = load.size / now.model, load.back / now.model
        own = ((there + back) * max(wire, part) + 3 * now.latency + load.encode + load.decode) / every
        full = n * (max(there, back) * part + load.decode / servers) / every  # one direction of the server's card
        seconds = max(mean + own, full)
        return StepTime(seconds=seconds, exchange=seconds - mean, staleness=(n - 1) / every)
    peers = n - 1 if strategy.taxonomy.topology == "peer-to-peer mesh" and every == 1 else 1
    load = Load.of(strategy, now)
    work = (load.encode + peers * load.decode) / every
    seconds = max(mean + work, peers * load.size / now.narrowest / every)
    return StepTime(seconds=seconds, exchange=seconds - mean, staleness=math.sqrt(every))


def samples_needed(strategy: Strategy, now: Situation, staleness: float) -> float:
    """How many times the samples of one worker alone this strategy needs at an unchanged learning rate, roughly.

    Rules of thumb, for orders of magnitude only: between 1 (n workers are n times as good) and n (they are not), a
    gradient of n batches is worth the square root; staleness costs a tenth for every update, up to twice; and a codec
    what `auto` reckons with. Averaging after up to eight steps saves a little, and longer periods cost. Block momentum
    saves up to an eighth; with shorter blocks it costs. So do an elastic pull, what is pushed to one peer at a time,
    and a codec that keeps a hundredth of a model's changes (benchmarks/time_to_accuracy.py, at 86 %).
    """
    place, n = strategy.taxonomy, now.workers
    factor = math.sqrt(n)
    if place.optimization == "central" and place.scheduling != "synchronous":
        bound = strategy.settings.get("bound")
        late = staleness if not isinstance(bound, int) else min(staleness, bound)
        factor *= min(2.0, 1 + 0.1 * late)
    if place.optimization == "decentral":
        one_to_one = place.architecture == "peers" and "all-" not in place.exchange
        spread = max(1.0, math.log2(n)) if one_to_one else 1.0  # exchanges until all have heard of a model
        every = period(strategy)
        factor *= min(2.0, 0.93 + 0.08 * max(0.0, math.sqrt(every * spread) - math.sqrt(BLOCK)))
        factor *= 1.3 if strategy.settings.get("pull") else 1.0
        factor *= 1.3 if one_to_one and place.scheduling == "soft" else 1.0
        momentum = strategy.settings.get("momentum")
        if place.scheduling == "synchronous" and isinstance(momentum, float):
            gain = min(momentum, 1 - momentum)
            factor *= 1 - 0.25 * gain if every >= BLOCK else 1 + gain
        codec = strategy.composition.codec
        if codec.traits.feedback == "needed":
            factor *= 1 + min(1.0, 0.004 / share(codec, now))
    return factor * strategy.composition.codec.traits.steps
