"""`auto` takes plain numbers where the network is no bottleneck, and what pays where it is one; it says which."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import covey
from covey.errors import PlanError
from covey.exchange.auto import options
from covey.observe.choices import Chosen, chosen
from covey.observe.result import Result
from covey.simulate import Cluster, CodecTime, CpuTime, Seconds, from_flags

FAST, SLOW = from_flags(bandwidth="100gbit", latency="1us"), from_flags(bandwidth="1mbit", latency="1us")
FEWEST = "topk(density=0.01)"


def fit(strategy: str, cluster: Cluster, **given: object) -> Result:
    return covey.fit("examples/digits.py", strategy, 3, engine="simulated", cluster=cluster, steps=6, **given)


def choice(result: Result) -> Chosen:
    (found,) = chosen(result.notes)
    return found


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous", "allreduce", "local_sgd(period=2)", "bmuf(period=2)"])
def test_it_switches_itself_off_where_nothing_pays(strategy: str) -> None:
    plain, auto = fit(strategy, FAST), fit(f"{strategy} + auto", FAST)
    assert choice(auto)[:3] == ("dense", "", 3)
    if strategy != "asynchronous":  # there samples on the way change who comes first
        assert all(torch.allclose(value, auto.weights[name], atol=1e-6) for name, value in plain.weights.items())


@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        ("bsp", "onebit"),  # what comes back is plain, so that more would be saved is no gain
        ("allreduce", FEWEST), ("local_sgd(period=2)", FEWEST), ("diloco(period=2)", FEWEST),
    ],
)  # fmt: skip
def test_on_a_slow_link_it_sends_far_less(strategy: str, codec: str) -> None:
    found = choice(fit(f"{strategy} + auto", SLOW))
    assert (found.codec, found.roles) == (codec, 3)
    assert found.seconds < found.plain / 2


def test_why_is_in_the_result() -> None:
    """Three workers' gradients pass the server's link one after the other, with each option; then come the answers."""
    notes, model = fit("bsp + auto", SLOW).notes, 4 * (64 * 64 + 64 + 640 + 10)
    assert all(f"seconds to exchange {option.name}" in notes for option in options())
    assert notes["seconds to exchange dense"] == pytest.approx(3 * model / 125e3, rel=0.01)
    assert notes["seconds to exchange fp16"] == pytest.approx(1.5 * model / 125e3, rel=0.01)
    assert notes["seconds of a step besides its exchange"] == pytest.approx(0.01 + model / 125e3, rel=0.05)


def test_workers_that_do_not_wait_choose_for_themselves() -> None:
    found = chosen(fit("ssp + auto", SLOW).notes)
    assert sum(one.roles for one in found) == 3 and all(one.codec != "dense" for one in found)


@pytest.mark.parametrize(
    "strategy", ["bsp + auto over servers(count=2)", "allreduce(pattern=hierarchical, local=1) + auto"]
)
def test_several_servers_and_machines(strategy: str) -> None:
    assert choice(fit(strategy, SLOW)).codec == FEWEST


def test_proxies_choose_for_themselves() -> None:
    found = chosen(fit("bsp + auto over proxies(groups=2)", SLOW).notes)
    assert sum(one.roles for one in found) == 5, "three workers, and two proxies"
    assert all(one.codec != "dense" for one in found)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd(period=2)"])
def test_what_encoding_and_decoding_take_counts(strategy: str) -> None:
    """The link is as slow as before, but to make a vector small takes longer than it is on its way as it is."""
    slowly = CodecTime(encode=CpuTime(each=Seconds(0.2)), decode=CpuTime(each=Seconds(0.2)))
    priced = replace(SLOW, coding=dict.fromkeys(("topk", "onebit", "int8", "powersgd"), slowly))
    auto = fit(f"{strategy} + auto", priced)
    assert choice(auto).codec == "fp16"
    took = auto.notes["seconds to exchange onebit"]
    assert took is not None and took > 0.4
    dear = replace(priced, coding={**priced.coding, "fp16": slowly})
    assert choice(fit(f"{strategy} + auto", dear)).codec == "dense"


def test_gradients_and_models_are_told_apart() -> None:
    found = chosen(fit("local_sgd(period=2, after=2) + auto", SLOW).notes)
    assert sorted(one.what for one in found) == ["", "gradients"]


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd(period=2)"])
def test_runs_that_are_only_timed_choose_too(strategy: str) -> None:
    for cluster in (FAST, SLOW):
        codecs = {choice(fit(f"{strategy} + auto", cluster, timing_only=timed)).codec for timed in (False, True)}
        assert len(codecs) == 1 and codecs != {"dense" if cluster is SLOW else "int8"}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("bsp + auto + pull", "name a codec for both ways"), ("bsp + clip + auto", "chooses among codecs as they are"),
        ("dpsgd + auto", "auto goes with bsp, "), ("crossbow + auto", "auto goes with bsp, "),
        ("hogwild + auto", "nothing travels"),
    ],
)  # fmt: skip
def test_where_it_has_no_say(spec: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        fit(spec, FAST)
