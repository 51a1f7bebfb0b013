"""How numbers that are kept are compared: by their own size, and parts of a vector by the vector's."""

from __future__ import annotations

import pytest

from tests.behaviour.kept_values import Case

KEPT = Case("[within 1e-3] a codec", ["network: bytes=8 arrives=2,0.01,-3 rate=0.01"])


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ("network: bytes=8 arrives=2.001,0.0115,-3.001 rate=0.01", []),
        ("network: bytes=8 arrives=2,0.013,-3 rate=0.01", ["network: arrives[1] was 0.01, is 0.013"]),
        ("network: bytes=8 arrives=2.003,0.01,-3 rate=0.01", ["network: arrives[0] was 2, is 2.003"]),
        ("network: bytes=8 arrives=2,0.01,-3 rate=0.0115", ["network: rate[0] was 0.01, is 0.0115"]),
        ("network: bytes=9 arrives=2,0.01,-3 rate=0.01", ["network: bytes[0] was 8, is 9"]),
    ],
)
def test_what_differs_is_told(now: str, told: list[str]) -> None:
    assert Case(KEPT.title, [now]).differences(KEPT) == told


def test_large_numbers_of_a_vector_are_no_counts() -> None:
    """Eight digits of a float32 beyond 1e7 look like a whole number, whose last ones are rounded."""
    kept = Case("[within 1e-6] a codec", ["spread: bytes=56296640 arrives=56296640,-58437370"])
    assert Case(kept.title, ["spread: bytes=56296640 arrives=56296646,-58437376"]).differences(kept) == []
    assert Case(kept.title, ["spread: bytes=56296646 arrives=56296940,-58437370"]).differences(kept) == [
        "spread: bytes[0] was 56296640, is 56296646",
        "spread: arrives[0] was 56296640, is 56296940",
    ]
