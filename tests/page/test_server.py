"""The page's server reads one folder and nothing else, tells what has changed, and answers only whom it should."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from covey.observe import journal
from covey.observe.journal import RunNow
from covey.observe.progress import Progress, RoleProgress
from covey.page import connections
from covey.page.cluster import ClusterView, cluster
from covey.page.connections import BoundedConnection
from covey.page.folder import EVERY, WatchedFolder
from covey.page.rows import RunRow
from covey.page.series import series
from covey.page.tail import JournalCursor, news
from tests.page.conftest import record, serving, trained


def rows(folder: WatchedFolder, since: int = -1) -> dict[str, RunRow]:
    time.sleep(EVERY)
    return {row.id: row for row in folder.changes(since)[1]}


def test_a_row_says_what_the_journal_said_last(tmp_path: Path) -> None:
    trained(record(tmp_path, "one"), 3)
    folder = WatchedFolder(tmp_path)
    row = rows(folder)["one"]
    assert (row.status, row.strategy, row.workers) == ("running", "bsp", 4)
    assert (row.seconds, row.samples, row.rate, row.metrics) == (3, 300, 100, {"accuracy": 0.9})


def test_only_what_has_changed_is_told_again(tmp_path: Path) -> None:
    first, second = record(tmp_path, "first"), record(tmp_path, "second")
    trained(first, 1)
    folder = WatchedFolder(tmp_path)
    assert set(rows(folder)) == {"first", "second"}
    serial = folder.serial
    assert rows(folder, serial) == {}
    trained(second, 2)
    assert list(rows(folder, serial)) == ["second"]
    second.end("failed", "the disk <b>burned</b>")
    changed = rows(folder, serial)["second"]
    assert (changed.status, changed.why) == ("failed", "the disk <b>burned</b>")
    serial = folder.serial
    shutil.rmtree(tmp_path / "second")
    time.sleep(EVERY)
    assert folder.changes(serial)[1:] == ([], ["second"])


def test_a_run_that_comes_back_is_no_longer_told_as_gone(tmp_path: Path) -> None:
    trained(record(tmp_path, "one"), 1)
    folder = WatchedFolder(tmp_path)
    rows(folder)
    (tmp_path / "one").rename(tmp_path.parent / "aside")
    time.sleep(EVERY)
    assert folder.changes(-1)[1:] == ([], ["one"])
    (tmp_path.parent / "aside").rename(tmp_path / "one")
    time.sleep(EVERY)
    _, back, gone = folder.changes(-1)
    assert [row.id for row in back] == ["one"] and gone == []


def test_a_moment_without_a_loss_leaves_the_last_one(tmp_path: Path) -> None:
    written = record(tmp_path, "one")
    trained(written, 2)
    folder = WatchedFolder(tmp_path)
    assert rows(folder)["one"].loss == 1.0
    written.moment(Progress(phase="scoring", seconds=3, samples=300))
    row = rows(folder)["one"]
    assert (row.samples, row.loss) == (300, 1.0)


def test_of_idle_connections_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 3)
    monkeypatch.setattr(H11Protocol, "connection_made", lambda one, transport: one.connections.add(one))
    monkeypatch.setattr(BoundedConnection, "does_nothing", lambda one: one.idle)  # type: ignore[attr-defined]
    there, closed = set[Any](), list[str]()
    for name, idle in [("busy", False), ("first", True), ("second", True), ("third", True), ("last", False)]:
        one: Any = BoundedConnection.__new__(BoundedConnection)
        one.connections, one.idle = there, idle
        one.transport = SimpleNamespace(abort=partial(closed.append, name))
        one.connection_made(one.transport)
    assert closed == ["first", "second"]


def test_a_writer_that_died_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.page.folder.SILENT", 0.0)
    dead, alive = record(tmp_path, "dead"), record(tmp_path, "alive")
    trained(dead, 1)
    trained(alive, 1)
    dead.close()
    folder = WatchedFolder(tmp_path)
    rows(folder)
    assert {name: row.status for name, row in rows(folder).items()} == {"dead": "lost", "alive": "running"}


def test_a_reader_that_asks_whether_the_writer_lives_does_not_end_the_journal(tmp_path: Path) -> None:
    """It holds the lock of the file for a moment, and the writer wants it when it begins."""
    written = record(tmp_path, "one")
    written.close()
    with written.path.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        Timer(0.1, fcntl.flock, (reader, fcntl.LOCK_UN)).start()
        written._open()
    assert journal.being_written(written.path)


def test_what_is_unreadable_is_one_line_of_its_row(tmp_path: Path) -> None:
    trained(record(tmp_path, "future"), 1)
    (tmp_path / "future/journal.jsonl").write_text('{"event":"teleported","at":1}\n')
    record(tmp_path, "pipe").path.unlink()
    os.mkfifo(tmp_path / "pipe/journal.jsonl")
    record(tmp_path, "link").path.unlink()
    (tmp_path / "link/journal.jsonl").symlink_to("/etc/passwd")
    record(tmp_path, "old")
    (tmp_path / "old/facts.json").write_text(json.dumps({"schema": "covey.run/0"}))
    found = rows(WatchedFolder(tmp_path))
    assert {name: row.status for name, row in found.items()} == dict.fromkeys(
        ("future", "link", "old", "pipe"), "unreadable"
    )
    assert all(row.why and "\n" not in row.why for row in found.values())
    assert "teleported" in found["future"].why


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    record(tmp_path / "elsewhere", "secret")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/link").symlink_to(tmp_path / "elsewhere/secret")
    folder = WatchedFolder(tmp_path / "runs")
    assert rows(folder) == {}
    assert folder.path("../elsewhere/secret") is None and folder.path("link") is None


def test_a_cursor_reads_on_and_begins_anew_in_a_thinned_journal(tmp_path: Path) -> None:
    written = record(tmp_path, "one")
    trained(written, 2)
    path = tmp_path / "one"
    first = series(path, JournalCursor())
    assert first.whole and first.moments["samples"] == [100, 200] and first.facts["strategy"] == "bsp"
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b'{"event":"said","at":1.0,"li')  # not whole yet
    after = series(path, JournalCursor.parse(first.cursor))
    assert not after.whole and after.moments["samples"] == [] and after.lines == []
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b'ne":"hello"}\n')
    assert series(path, JournalCursor.parse(after.cursor)).lines == [(1.0, "hello")]
    written._thin()
    trained(written, 20)  # so that the new file is longer than the old one was
    again = series(path, JournalCursor.parse(after.cursor))
    assert again.whole and again.moments == series(path, JournalCursor()).moments


def test_the_tail_of_a_long_journal_begins_with_a_whole_line(tmp_path: Path) -> None:
    trained(record(tmp_path, "one"), 50)
    whole, _ = news(tmp_path / "one/journal.jsonl", JournalCursor())
    for most in range(300, 700, 7):
        tail, cursor = news(tmp_path / "one/journal.jsonl", JournalCursor(), most)
        assert tail == whole[-len(tail) :] and tail
        assert news(tmp_path / "one/journal.jsonl", cursor) == ([], cursor)


def test_a_large_cluster_is_summed_up() -> None:
    def view(count: int, phase: str = "training") -> ClusterView:
        waits = RoleProgress(step=1, samples=0, bytes=0, waiting="X from worker 0")
        roles = {f"worker {n}": waits for n in range(count)}
        links = {f"worker {n}": {"worker 0": 10} for n in range(1, count)}
        return cluster(RunNow(1.0, phase, 1.0, roles, links))  # type: ignore[arg-type]

    small, large = view(3), view(5000)
    assert small.links == [("worker 1", "worker 0", 10), ("worker 2", "worker 0", 10)] and set(small.roles) == {
        "worker 0", "worker 1", "worker 2",
    }  # fmt: skip
    assert large.links == [("worker", "worker", 49_990)] and large.roles == {}
    assert large.waits == [("worker", "worker 0", 5000)] and large.states == {"worker": "w" * 5000}
    assert view(3, "ended").states == {"worker": "sss"} and view(3, "ended").waits == []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    trained(record(runs, "one"), 2)
    (runs / "secret.txt").write_text("secret")
    with serving(str(runs)) as address:
        yield address


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


NOWHERE = ["..", "../..", "../secret.txt", "one/../../secret.txt", "/etc/passwd", "", "<script>", "one\0", "one/"]


@pytest.mark.parametrize("name", NOWHERE)
def test_names_lead_nowhere_but_to_runs(page: str, name: str) -> None:
    assert get(page, f"/run?id={quote(name, safe='')}")[0] == 404
    if name not in ("", "one/"):
        for path in (quote(name, safe=""), quote(name)):
            status, _, body = get(page, f"/static/{path}")
            assert status == 404 and b"secret" not in body and b"root:" not in body


def test_a_run_is_answered_with_its_columns(page: str) -> None:
    status, headers, body = get(page, "/run?id=one&since=nonsense")
    told: dict[str, Any] = json.loads(body)
    assert status == 200 and told["moments"]["loss"] == [2.0, 1.0] and len(told["scores"]) == 2
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(page: str, method: str) -> None:
    assert get(page, "/run?id=one", method)[0] == 405


def test_a_page_of_this_machine_answers_no_other_name(page: str) -> None:
    """A site that points its own name at 127.0.0.1 must not read records through a person's browser."""
    assert get(page, "/", Host="evil.example:80")[0] == 421
    assert get(page, "/", Host="localhost:1")[0] == 200


