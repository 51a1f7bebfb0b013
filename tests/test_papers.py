"""docs/papers.md has every row of the surveys' tables, with the place that the system has here."""

from __future__ import annotations

from benchmarks.local_parallelism import CASES
from benchmarks.papers import LANGER, MAYER, PAGE, PRINTED, SPEEDUPS, figure_14, placed
from covey.systems import CATEGORIES, ROWS, SYSTEMS


def test_the_page_has_every_row_as_it_is_now() -> None:
    page = PAGE.read_text()
    assert [name for name in LANGER if placed(name) not in page] == []
    assert [name for name in (*MAYER, *CATEGORIES) if f"| {name} |" not in page] == []
    assert "\n".join(figure_14()) in page


def test_the_seventeen_systems_of_the_survey_are_all_there() -> None:
    assert len(LANGER) == 17 and set(LANGER) <= {*SYSTEMS, *ROWS} and set(ROWS) <= set(LANGER)


def test_the_measured_speedups_stand_beside_the_printed_ones() -> None:
    rows = {cells[0]: cells for cells in map(cells_of, PAGE.read_text().splitlines()) if cells[0] in SPEEDUPS}
    assert rows.keys() == SPEEDUPS.keys()
    for title, row in SPEEDUPS.items():
        assert [float(cell.removesuffix("x")) for cell in rows[title][2::2]] == [PRINTED[row][case] for case in CASES]
        assert all(0 < float(cell.removesuffix("x")) < 4 for cell in rows[title][1::2])


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
