"""Conditions are read by a grammar, never run; errors point at the place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.spec.call import SpecError
from covey.store.conditions import parse_condition
from covey.store.model_store import ModelStore
from tests.store.stored import register

FACTS = {
    "accuracy": 0.92, "strategy": "easgd(period=4, pull=0.2)", "workers": 4, "promoted": True, "val/loss": 0.1,
    "data": "12e45678" * 8, "made": "2026-11-18T01:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("accuracy>0.9 and strategy=easgd", True),
        ("accuracy>0.92", False),
        ("accuracy>=0.92", True),
        ("accuracy<=0.92 and accuracy<1", True),
        ("strategy=easgd(period=4", None),
        ("strategy='easgd(period=4, pull=0.2)'", True),
        ("strategy!=bsp", True),
        ("strategy=bsp or workers=4", True),
        ("strategy=bsp or workers=4 and accuracy>0.95", False),
        ("(strategy=bsp or workers=4) and accuracy>0.9", True),
        ("workers=easgd", False),
        ("workers!=easgd", True),
        ("promoted=true", True),
        ("data=12e456", True),
        ("data=12e", False),
        ("val/loss<0.2", True),
        ("made>2026-11 and made<2026-12", True),
        (" accuracy > .9 ", True),
    ],
)
def test_which_facts_fit(text: str, fits: bool | None) -> None:
    if fits is None:
        with pytest.raises(SpecError):
            parse_condition(text)
    else:
        assert parse_condition(text).fits(FACTS) is fits


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "expected the name"),
        ("accuracy", 8, "expected =, !="),
        ("accuracy>", 9, "expected a value"),
        ("accuracy>0.9 strategy=easgd", 13, "expected 'and', 'or' or the end"),
        ("accuracy>0.9 and", 16, "expected the name"),
        ("accuracy>0.9 and and", 17, "expected the name"),
        ("(accuracy>0.9", 13, "expected 'and', 'or' or ')'"),
        ("strategy='easgd", 9, "never closed"),
        ("__import__('os')=1", 10, "expected =, !="),
        ("(" * 60 + "a=1" + ")" * 60, 50, "more than 50 parentheses"),
    ],
)
def test_errors_point_at_the_place(text: str, at: int, why: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_condition(text)
    assert why in raised.value.why and raised.value.at == at
    if text:
        assert str(raised.value).splitlines()[1].index("^") == at


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(PlanError):
        parse_condition(text).fits(FACTS)


def test_a_field_that_no_version_has_is_named(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    register(tmp_path, metrics={"accuracy": 0.9})
    register(tmp_path, metrics={"accuracy": 0.95, "extra": 1.0}, strategy="easgd(period=4)")
    assert [one.text for one in store.versions(parse_condition("accuracy>0.92 and strategy=easgd"))] == ["digits:2"]
    assert [one.text for one in store.versions(parse_condition("extra=1"))] == ["digits:2"], "the other has none"
    assert [one.text for one in store.versions(parse_condition("batch_size=32"))] == ["digits:1", "digits:2"]
    with pytest.raises(SpecError, match="no version has 'acuracy'; did you mean 'accuracy'"):
        store.versions(parse_condition("workers=2 and acuracy>0.9"))


def test_a_condition_has_a_longest_length() -> None:
    long = "a>1 or " * 1428
    assert parse_condition(long + "a>1").fields == {"a": 0}
    with pytest.raises(SpecError, match="has 399,999 characters; at most 10,000 are read") as told:
        parse_condition("a>" + "9" * 399_997)
    assert len(str(told.value)) < 600
