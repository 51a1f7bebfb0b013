"""The systems of the surveys train under their own names, as the compositions they are."""

from __future__ import annotations

import pytest

import covey
from covey.systems import SYSTEMS


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_trains_digits_under_its_name(name: str) -> None:
    result = covey.fit("examples/digits.py", name, 4, engine="simulated", until="accuracy>=0.95")
    assert result.stopped == "target"
    assert result.strategy.startswith(name)
