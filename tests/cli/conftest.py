"""A pretended run for tests of what is shown, and a result to show."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import covey.run
from covey.observe.progress import Progress, RoleProgress
from covey.observe.referee import TargetReached
from covey.observe.result import Result, Staleness, TimeShares, Traffic

ResultMaker = Callable[..., Result]


class Calls:
    """What the commands asked of `covey.run`, and what it answers."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.raised: BaseException | None = None
        self.asked: dict[str, Any] = {}

    def fit(self, task: str, strategy: str, workers: int, **options: Any) -> Result:
        self.asked = {"task": task, "strategy": strategy, "workers": workers, **options}
        return self._run(options["watcher"])

    def launch(self, script: Any, arguments: list[str], strategy: str, workers: int, **options: Any) -> Result:
        self.asked = {
            "script": str(script),
            "arguments": arguments,
            "strategy": strategy,
            "workers": workers,
            **options,
        }
        return self._run(options["watcher"])

    def _run(self, watcher: Any) -> Result:
        watcher.update(Progress(phase="training", seconds=1.0, samples=320, metrics={"accuracy": 0.5}))
        watcher.say("a word on the way")
        if self.raised is not None:
            raise self.raised
        return self.result


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def result() -> ResultMaker:
    def make(**changes: Any) -> Result:
        facts: dict[str, Any] = {
            "task": "digits.py:task",
            "strategy": "easgd(period=4, pull=0.225)",
            "taxonomy": {},
            "engine": "local",
            "workers": 4,
            "servers": 0,
            "seconds": 12.5,
            "samples": 51200,
            "updates": 800,
            "stopped": "target",
            "reached": TargetReached("accuracy", 0.95, 7.1, 30720),
            "history": [
                {"seconds": 0.8, "samples": 3200, "bytes": 1048576, "accuracy": 0.61, "loss": 1.2},
                {"seconds": 12.0, "samples": 51200, "bytes": 104857600, "accuracy": 0.9532, "loss": 0.13},
            ],
            "traffic": Traffic(
                bytes=104_857_600,
                messages=3200,
                by_link={},
                by_role={"master->worker": 52_428_800, "worker->master": 52_428_800},
            ),
            "staleness": Staleness(mean=1.93, max=7, histogram={1: 3}),
            "roles": {
                "worker 0": TimeShares(compute=0.75, exchange=0.125, waiting=0.125, memory=210_000_000),
                "master 0": TimeShares(compute=0.0, exchange=0.25, waiting=0.75, memory=0),
            },
            "failures": [],
            "notes": {},
        }
        return Result(**{**facts, **changes})

    return make


@pytest.fixture
def calls(result: ResultMaker, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """`covey.run` replaced by something that runs nothing."""
    made = Calls(result())
    fake = ModuleType("covey.run")
    fake.__path__ = covey.run.__path__  # what commands read of it besides is real
    fake.fit, fake.launch = made.fit, made.launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "covey.run", fake)
    return made


@pytest.fixture
def progress() -> Callable[..., Progress]:
    """A report after `second` seconds of a run that trains 100 samples a second."""

    def make(second: float, **changes: Any) -> Progress:
        roles = {
            "worker 0": RoleProgress(step=int(second * 10), samples=int(second * 50), bytes=int(second * 500)),
            "worker 1": RoleProgress(
                step=9, samples=int(second * 50), bytes=int(second * 500), waiting="Params from server 0", waited=4.2
            ),
        }
        facts: dict[str, Any] = {
            "phase": "training",
            "seconds": second,
            "samples": int(second * 100),
            "budget": 1000,
            "bytes": int(second * 1000),
            "loss": 1 / second,
            "metrics": {"accuracy": 0.5},
            "staleness": 1.9,
            "roles": roles,
        }
        return Progress(**{**facts, **changes})

    return make
