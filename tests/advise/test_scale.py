"""Strategies on more and more workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from covey.advise.delay import ExchangeCosts
from covey.advise.pace import BatchPace
from covey.advise.pages import delays_page, scaling_page
from covey.advise.scale import Scaling, parse_sizes, scale
from covey.errors import PlanError
from covey.report import render
from covey.simulate import from_flags
from covey.simulate.cluster_file import read
from covey.simulate.machines import Machine
from tests.worlds import worker

DIGITS = "examples/digits.py"
SPOT = """
[compute]
batch = "20ms"
[[group]]
workers = 1
bandwidth = "25gbit"
price = 3
[[group]]
workers = 5
slow = 2
price = 0.5
"""


@pytest.fixture(scope="module")
def found() -> Scaling:
    specs = ["allreduce", "gosgd over torus", "dssp(low=-3)"]
    return scale(DIGITS, specs, [1, 6, 100], read(SPOT), batch=32, command="covey scale …")


def test_gossip_scales_and_a_ring_waits_for_the_slowest(found: Scaling) -> None:
    ring, gossip = found.at("allreduce", 100), found.at("gosgd over torus", 100)
    assert ring is not None and gossip is not None
    # of a hundred, 17 are fast and 83 half as fast
    assert gossip.speed_up == pytest.approx(17 + 83 / 2, rel=0.03)
    assert 10 < ring.speed_up < 50
    assert ring.money is not None and gossip.money is not None and ring.money > gossip.money
    hourly = 17 * 3 + 83 * 0.5
    assert gossip.money == pytest.approx(1e6 * hourly / 3600 / gossip.per_second)


def test_one_worker_is_as_fast_as_itself(found: Scaling) -> None:
    one = found.at("allreduce", 1)
    assert one is not None and one.speed_up == pytest.approx(1, rel=0.02)


def test_short_batches_at_the_end_of_an_epoch_do_not_count() -> None:
    ten = scale(DIGITS, ["gosgd"], [10], from_flags(), batch=32).points[0]
    assert ten.speed_up == pytest.approx(10, rel=0.01)


def test_the_fastest_worker_alone_has_the_cores_that_it_has() -> None:
    """Half a core for each: one worker alone takes twice as long, and four are four times as fast."""
    cluster = replace(from_flags(), machines=tuple(Machine(cores=0.5) for _ in range(4)))
    four = scale(DIGITS, ["gosgd"], [4], cluster, batch=32).points[0]
    assert four.speed_up == pytest.approx(4, rel=0.1)


def test_what_cannot_be_is_a_point_with_its_reason(found: Scaling) -> None:
    failed = found.at("dssp(low=-3)", 6)
    assert failed is not None and "low" in failed.failure
    assert any("dssp(low=-3) on 6 workers" in remark for remark in scaling_page(found).remarks)


def test_the_page(found: Scaling) -> None:
    page = scaling_page(found)
    assert [chart.name for chart in page.charts] == ["speed-up", "time", "cost", "sent"]
    assert page.charts[0].data[-1]["name"] == "ideal"
    html = render(page)
    assert "gosgd over torus" in html and "covey scale …" in html


def test_no_prices_no_chart_of_costs() -> None:
    cheap = scale(DIGITS, ["gosgd"], [2], from_flags(), batch=32)
    assert "cost" not in [chart.name for chart in scaling_page(cheap).charts]


def test_the_delay_figure() -> None:
    page = delays_page(ExchangeCosts(bytes=1e8, bandwidth=1.25e8), 0.3, "mine.py")
    (chart,) = page.charts
    ring = next(line for line in chart.data if line["name"] == "ring")
    assert ring["x"][0] == 2 and ring["x"][-1] == 1024
    assert ring["y"][0] == pytest.approx(0.8 + 1e8 / 2 / (10 * 2**30) + 1e8 / (2 * 2**30))
    assert chart.data[-1]["y"] == [0.3] * len(ring["x"])


@pytest.mark.parametrize("text", ["", "many", "0|1", "1,2"])
def test_sizes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(PlanError, match="such as '1|10|100|1000'"):
        parse_sizes(text)


def test_sizes() -> None:
    assert parse_sizes("100|1|10|1") == [1, 10, 100]


def test_the_rate_of_workers_begins_with_the_end_of_their_first_batch() -> None:
    """Worker 0 has 16 samples a second, worker 1 has 10; worker 2 is through with one batch only."""
    pace = BatchPace()
    for at, rank, samples in ((5.0, 0, 32), (6.0, 1, 20), (7.0, 0, 32), (8.0, 1, 20), (8.5, 2, 9), (9.0, 0, 32)):
        pace.noted(at, worker(rank), "samples", samples)
    assert pace.per_second() == 26.0 and pace.step() == 2.0
