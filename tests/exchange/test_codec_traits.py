"""What codecs state of themselves, held against what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from covey.catalog import codec, resolve
from covey.check.codec_laws import CODEC_LAWS
from covey.exchange.codec import Codec, dense, error_feedback
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.by_name import CODECS
from covey.simulate import CodecTime, CpuTime, Seconds, coding_of

SPECS = [name for name in CODECS if name not in ("dgc", "auto")]
MORE = [
    "int8(rounding=nearest)", "randomk(density=0.5,unbiased=true)", "topk(density=0.5)", "topk(density=0.1)",
    "qsgd(coding=packed)", "sbc(momentum=0.9)", "dgc(warmup=0)", "powersgd(dense=2)", "warmup(steps=2) + topk",
    "clip(norm=99) + fp16", "momentum_correction + topk", "error_feedback + int8", "warmup(steps=1) + fp16",
]  # fmt: skip


def stating(holds: Callable[[CodecTraits], bool]) -> set[str]:
    return {spec for spec in (*SPECS, *MORE) if holds(codec(spec).traits)}


def test_the_traits_of_the_codecs() -> None:
    assert stating(lambda traits: traits.feedback == "own") == {
        "dgc(warmup=0)", "sbc(momentum=0.9)", "error_feedback + int8",
    }  # fmt: skip
    assert stating(lambda traits: traits.feedback == "none") == {
        "fp16", "bf16", "truncated", "fixed16", "int8", "natural", "dorefa", "qsgd", "qsgd(coding=packed)", "terngrad",
        "sketch",
        "randomk(density=0.5,unbiased=true)", "clip(norm=99) + fp16", "warmup(steps=1) + fp16",
    }  # fmt: skip
    assert stating(lambda traits: traits.shapes) == {"onebit", "powersgd", "powersgd(dense=2)"}
    assert stating(lambda traits: traits.weights) == {"fp16", "bf16", "truncated"}
    assert stating(lambda traits: traits.momentum == "reset") == {"sbc"}
    assert stating(lambda traits: traits.momentum == "own") == {
        "dgc(warmup=0)", "sbc(momentum=0.9)", "momentum_correction + topk",
    }  # fmt: skip
    assert stating(lambda traits: traits.exact_start) == {
        "powersgd(dense=2)", "warmup(steps=2) + topk", "warmup(steps=1) + fp16",
    }  # fmt: skip
    assert stating(lambda traits: traits.plain or traits.measured) == set()
    assert dense.traits.plain and codec("auto").traits.measured


LAWS = (
    "comes back in its form", "nothing is lost", "summable if it says so", "right on average", "exact if it says so",
    "stateless if for weights",
)  # fmt: skip
SLOW = {"nothing is lost"}
SHRINKS = {"entropy"}
"""Codecs that send less than they take, on purpose: what is sent is made smaller by its share."""


@pytest.mark.parametrize("law", [pytest.param(law, marks=pytest.mark.full) if law in SLOW else law for law in LAWS])
@pytest.mark.parametrize("spec", [*SPECS, *MORE])
def test_codecs_keep_what_they_state(spec: str, law: str) -> None:
    assert bool(CODEC_LAWS[law](codec(spec))) == (law == "nothing is lost" and spec in SHRINKS)


def test_error_feedback_changes_what_a_codec_states() -> None:
    for spec in SPECS:
        bare, carrying = codec(spec), error_feedback(codec(spec))
        assert carrying.traits.feedback == "own" and not carrying.traits.weights
        kept = [field.name for field in fields(CodecTraits) if field.name not in ("feedback", "weights", "summable")]
        assert all(getattr(carrying.traits, name) == getattr(bare.traits, name) for name in kept), spec


def test_a_strategy_has_the_codec_of_its_spec() -> None:
    found = resolve("ssp(bound=2) + clip(norm=2) + topk(density=0.2) + pull", 3)
    assert found.composition.codec.name == "clip(norm=2) + topk(density=0.2) + pull" and found.composition.codec.pull
    assert found.text.endswith("+ clip(norm=2) + topk(density=0.2) + pull")
    assert resolve("bsp", 3).composition.codec is dense and " + " not in resolve("bsp", 3).text


def test_a_codec_is_found_in_a_cluster_file_by_any_of_its_names() -> None:
    def price(seconds: float) -> CodecTime:
        return CodecTime(encode=CpuTime(each=Seconds(seconds)))

    names = codec("clip(norm=2) + topk(density=0.2)").names
    known = {"topk": price(1), "topk(density=0.2)": price(2), "int8": price(3)}
    assert coding_of(known, names) == price(2), "with these settings"
    assert coding_of({"topk": price(1)}, names) == price(1), "with any settings"
    assert coding_of({"int8": price(3)}, names) is None
    carrying = codec("topk(density=0.2)").carrying()
    assert coding_of(known, carrying.names) == price(2), "with error feedback it is the same codec"


def test_a_codec_that_states_nothing_is_taken_for_unbiased() -> None:
    made = Codec(name="mine", make=dense.make, nbytes=dense.nbytes)
    assert made.traits == CodecTraits() and made.carrying() is made
    biased = replace(made, traits=CodecTraits(feedback="needed"))
    assert biased.carrying().traits.feedback == "own"
