"""Callbacks hear everything in order, off the run's thread; one that fails or hangs is dropped with one line."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import covey
from covey.observe.callbacks import CallbackThread
from covey.observe.facts import RunFacts
from covey.observe.membership import MembershipEvent
from covey.observe.progress import Progress, RoleProgress
from covey.observe.records import RunRecordFolder

DIGITS = "examples/digits.py"


class Heard(covey.Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()

    def _hear(self, name: str, what: Any) -> None:
        self.calls.append((name, what))
        self.threads.add(threading.current_thread().name)

    def started(self, facts: Any) -> None:
        self._hear("started", facts)

    def reported(self, progress: Sequence[Progress]) -> None:
        self._hear("reported", progress)

    def scored(self, row: Any) -> None:
        self._hear("scored", row)

    def kept(self, checkpoint: Path) -> None:
        self._hear("kept", checkpoint)

    def member_left(self, change: Any) -> None:
        self._hear("member_left", change)

    def ended(self, result: Any, why: str) -> None:
        self._hear("ended", (result, why))

    def of(self, name: str) -> list[Any]:
        return [what for kind, what in self.calls if kind == name]


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_it_hears_of_a_run_from_start_to_end(engine: str, tmp_path: Path) -> None:
    heard = Heard()
    kept = {"checkpoint": tmp_path / "kept", "every": "50ms"} if engine == "local" else {}
    result = covey.fit(DIGITS, "bsp", 2, engine=engine, epochs=3, callbacks=[heard], **kept)  # type: ignore[arg-type]
    assert heard.calls[0][0] == "started" and heard.of("started")[0].strategy == result.strategy
    assert heard.calls[-1] == ("ended", (result, "")) and heard.of("scored")[-1] == result.history[-1]
    samples = [one.samples for many in heard.of("reported") for one in many]
    assert samples == sorted(samples) and samples[-1] == result.samples
    assert heard.threads == {"callback Heard"}
    if kept:
        assert heard.of("kept") and all(path.parent == tmp_path / "kept" for path in heard.of("kept"))


@pytest.mark.parametrize("how", ["restart", "continue"])
@pytest.mark.parametrize(("engine", "when", "epochs"), [("simulated", "50ms", 6), ("local", "300ms", 20)])
def test_it_hears_of_a_lost_process_at_once(engine: str, when: str, epochs: int, how: str, tmp_path: Path) -> None:
    heard = Heard()
    kept = {"checkpoint": tmp_path / "kept", "every": "100ms"} if how == "restart" else {}
    result = covey.fit(
        DIGITS, "bsp", 2, engine=engine, epochs=epochs, callbacks=[heard], faults=f"kill worker 1@{when}",
        on_failure=how, runs=tmp_path / "runs", **kept,
    )  # type: ignore[arg-type]  # fmt: skip
    (change,), (event,) = heard.of("member_left"), result.membership or ()
    assert (change.who, change.event, change.seconds) == ("worker 1", event.event, event.seconds)
    assert event.stalled > 0
    names = [name for name, _ in heard.calls]
    assert names[names.index("member_left") :].count("scored") > 2, "the run goes on for a while"
    assert result.record is not None
    kinds = [type(event).__name__ for event in RunRecordFolder(result.record).events]
    assert kinds[kinds.index("JournalChange") :].count("JournalScore") > 2


def test_callbacks_of_a_task_hear_too_and_do_not_travel_to_roles() -> None:
    heard = Heard()
    heard.calls.append(("lock", threading.Lock()))  # which no other process could be given
    images, labels = covey.data.digits().tensors
    task = covey.Task(
        model=lambda: __import__("torch").nn.Linear(64, 10), data=(images.flatten(1), labels), callbacks=[heard],
        optimizer=lambda params: __import__("torch").optim.SGD(params, lr=0.1),
        loss=__import__("torch").nn.functional.cross_entropy,
    )  # fmt: skip
    covey.fit(task, "bsp", 2, steps=3)
    assert [name for name, _ in heard.calls if name in ("started", "ended")] == ["started", "ended"]


def test_a_failed_run_ends_with_its_reason(tmp_path: Path) -> None:
    heard = Heard()
    file = tmp_path / "broken.py"
    file.write_text(
        Path(DIGITS).read_text() + "\nimport dataclasses\ntask = dataclasses.replace(task, loss=lambda *_: 1 / 0)"
    )
    with pytest.raises(covey.CoveyError):
        covey.fit(str(file), "bsp", 2, engine="simulated", steps=3, callbacks=[heard])
    ((result, why),) = heard.of("ended")
    assert result is None and "division by zero" in why


def test_what_is_no_callback_is_refused() -> None:
    with pytest.raises(covey.PlanError, match=r"callbacks must be a list \(each a covey.Callback\)"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, callbacks=[print])  # type: ignore[list-item]
    with pytest.raises(covey.PlanError, match=r"callbacks must be a list \(each a covey.Callback\), not Heard"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, callbacks=Heard())  # type: ignore[arg-type]
    with pytest.raises(covey.PlanError, match=r"log must be a list \(each a string\), not str"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, log="csv:scores.csv")


def test_one_whose_methods_nobody_calls_is_refused_with_the_nearest_name() -> None:
    class Misspelt(covey.Callback):
        def on_score(self, row: Any) -> None:
            raise AssertionError("never called")

    with pytest.raises(covey.PlanError, match=r"Misspelt has none .* did you mean scored \(not on_score\)"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, callbacks=[Misspelt()])
    late = Misspelt()
    late.scored = print  # type: ignore[method-assign]  # one that is given to the object will do
    covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, callbacks=[late])


class Failing(covey.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def scored(self, row: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no such table"), "ValueError: no such table"), (SystemExit(2), "SystemExit(2)"),
        (KeyboardInterrupt(), "KeyboardInterrupt()"),
    ],
)  # fmt: skip
def test_one_that_raises_is_dropped_with_one_line(error: BaseException, told: str) -> None:
    said: list[str] = []

    class Watch:
        def update(self, progress: Progress) -> None:
            pass

        def say(self, line: str) -> None:
            said.append(line)

    other = Heard()
    result = covey.fit(
        DIGITS, "bsp", 2, engine="simulated", epochs=3, callbacks=[Failing(error), other], watcher=Watch()
    )  # fmt: skip
    assert len(said) == 1 and said[0].startswith(f"Failing failed in scored: {told}")
    assert other.of("ended") == [(result, "")]


def test_one_that_hangs_is_dropped_and_does_not_delay_the_end() -> None:
    said, free = list[str](), threading.Event()

    class Hanging(covey.Callback):
        patience = 0.2

        def started(self, facts: Any) -> None:
            free.wait(30)

    thread = CallbackThread(Hanging(), said.append)
    thread.call("started", None)
    begin = time.monotonic()
    thread.close()
    free.set()
    assert time.monotonic() - begin < 5 and said == [
        "Hanging has not returned for 0.2 s: it is told no more of this run"
    ]


def test_reports_that_wait_come_together_and_memory_is_bounded() -> None:
    said, free, many = list[str](), threading.Event(), list[int]()

    class Slow(covey.Callback):
        def scored(self, row: Any) -> None:
            free.wait(30)

        def reported(self, progress: Sequence[Progress]) -> None:
            many.append(len(progress))

    thread = CallbackThread(Slow(), said.append)
    thread.call("scored", {})
    for _ in range(50):
        thread.call("reported", Progress(phase="training"))
    free.set()
    thread.close()
    assert sum(many) == 50 and len(many) <= 2 and said == []
    free.clear()
    flooded = CallbackThread(Slow(), said.append)
    for _ in range(1100):
        flooded.call("scored", {})
    free.set()
    assert said == ["Slow is 1000 calls behind: it is told no more of this run"]


def test_a_child_that_a_callback_forks_does_not_go_on_as_the_launcher() -> None:
    children: list[int] = []

    class Forking(covey.Callback):
        def started(self, facts: Any) -> None:
            if child := os.fork():
                children.append(child)

    told: list[str] = []
    thread = CallbackThread(Forking(), told.append)
    thread.call("started", None)
    thread.close()
    until = time.monotonic() + 10
    while not (ended := os.waitpid(children[0], os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
    assert ended == (children[0], 0) and told == []


@pytest.mark.parametrize(
    ("argument", "kind"),
    [("facts", RunFacts), ("progress", Progress), ("a role of `roles`", RoleProgress), ("change", MembershipEvent)],
)
def test_the_page_on_callbacks_names_every_field(argument: str, kind: type[msgspec.Struct]) -> None:
    page = Path("docs/loggers.md").read_text()
    cell = argument if "`" in argument else f"`{argument}`"
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {cell} |") and "(" in line]
    named = set(re.findall(r"`([a-z_]+)`", row))
    missing = set(kind.__struct_fields__) - named
    assert not missing, f"docs/loggers.md does not name {missing} of {argument}"
