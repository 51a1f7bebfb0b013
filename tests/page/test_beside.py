"""`--page` beside a run: it shows the run while it goes, ends with it, and neither takes anything from the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from covey.observe import journal
from covey.observe.journal import JournalEvent, JournalMoment
from tests.page.conftest import record, serving, trained
from tests.page.test_server import get
from tests.warm import Command, Warm

pytest.importorskip("uvicorn")
PATIENCE = 60.0
DIGITS = "examples/digits.py"


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end, "never"
        time.sleep(0.05)
    return value


def rows(address: str) -> list[dict[str, Any]]:
    """The table as a browser is first told of it."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request("GET", "/events")
    line = connection.getresponse().readline()
    connection.close()
    found: list[dict[str, Any]] = json.loads(line.removeprefix(b"data: "))["rows"]
    return found


@contextmanager
def beside(warm: Warm, folder: Path, *words: str) -> Iterator[tuple[Command, str]]:
    """A command with --page, and the address that it tells."""
    told = folder / "told"
    with told.open("wb") as file:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        asked = ["-m", "covey", *words, "--page", "--runs", str(folder / "runs")]
        command = warm.start(asked, Path.cwd(), environment, output=[file.fileno(), file.fileno()])
    try:
        yield command, until(lambda: re.search(r"page: (http://\S+)", told.read_text()))[1]
    finally:
        command.kill()
        command.wait(PATIENCE)


def events(runs: Path) -> list[JournalEvent]:
    (one,) = runs.glob("*/journal.jsonl")
    return list(journal.read(one))


def page_over(runs: Path) -> int:
    """The process of the page over this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().split(b"\0")[1:5] == [b"-m", b"covey", b"page", os.fsencode(runs)]:
                return int(process.name)
        except OSError:
            continue
    return 0


def test_the_page_and_the_run_survive_each_other(warm: Warm, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with beside(warm, tmp_path, "run", DIGITS, "--workers", "2", "--epochs", "100000") as (command, address):
        (row,) = until(lambda: [row for row in rows(address) if row["samples"]])
        assert (row["status"], row["strategy"][:3], row["workers"]) == ("running", "bsp", 2)
        os.kill(page_over(runs), signal.SIGKILL)
        before = len(events(runs))
        until(lambda: len(events(runs)) > before + 2)
        with serving(str(runs)) as other:
            (after,) = rows(other)
            assert after["status"] == "running" and after["samples"] > row["samples"], "the page has kept nothing"
            os.kill(command.pid, signal.SIGKILL)
            killed = time.time()
            until(lambda: rows(other)[0]["status"] == "lost")
            (lost,) = rows(other)
        last = [event for event in events(runs) if isinstance(event, JournalMoment)][-1]
        assert 0 <= killed - last.at < 2, "at most the last second, and what a busy machine adds"
        assert lost["samples"] >= max(last.samples, after["samples"])


def test_a_comparison_is_shown_with_its_runs_and_its_page_ends_with_it(warm: Warm, tmp_path: Path) -> None:
    words = ["compare", DIGITS, "--strategies", "bsp,easgd", "--simulate", "--epochs", "100000"]
    with beside(warm, tmp_path, *words) as (command, address):
        found = until(lambda: len(told := rows(address)) > 1 and told)
        (whole,) = [row for row in found if row["kind"] == "comparison"]
        (inside,) = [row for row in found if row["parent"] == whole["id"]]
        assert inside["strategy"].startswith("bsp") and inside["status"] == "running"
        page = page_over(tmp_path / "runs")
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE) == 130
        until(lambda: not page_over(tmp_path / "runs"))
        assert page
        with pytest.raises(ConnectionRefusedError):
            rows(address)


def test_without_a_record_there_is_nothing_to_show(warm: Warm) -> None:
    for command in ("run", "compare"):
        done = warm.run(["-m", "covey", command, DIGITS, "--page", "--no-record"], Path.cwd(), 60)
        assert done.returncode == 2 and "--page shows the record of a run" in done.stderr


def test_records_that_come_and_go_while_they_are_read_are_not_an_error(tmp_path: Path) -> None:
    answers: set[int] = set()
    over = threading.Event()

    def ask(address: str) -> None:
        while not over.is_set():
            answers.add(get(address, "/run?id=coming")[0])
            answers.add(get(address, "/run?id=staying")[0])

    trained(record(tmp_path, "staying"), 3)
    with serving(str(tmp_path)) as address:
        asking = [threading.Thread(target=ask, args=(address,)) for _ in range(2)]
        for thread in asking:
            thread.start()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            written = record(tmp_path, "coming")
            trained(written, 3)
            rows(address)
            written.close()
            shutil.rmtree(tmp_path / "coming")
        over.set()
        for thread in asking:
            thread.join()
        assert {row["id"] for row in rows(address)} <= {"staying", "coming"}
    assert 200 in answers and answers <= {200, 404, 409}
