"""docs/papers.md has every row of the surveys' tables, with the place that the system has here."""

from __future__ import annotations

from benchmarks.papers import LANGER, MAYER, PAGE, figure_14, placed
from covey.systems import CATEGORIES, ROWS, SYSTEMS


def test_the_page_has_every_row_as_it_is_now() -> None:
    page = PAGE.read_text()
    assert [name for name in LANGER if placed(name) not in page] == []
    assert [name for name in (*MAYER, *CATEGORIES) if f"| {name} |" not in page] == []
    assert "\n".join(figure_14()) in page


def test_the_seventeen_systems_of_the_survey_are_all_there() -> None:
    assert len(LANGER) == 17 and set(LANGER) <= {*SYSTEMS, *ROWS} and set(ROWS) <= set(LANGER)
