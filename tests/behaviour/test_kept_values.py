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
