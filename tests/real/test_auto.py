"""`auto` on real processes: it measures what there is, and says what it chose; which that is depends on the machine."""

from __future__ import annotations

import pytest

from covey.exchange.auto import options
from covey.observe.choices import chosen
from tests.real.harness import Room, fit

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("strategy", ["bsp + auto", pytest.param("allreduce + auto", marks=pytest.mark.full)])
def test_it_says_what_it_chose_and_why(strategy: str, room: Room) -> None:
    result = fit(room.task(), strategy, 2, steps=6)
    found = chosen(result.notes)
    assert {one.codec for one in found} <= {option.name for option in options()}
    assert sum(one.roles for one in found) == 2
    times = [result.notes[f"seconds to exchange {option.name}"] for option in options()]
    assert all(time is not None and 0 < time < 60 for time in times)
