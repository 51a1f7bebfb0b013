"""When a codec pays: encode + send + decode against sending as it is."""

from __future__ import annotations

import math

import pytest

from covey.exchange.codec_costs import Cost, best, prices, timed
from covey.exchange.codecs.bits import Fp16, Int8
from covey.exchange.codecs.levels import OneBit
from covey.exchange.codecs.sparse import TopK
from tests.exchange.coders import form

HALF = Cost(encode=0.01, decode=0.03, sent=2e6, plain=4e6)


def test_below_a_bandwidth_it_is_quicker_than_plain_numbers() -> None:
    assert HALF.below == pytest.approx(50e6)
    for share, quicker in ((0.99, True), (1.01, False)):
        rate = share * HALF.below
        assert (HALF.seconds(rate) < HALF.plain / rate) == quicker


def test_what_does_not_get_smaller_never_pays_and_what_costs_nothing_always() -> None:
    assert Cost(encode=0.0, decode=0.0, sent=5.0, plain=4.0).below == 0
    assert math.isinf(Cost(encode=0.0, decode=0.0, sent=3.0, plain=4.0).below)


def test_the_one_that_loses_least_of_those_that_are_fast_enough() -> None:
    assert best(1.0, [0.04, 0.02, 0.01]) == 0, "3 % of a step are not worth a loss"
    assert best(0.0, [1.0, 0.52, 0.50, 0.49]) == 2
    assert best(0.0, [1.0, 0.50, 0.49]) == 1


def test_who_needs_more_steps_must_have_shorter_ones() -> None:
    assert best(0.0, [1.0, 0.5], more=[1.0, 1.5]) == 1
    assert best(0.0, [1.0, 0.7], more=[1.0, 1.5]) == 0


def test_codecs_are_timed_with_what_they_carry_on() -> None:
    found = timed(TopK(density=0.1).codec(), form(), turns=2)
    assert found.plain == form().like.nbytes and found.sent < found.plain / 3
    assert 0 <= found.encode < 1 and 0 <= found.decode < 1


def test_prices_are_for_a_byte() -> None:
    found = prices([Fp16().codec(), Int8().codec(), OneBit().codec()], size=1e6)
    assert list(found) == ["fp16", "int8", "onebit"]
    assert all(0 < coding.encode.of(1e6) < 0.5 for coding in found.values())
