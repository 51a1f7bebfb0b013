"""What each strategy comes to, in numbers: every setting, in situations that make it count.

One file per strategy: tests/golden/values/NAME.txt. It is renewed with COVEY_GOLDEN=write; look at what changes.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from covey import catalog
from tests.behaviour import codecs_tried, kept_values
from tests.behaviour.measured_runs import lines
from tests.behaviour.situations import situations
from tests.behaviour.strategies_tried import cases


@pytest.mark.parametrize("name", catalog.for_any_model())
@pytest.mark.parametrize("often", [True, pytest.param(False, marks=pytest.mark.full)], ids=["often", "rest"])
def test_strategy(name: str, often: bool, tmp_path: Path) -> None:
    tried, numbers = {case.title: case for case in reversed(list(cases(name)))}, count()

    def now(title: str) -> list[str]:
        case = tried[title]
        task, workers, given = situations()[case.situation].of(case.spec)
        return list(lines(task, case.spec, workers, tmp_path / str(next(numbers)), given))

    titles = list(reversed(tried))
    kept_values.compare(name, titles, now, [title for title in titles if tried[title].often == often])


def test_every_file_is_of_something() -> None:
    others = {*codecs_tried.names(), "graphs", "mesh", "patterns", "plans", "shards"}
    assert {file.stem for file in kept_values.GOLDEN.glob("*.txt")} == {*catalog.for_any_model(), *others}
