"""The picture of a mesh: who holds what, how full, and who waited."""

from __future__ import annotations

import re

import msgspec
import pytest

from covey.observe.result import Result, TimeShares
from covey.report import render
from covey.report.mesh import placed_workers, section, waits
from covey.report.single_run import page_of
from covey.run import fit


def divided(spec: str, workers: int) -> Result:
    return fit("examples/digits.py", spec, workers, engine="simulated", steps=1)


@pytest.mark.parametrize(
    ("spec", "workers", "holds"),
    [
        ("allreduce with mesh(stage=2, cut=1, microbatches=2)", 2, ["layers 0 to 1", "layers 2 on"]),
        ("zero2", 2, ["rows 1/2", "rows 2/2"]),
        (
            "bsp with mesh(replica=2, stage=2, cut=1, microbatches=2, tensor=2)", 8,
            ["layers 0 to 1, slices 1/2", "layers 0 to 1, slices 2/2", "layers 2 on, slices 1/2",
             "layers 2 on, slices 2/2"] * 2,
        ),
    ],
)  # fmt: skip
def test_every_worker_has_its_part(spec: str, workers: int, holds: list[str]) -> None:
    result = divided(spec, workers)
    assert [one.holds for one in placed_workers(result)] == holds
    html = render(page_of(result))
    assert html.count("<svg class='mesh'") == 1 and all(words in html for words in holds)
    assert html.count("class='who'") == workers


def test_bars_are_memory_and_time_and_groups_say_how_long_they_waited() -> None:
    result = divided("allreduce with mesh(stage=2, shard=2, cut=1, microbatches=2)", 4)
    waited = [0.25 + rank / 20 for rank in range(4)]
    roles = {
        f"worker {rank}": TimeShares(compute=0.5, exchange=0.5 - share, waiting=share, memory=(4 - rank) * 10**6)
        for rank, share in enumerate(waited)
    }
    known = msgspec.structs.replace(result, roles=roles)
    assert waits(known) == {"stage": pytest.approx([0.275, 0.375]), "shard": pytest.approx([0.3, 0.35])}
    drawn = section("a <run>", known)
    assert "a &lt;run&gt;" in drawn and "stage 0: 28%, 1: 38%" in drawn
    widths = [float(width) for width in re.findall(r"class='memory' x='10' y='44' width='([0-9.]+)'", drawn)]
    assert widths == [190.0, 142.5, 95.0, 47.5]
    waiting = [float(width) for width in re.findall(r"class='waiting' x='[0-9.]+' y='74' width='([0-9.]+)'", drawn)]
    assert waiting == [47.5, 57.0, 66.5, 76.0]
    places = set(re.findall(r"<g transform='translate\((\d+) (\d+)\)'>", drawn))
    assert places == {("0", "0"), ("222", "0"), ("0", "108"), ("222", "108")}, "stages beside, shards below each other"


def test_whole_models_have_no_mesh() -> None:
    assert "class='mesh'" not in render(page_of(divided("bsp", 2)))
