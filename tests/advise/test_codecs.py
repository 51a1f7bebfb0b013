"""Whether a codec is advised: encode, send and decode against sending plainly, and the links on which it pays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from covey.advise import predict
from covey.advise.candidates import Candidate, candidates
from covey.advise.codecs import CodecOffer, offer
from covey.advise.findings import COMPRESSED
from covey.advise.situation import Situation, codec_options, look
from covey.advise.trials.trial import SimulatedTrials
from covey.catalog import codec, resolve
from covey.simulate import CodecTime, CpuTime, Seconds, from_flags
from covey.task import Task, load_task

DIGITS = "examples/digits.py"
QUICK = CodecTime(encode=CpuTime(byte=Seconds(1e-9)), decode=CpuTime(byte=Seconds(1e-9)))


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(DIGITS)


def situation(task: Task, coding: CodecTime = QUICK, **flags: object) -> Situation:
    now = look(task, 4, from_flags(**flags))  # type: ignore[arg-type]
    return replace(now, coding={option.name: coding for option in codec_options()[1:]})


@pytest.mark.parametrize("spec", ["bsp", "allreduce", "local_sgd", "sliced", "dpsgd", "easgd", "gosgd"])
def test_it_pays_just_below_the_bandwidth_that_is_told(spec: str, task: Task) -> None:
    now = situation(task, compute="2ms", latency="1us", bandwidth="100mbit")
    found = offer(spec, now)
    assert found is not None and 0 < found.below < math.inf
    for share, pays in ((0.97, True), (1.03, False)):
        there = situation(task, compute="2ms", latency="1us", bandwidth=f"{share * found.below * 8 / 1e6}mbit")
        plain, coded = (predict.step(resolve(one, 4), there).seconds for one in (spec, f"{spec} + {found.codec}"))
        assert (plain > 1.05 * coded * codec(found.codec).traits.steps) == pays


@pytest.mark.parametrize(
    ("steps", "gain", "pays"), [(1.0, 0.2, True), (1.3, 0.2, False), (1.3, 0.5, True), (1.0, 0.04, False)]
)
def test_shorter_steps_pay_where_they_outweigh_that_more_are_needed(steps: float, gain: float, pays: bool) -> None:
    found = CodecOffer(codec="any", gain=gain, steps=steps, below=1e6, narrowest=1e6)
    assert found.pays == pays


def test_slow_codecs_pay_on_slower_links_only(task: Task) -> None:
    slow = CodecTime(encode=CpuTime(byte=Seconds(1e-6)), decode=CpuTime(byte=Seconds(1e-6)))
    quick, late = (offer("bsp", situation(task, coding, compute="1ms")) for coding in (QUICK, slow))
    assert quick and late and late.below < quick.below / 10


def test_a_strategy_without_codecs_has_no_offer(task: Task) -> None:
    assert offer("bosen", situation(task)) is None


def test_candidates_have_a_codec_where_one_pays(task: Task) -> None:
    found = _by_spec(task, compute="1ms", bandwidth="1mbit")
    coded = [candidate for candidate in found.values() if not candidate.strategy.composition.codec.traits.plain]
    assert len(coded) > 20 and {"bsp", "allreduce", "local_sgd"} <= {one.strategy.name for one in coded}
    said = [one.compression[0] for one in coded if one.compression]
    assert len(said) > 20 and all("makes a step" in line and "pays below" in line for line in said)
    assert "with + " in found["bsp"].compression[0]


def test_where_none_pays_it_is_said_where_one_would(task: Task) -> None:
    found = _by_spec(task, compute="1s", bandwidth="100gbit")
    assert all(one.strategy.composition.codec.traits.plain for one in found.values())
    assert all(found[spec].compression[0].startswith("no codec pays: ") for spec in COMPRESSED)
    assert "would below" in found["allreduce"].compression[0]
    assert found["bosen"].compression == []


def _by_spec(task: Task, **flags: object) -> dict[str, Candidate]:
    return {one.spec: one for one in candidates(task, situation(task, **flags))}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spec", ["bsp + int8", "allreduce + topk(density=0.1)", "allreduce + fp16", "local_sgd(period=1) + onebit"]
)
def test_formulas_with_a_codec_are_near_the_virtual_engine(spec: str, task: Task) -> None:
    """Also where coding takes longer than sending."""
    for byte in (1e-9, 1e-6):
        price = CodecTime(encode=CpuTime(byte=Seconds(byte)), decode=CpuTime(byte=Seconds(byte)))
        now = situation(task, price, bandwidth="100mbit", compute="10ms")
        strategy = resolve(spec, 4)
        timed = SimulatedTrials(DIGITS, now, 0.001).timed(Candidate(spec=spec, strategy=strategy))
        assert timed is not None
        assert predict.step(strategy, now).seconds == pytest.approx(timed.seconds, rel=0.25), byte


def test_two_servers_take_half_of_the_traffic_each(task: Task) -> None:
    """Where the servers' links hold all up, a step is half as long."""
    narrow = replace(situation(task, bandwidth="1mbit", latency="0ms", compute="1ms"), workers=8)
    one, two = (predict.step(resolve(f"bsp over servers(count={count})", 8), narrow) for count in (1, 2))
    assert two.seconds == pytest.approx(one.seconds / 2, rel=0.05)


def test_of_gradients_that_are_gathered_a_worker_decodes_everybodys(task: Task) -> None:
    """A top-k sum has other places for each worker, so all get all; a sum that adds up on its way is decoded once."""
    free = situation(task, CodecTime())
    dear = replace(free, coding=dict.fromkeys(free.coding, CodecTime(decode=CpuTime(each=Seconds(0.01)))))
    for spec, decoded in (("allreduce + topk(density=0.1)", 4), ("allreduce + fp16", 1)):
        took = [predict.step(resolve(spec, 4), now).seconds for now in (free, dear)]
        assert took[1] - took[0] == pytest.approx(decoded * 0.01), spec
