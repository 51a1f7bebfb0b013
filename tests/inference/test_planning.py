"""Set-ups that are tried in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import PlanError
from covey.inference.batch_times import BatchTimes
from covey.inference.path import path_probe, rehearsal
from covey.inference.planning import MachinePrice, forecasts, measure, read_prices, read_trace
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.scaler import ScalerSettings

SETTINGS = FrontSettings(objective=0.05, largest=1)
STEADY = [number / 100 for number in range(400)]  # 100 requests a second


def test_the_fewest_replicas_that_keep_the_objective_are_found() -> None:
    """A request takes 25 ms: 100 a second need 2.5 replicas, or one that is three times as fast."""
    prices = {"small": MachinePrice(0.10), "fast": MachinePrice(0.35, 3.0), "slow": MachinePrice(0.01, 0.2)}
    found = forecasts(STEADY, lambda size: 0.025 * size, prices, SETTINGS, 0.99)
    assert [(one.machine, one.replicas, one.keeps) for one in found] == [
        ("small", 3, True), ("fast", 1, True), ("slow", 64, False),
    ]  # fmt: skip
    assert found[0].price == pytest.approx(0.30) and found[0].seconds <= 0.05 and found[0].in_time >= 0.99
    assert found[2].in_time == 0 and found[2].seconds == pytest.approx(0.125)


def test_a_scaler_costs_what_its_replicas_cost() -> None:
    """Half of the time 100 requests come per second, which need 3 replicas, and half of the time 4."""
    arrivals = [*STEADY, *(4 + number / 4 for number in range(16)), *(8 + at for at in STEADY)]
    arrivals += [12 + number / 4 for number in range(16)]
    scaled = ScalerSettings(least=1, most=8, share=0.9, slack=0.025)
    prices = {"small": MachinePrice(1.0, setup=0.2), "slow": MachinePrice(1.0, setup=4.0)}
    found = forecasts(arrivals, lambda size: 0.025 * size, prices, SETTINGS, 0.9, scaled=scaled)
    slow, small = sorted(found, key=lambda one: one.machine)
    assert 1.5 < small.mean < 4 and small.price == pytest.approx(small.mean) and 3 <= small.replicas <= 8
    assert small.in_time > slow.in_time, "replicas that take 4 s to come are there when the load is over"


def test_the_percentile_counts() -> None:
    """Of 100 requests, 4 come at once, and one replica is late for two of them."""
    arrivals = [0.1 * number for number in range(96)] + [20.0] * 4
    prices = {"small": MachinePrice(1.0)}

    def replicas(share: float) -> int:
        return forecasts(arrivals, lambda size: 0.02, prices, SETTINGS, share)[0].replicas

    assert (replicas(0.98), replicas(0.99)) == (1, 2)


def test_times_lie_on_lines_between_those_measured() -> None:
    times = BatchTimes([1, 2, 4], [1.0, 3.0, 4.0])
    assert [times(size) for size in (1, 2, 3, 4, 9)] == [1.0, 3.0, 3.5, 4.0, 6.5], "the last line goes on"
    seen: list[int] = []

    def model(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows

    assert list(measure(model, torch.ones(2, 3), 6).sizes) == sorted(set(seen)) == [1, 2, 4, 6]


def test_files_are_read(tmp_path: Path) -> None:
    trace, prices = tmp_path / "trace.csv", tmp_path / "prices.toml"
    trace.write_text("seconds,path\n0.5,/predict\n0.25,/predict\n\n3\n")
    assert read_trace(trace) == [0.25, 0.5, 3.0]
    prices.write_text("[small]\nprice = 0.1\n[large]\nprice = 1\nspeed = 4\n")
    assert read_prices(prices) == {"small": MachinePrice(0.1, 1.0), "large": MachinePrice(1.0, 4.0)}


@pytest.mark.parametrize("text", ["", "seconds\n", "0.5\nsoon\n", "-1\n", "inf\n", "nan\n", "1795000000\n", "\xff\xfe"])
def test_bad_traces_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=r"trace\.csv"):
        read_trace(tmp_path / "trace.csv")


@pytest.mark.parametrize(
    "text",
    [
        "", "price = 1", "[small]", "[small]\nprice = 'much'", "[small]\nprice = -1", "[small]\nprice = 1\nspeed = 0",
        "[small]\nprice = 1\nsped = 2", "[small]\nprice = 1\nsetup = -1", "[small]\nprice = nan", "[small", "\x00",
        "[small]\nprice = 1\nsetup = 1e9",
    ],
)  # fmt: skip
def test_bad_prices_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(PlanError, match=r"prices\.toml"):
        read_prices(tmp_path / "prices.toml")


def test_missing_files_are_refused(tmp_path: Path) -> None:
    for read in (read_trace, read_prices):
        with pytest.raises(PlanError, match="cannot be read"):
            read(tmp_path / "none")


def test_the_command_names_the_cheapest_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks a real endpoint, for a tenth of the usual time: `test_a_real_endpoint_is_measured` has all of it."""
    pytest.importorskip("uvicorn")
    monkeypatch.setattr(path_probe, "PHASES", tuple((clients, asked // 10) for clients, asked in path_probe.PHASES))
    monkeypatch.setattr(path_probe, "WARM_UP", 10)
    monkeypatch.setattr(rehearsal, "SECONDS", 0.3)
    sizes = {"1.weight": (64, 64), "1.bias": (64,), "3.weight": (10, 64), "3.bias": (10,)}
    save_file({name: torch.zeros(*size) for name, size in sizes.items()}, tmp_path / "model.safetensors")
    words = ["serve", str(tmp_path / "model.safetensors"), "--task", "examples/digits.py", "--slo", "p90:1s"]
    files = ["--plan", "examples/arrivals.csv", "--prices", "examples/prices.toml", "--largest-batch", "8"]
    shown = CliRunner().invoke(app, [*words, *files, "--json", str(tmp_path / "plan.json")])
    assert shown.exit_code == 0, shown.output
    assert "cheapest for" in shown.output and "1 x small, 0.05 an hour" in shown.output
    first, second = json.loads((tmp_path / "plan.json").read_text())
    assert (first["machine"], first["keeps"], second["machine"]) == ("small", True, "large")


def test_batches_smaller_than_those_measured_take_as_long_as_the_smallest() -> None:
    times = BatchTimes([2, 4, 8], [1.0, 3.0, 4.0])
    assert [times(size) for size in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]
    assert times.largest_within(3.5, 16) == 6 and times.largest_within(0.5, 16) == 1


def test_what_a_replica_can_answer_is_in_time_with_the_delay_of_its_batches() -> None:
    times = BatchTimes([1, 10], [0.01, 0.1])
    assert times.rate(0.1, 16) == pytest.approx(10 / 0.1)
    assert times.rate(0.1, 16, delay=0.045) == pytest.approx(5 / 0.095), "five in 50 ms, and 45 ms more"


def test_each_stage_of_a_replica_is_a_machine() -> None:
    prices = {"small": MachinePrice(0.10)}
    (whole,) = forecasts(STEADY, lambda size: 0.005 * size, prices, SETTINGS, 0.99)
    (cut,) = forecasts(STEADY, [BatchTimes([1, 2], [0.0025, 0.005])] * 2, prices, SETTINGS, 0.99)
    assert whole.replicas == cut.replicas == 1
    assert (whole.price, cut.price) == (pytest.approx(0.10), pytest.approx(0.20))