def test_elsewhere_a_token_is_needed(tmp_path: Path) -> None:
    record(tmp_path, "one")
    with serving(str(tmp_path), "--host", "0.0.0.0") as address:
        local = address.replace("0.0.0.0", "127.0.0.1")
        token = urlsplit(address).query
        assert token.startswith("token=") and len(token) > 30
        for path in ("/", "/events", "/run?id=one", "/static/main.js", "/?token=", "/?token=wrong"):
            assert get(local, path)[0] == 403, path
        status, headers, _ = get(local, f"/?{token}")
        assert status == 303 and headers["location"] == "/"
        assert "httponly" in headers["set-cookie"].lower() and "samesite=strict" in headers["set-cookie"].lower()
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(local, "/run?id=one", Cookie=cookie)[0] == 200
        assert get(local, "/run?id=one", Cookie=cookie + "x")[0] == 403


def refused(*words: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "covey", "page", *words],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_port_in_use_and_a_folder_that_is_not_there_are_one_line(page: str, tmp_path: Path) -> None:
    code, said = refused(str(tmp_path), "--port", str(urlsplit(page).port))
    assert code == 2 and len(said.splitlines()) == 1 and "--port 0" in said
    code, said = refused(str(tmp_path / "none"))
    assert code == 2 and len(said.splitlines()) == 1 and "there is no folder" in said


def test_the_page_starts_without_torch(tmp_path: Path) -> None:
    text = "import sys, covey.page.server, covey.page.serving; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", text], env=environment, check=False).returncode == 0
