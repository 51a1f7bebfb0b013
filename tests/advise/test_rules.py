"""Each rule on either side of its threshold, with a reason that says what was seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from covey.advise import rules
from covey.advise.conclude import _risks
from covey.advise.families import FAMILIES, merit, name_of
from covey.advise.rules import Suitability
from covey.catalog import resolve

GB = 1e9
SIDES: dict[str, tuple[Suitability, Suitability, str]] = {
    "R1 enough data": (rules.large_balanced(3200, 1, 32), rules.large_balanced(3199, 1, 32), "only 100 batches"),
    "R1 even labels": (
        rules.large_balanced(10**6, 4, 32, 0.09), rules.large_balanced(10**6, 4, 32, 0.1), "labels differ"
    ),
    "R3 fits": (rules.fits(GB, GB), rules.fits(1.1 * GB, GB), "must be cut"),
    "R4 fits with the optimizer": (
        rules.decentral_fits(GB, 2 * GB, 4 * GB), rules.decentral_fits(GB, 2.1 * GB, 4 * GB), "on every worker"
    ),
    "R6 the server keeps up": (
        rules.server_keeps_up(4, 0.2, 0.2, 1.0), rules.server_keeps_up(5, 0.2, 0.2, 1.0), "the server is busy for 1.2 s"
    ),
    "R7 the same again": (rules.repeatable(True, True), rules.repeatable(True, False), "two runs differ"),
    "R8 some spread": (
        rules.holds_together(0.2, "bounded"), rules.holds_together(0.2, "synchronous"), "20% between workers"
    ),
    "R8 much spread": (
        rules.holds_together(0.6, "soft"), rules.holds_together(0.6, "bounded"), "nobody should wait"
    ),
    "R8 spot machines": (
        rules.holds_together(0.0, "asynchronous", spot=True), rules.holds_together(0.0, "synchronous", spot=True),
        "machines may vanish",
    ),
    "R11 batch-norm": (rules.statistics_hold(True, 16), rules.statistics_hold(True, 15), "SyncBatchNorm"),
    "R12 poor network": (
        rules.bandwidth_poor(0.18), rules.bandwidth_poor(0.16), "up to 17% is fine",
    ),
    "R13 codec": (rules.combines("topk", 2e6, 2e6), rules.combines("topk", 3e6, 2e6), "gather 3 MB of topk"),
    "R13 residuals": (
        rules.combines("twobit", remembers=True), rules.combines("twobit", remembers=True, spot=True),
        "lost when a machine vanishes",
    ),
    "R14 exactly once": (
        rules.exactly_once(True, "every sample once per epoch"), rules.exactly_once(True, "late gradients are dropped"),
        "dropped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_either_side(name: str) -> None:
    kept, broken, words = SIDES[name]
    assert kept.ok and not broken.ok
    assert words in broken.reason
    assert kept.reason


def test_calm_workers_may_wait_for_one_another() -> None:
    assert all(rules.holds_together(0.09, how).ok for how in ("synchronous", "bounded", "asynchronous"))


def test_nobody_asked() -> None:
    assert rules.repeatable(False, False).ok
    assert rules.statistics_hold(False, 1).ok
    assert rules.exactly_once(False, "late gradients are dropped").ok


def test_the_learning_rate() -> None:  # R9
    assert "8-fold" in rules.rate_rule("central", "synchronous", 8)
    assert "1/8" in rules.rate_rule("central", "asynchronous", 8)
    assert "keep" in rules.rate_rule("decentral", "synchronous", 8)


def test_the_survey_s_table() -> None:
    assert list(FAMILIES) == [
        "model", "model, pipelined", "central, synchronous", "central, asynchronous", "decentral, synchronous",
        "decentral, asynchronous",
    ]  # fmt: skip
    asynchronous = FAMILIES["central, asynchronous"]
    assert (asynchronous.overlap, asynchronous.knobs, asynchronous.resilience) == (3, 2, 3)
    assert (asynchronous.large_data, asynchronous.rate, asynchronous.repeats) == (True, "lower", "hard")


@pytest.mark.parametrize(("spec", "family"), [
    ("allreduce", "central, synchronous"), ("ssp(bound=3)", "central, asynchronous"),
    ("local_sgd", "decentral, synchronous"), ("gosgd", "decentral, asynchronous"),
])  # fmt: skip
def test_where_strategies_stand(spec: str, family: str) -> None:
    assert name_of(resolve(spec, 4).taxonomy) == family


def test_resilience_counts_more_the_more_workers_differ() -> None:
    steady, loose = FAMILIES["central, synchronous"], FAMILIES["decentral, asynchronous"]
    assert merit(steady, 0.0, False) > merit(loose, 0.0, False)
    assert merit(steady, 0.5, False) < merit(loose, 0.5, False)
    assert merit(steady, 0.5, True) > merit(loose, 0.5, True)


@pytest.mark.parametrize(
    ("optimization", "scheduling", "told"),
    [
        ("central", "synchronous", []),
        ("central", "asynchronous", ["a gradient is about 3 updates old when it is applied"]),
        ("decentral", "synchronous", []),
        ("decentral", "asynchronous", ["3 settings more to find"]),
    ],
)
def test_more_than_two_settings_are_a_risk(optimization: str, scheduling: str, told: list[str]) -> None:
    place = SimpleNamespace(optimization=optimization, scheduling=scheduling)
    row: Any = SimpleNamespace(
        candidate=SimpleNamespace(risks=[], strategy=SimpleNamespace(taxonomy=place)), failure="",
        step=SimpleNamespace(staleness=3.0),
    )  # fmt: skip
    known: Any = SimpleNamespace(curve=lambda row: SimpleNamespace(missed=False))
    assert _risks(row, known) == told
