"""The result's shape is a promise: fields may be added, never changed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from covey.message import Address
from covey.observe.facts import RunFacts
from covey.observe.referee import Referee
from covey.observe.result import Result, conclude, read
from covey.observe.tally import Tally
from covey.target import Target
from tests.conftest import Golden


def result() -> Result:
    """A run with two workers and a master."""
    referee = Referee(100, Target("accuracy", 0.6))
    referee.judge(0.8, 3200, 1 << 20, {"accuracy": 0.61}, math.nan)
    tallies = [
        Tally(
            who=Address("worker", rank), seconds=10.0, compute=8.0, waiting=1.0, bytes={"master 0": 100 + rank},
            messages={"master 0": 2}, samples=50, updates=3, memory=210, notes={"dropped": 1.0},
        )
        for rank in (10, 2)
    ]  # fmt: skip
    master = Tally(
        who=Address("master", 0), bytes={"worker 10": 7, "worker 2": 5}, messages={"worker 10": 1, "worker 2": 1},
        staleness={7: 1, 0: 3},
    )  # fmt: skip
    facts = RunFacts(
        task="examples/digits.py:task", strategy="easgd(period=4)", engine="local", workers=2, command="covey run …",
        taxonomy={"parallelism": "data", "optimization": "decentral"}, settings={"rate": math.inf},
    )  # fmt: skip
    return conclude(facts, referee, [*tallies, master], seconds=12.3, stopped="target")


def test_the_shape(golden: Golden) -> None:
    golden("result.json", result().to_json())


def test_the_keys_are_those_of_the_design_in_its_order() -> None:
    assert list(json.loads(result().to_json())) == [
        "schema", "task", "strategy", "taxonomy", "engine", "workers", "servers", "threads", "seed", "command",
        "settings", "machine", "versions", "seconds", "samples", "updates", "stopped", "reached", "history", "traffic",
        "staleness", "roles", "failures", "notes", "usage", "contention",
    ]  # fmt: skip


def test_an_empty_run_has_a_result() -> None:
    empty = conclude(
        RunFacts(task="t", strategy="s", taxonomy={}, engine="local", workers=1), Referee(1), [],
        seconds=0.0, stopped="interrupted", failures=["worker 0 was lost"],
    )  # fmt: skip
    shape = json.loads(empty.to_json())
    assert shape["staleness"] == {"mean": None, "max": None, "histogram": {}}
    assert (shape["reached"], shape["failures"]) == (None, ["worker 0 was lost"])


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    result().write(path)
    assert read(path).to_json() == path.read_text() == result().to_json()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        result().write(path)
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_it_is_on_the_disk_before_it_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, sync, replace = list[str](), os.fsync, os.replace

    def synced(file: int) -> None:
        done.append(f"synced {os.fstat(file).st_size}")
        sync(file)

    def replaced(old: str, new: Path) -> None:
        done.append("replaced")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    result().write(tmp_path / "result.json")
    assert done == [f"synced {len(result().to_json().encode())}", "replaced"]


@pytest.mark.parametrize(
    ("seconds", "compute", "waiting"), [(10.0, 8.0, 1.0), (1.0, 3.0, 1.0), (2.0, 3.0, -0.5), (0, 0, 0)]
)
def test_the_shares_of_a_role_are_parts_of_a_whole(seconds: float, compute: float, waiting: float) -> None:
    """Clocks of threads may disagree by a little; nobody computes for longer than it was there."""
    tally = Tally(who=Address("worker", 0), seconds=seconds, compute=compute, waiting=waiting)
    facts = RunFacts(task="t", strategy="s", taxonomy={}, engine="local", workers=1)
    shares = conclude(facts, Referee(1), [tally], seconds=seconds, stopped="budget").roles["worker 0"]
    parts = shares.compute, shares.exchange, shares.waiting
    assert all(0 <= part <= 1 for part in parts) and sum(parts) == pytest.approx(1.0 if seconds else 0.0, abs=1e-3)
