"""Times, sizes and rates as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.simulate import format_bytes, format_duration, format_rate, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("60s", 60), ("5m", 300), ("2min", 120), ("1h", 3600), ("1.5 s", 1.5), ("3us", 3e-6), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 12.5e6),
        ("1gbit", 125e6),
        ("100Mbit/s", 12.5e6),
        ("10Gbps", 1.25e9),
        ("10MB/s", 10e6),
        ("1MiB/s", 2**20),
        ("8bit", 1),
    ],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "size"), [("512B", 512), ("100kB", 100_000), ("4MiB", 4 * 2**20), ("1.5 GB", 15 * 10**8)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("parse", "text", "example"),
    [
        (parse_duration, "20", "20ms"),
        (parse_duration, "-1s", "20ms"),
        (parse_duration, "fast", "20ms"),
        (parse_duration, "1e999s", "20ms"),
        (parse_rate, "100", "100mbit"),
        (parse_rate, "0mbit", "100mbit"),
        (parse_rate, "10Mb/s", "10MB/s"),  # bits or bytes? Ask rather than guess.
        (parse_size, "4", "4MiB"),
        (parse_size, "4Mb", "4MiB"),
    ],
)
def test_what_cannot_be_read_comes_with_examples(parse: Callable[[str], object], text: str, example: str) -> None:
    with pytest.raises(PlanError, match=example):
        parse(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_rate, parse_size):
        try:
            assert parse(text) >= 0
        except PlanError:
            continue


def test_for_people() -> None:
    assert [format_bytes(size) for size in (0, 999, 1500, 999_999, 2.5e9)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "1 MB",
        "2.5 GB",
    ]
    assert [format_duration(s) for s in (0, 5e-5, 0.0123, 4.5)] == ["0 s", "50 µs", "12.3 ms", "4.5 s"]
    assert [format_duration(s) for s in (59.96, 125, 5400, -2)] == ["1m 00s", "2m 05s", "1h 30m", "-2 s"]
    assert format_rate(12.5e6) == "100 Mbit/s"
