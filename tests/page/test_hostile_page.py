"""What somebody puts into a record, and clients that do nothing, cost the page at most one row or one connection."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest

from covey.observe.journal import RunNow
from covey.observe.progress import RoleProgress
from covey.page import server
from covey.page.cluster import cluster
from covey.page.connections import MOST
from covey.page.endpoints import WatchedEndpoints
from covey.page.folder import EVERY, WatchedFolder
from covey.page.queue import WatchedQueue
from covey.page.rows import RunRow
from covey.page.server import STREAMS
from tests.page.browser import Browser
from tests.page.conftest import record, serving, trained

HUGE = "1" + "0" * 400  # an integer that is no float


def rows(folder: WatchedFolder) -> dict[str, RunRow]:
    time.sleep(EVERY)
    return {row.id: row for row in folder.changes(-1)[1]}


def answered(address: str, path: str, cookie: str = "") -> tuple[int, bytes, str]:
    response, connection = asked(address, path, cookie)
    body = response.read1() if path == "/events" else response.read()
    connection.close()
    return response.status, body, response.headers.get("set-cookie", "").partition(";")[0]


def asked(address: str, path: str, cookie: str = "") -> tuple[HTTPResponse, HTTPConnection]:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    return connection.getresponse(), connection


LINES = {
    "moment": f'{{"event":"moment","at":1,"phase":"training","samples":{HUGE},"seconds":1}}',
    "score": f'{{"event":"score","at":1,"row":{{"samples":1,"seconds":1,"accuracy":{HUGE}}}}}',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_number_that_is_too_large_makes_one_row_unreadable(tmp_path: Path, line: str) -> None:
    trained(record(tmp_path, "good"), 2)
    record(tmp_path, "bad").path.write_text(line + "\n")
    found = rows(WatchedFolder(tmp_path))
    assert {name: row.status for name, row in found.items()} == {"good": "running", "bad": "unreadable"}
    assert "64 bits" in found["bad"].why


def test_a_name_that_is_no_text_is_a_row_of_the_stream(tmp_path: Path) -> None:
    trained(record(tmp_path, "good"), 2)
    trained(record(tmp_path, "bad"), 2)
    os.rename(tmp_path / "bad", os.fsencode(tmp_path) + b"/b\xffd")
    broken = record(tmp_path, "broken")
    broken.path.write_text("{}\n")
    os.rename(tmp_path / "broken", os.fsencode(tmp_path) + b"/\xfe")
    with serving(str(tmp_path)) as address:
        word = json.loads(answered(address, "/events")[1].removeprefix(b"data: "))
        found = {row["id"]: row["status"] for row in word["rows"]}
        assert found == {"good": "running", "b\\udcffd": "running", "\\udcfe": "unreadable"}
        name = quote("b\\udcffd")
        assert answered(address, f"/run?id={name}")[0] == 200
        name = quote("\\udcfe")
        assert answered(address, f"/run?id={name}")[0] == 409


def test_a_link_in_place_of_the_runs_of_a_comparison_is_not_followed(tmp_path: Path) -> None:
    record(tmp_path / "elsewhere", "secret")
    record(tmp_path / "runs", "both")
    facts = tmp_path / "runs/both/facts.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"kind": "comparison"}))
    record(tmp_path / "runs/both/runs", "inner")
    folder = WatchedFolder(tmp_path / "runs")
    rows(folder)
    assert set(rows(folder)) == {"both", "both/inner"}
    (tmp_path / "runs/both/runs").rename(tmp_path / "moved")
    (tmp_path / "runs/both/runs").symlink_to(tmp_path / "elsewhere")
    assert set(rows(folder)) == {"both"} and folder.path("both/secret") is None


def test_a_long_text_in_place_of_a_wait_is_searched_in_time() -> None:
    waits = RoleProgress(step=1, samples=0, bytes=0, waiting="a" * 200_000 + " for worker 0")
    begun = time.process_time()
    found = cluster(RunNow(1.0, "training", 1.0, {"worker 0": waits}, {}))
    assert time.process_time() - begun < 2 and found.waits == [("worker 0", "worker 0", 1)]


def test_what_was_unreadable_or_lost_is_read_again_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.page.folder.SILENT", 0.0)
    written = record(tmp_path, "one")
    trained(written, 1)
    written.close()
    facts = (tmp_path / "one/facts.json").read_text()
    folder = WatchedFolder(tmp_path)
    rows(folder)
    assert rows(folder)["one"].status == "lost"
    written._open()
    trained(written, 2)
    assert (rows(folder)["one"].status, rows(folder)["one"].samples) == ("running", 200)
    written.path.write_text("{}\n")
    (tmp_path / "one/facts.json").write_text("{")
    assert rows(folder)["one"].status == "unreadable"
    written.path.write_text("")
    (tmp_path / "one/facts.json").write_text(facts)
    assert rows(folder)["one"].status == "running"


def test_silent_clients_and_streams_make_room_for_others(tmp_path: Path) -> None:
    trained(record(tmp_path, "one"), 2)
    with serving(str(tmp_path)) as address:
        place = (urlsplit(address).hostname, urlsplit(address).port)
        silent = [socket.create_connection(place) for _ in range(3 * MOST)]
        for client in silent[::2]:
            client.send(b"GET / HTTP/1.1\r\nHo")
        for path in ("/", "/events", "/run?id=one"):
            assert answered(address, path)[0] == 200
        streams = [asked(address, "/events") for _ in range(STREAMS + 8)]
        assert [response.status for response, _ in streams] == [200] * len(streams)
        assert all(b"data: " in response.readline() for response, _ in streams)
        for response, _ in streams[:8]:
            response.read()  # to its end
        assert answered(address, "/run?id=one")[0] == 200
        for client in silent:
            client.close()


def test_a_slow_folder_keeps_no_beat_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page takes a server for stopped that says nothing for 8 s."""
    monkeypatch.setattr(server, "QUIET", 0.2)
    looks, beat = list[int](), Event()

    def changes(since: int) -> tuple[int, list[RunRow], list[str]]:
        looks.append(since)
        if len(looks) == 2:
            beat.wait(5)
        time.sleep(0.3)
        return 0, [], []

    async def beats(many: int) -> list[int]:
        """How many looks had begun at each."""
        queue = WatchedQueue(tmp_path)
        drawn = {"queue": queue, "endpoints": WatchedEndpoints(tmp_path)}
        found, folder = list[int](), SimpleNamespace(changes=changes, runs=tmp_path, trouble="", **drawn)
        async for word in server._words(folder):  # type: ignore[arg-type]
            if word.startswith(b"event: beat") and len(looks) > 1:
                found.append(len(looks))
                beat.set()
            if len(found) == many:
                break
        return found

    first, *_, last = asyncio.run(beats(4))
    assert first == 2 and last <= first + 4, "one while the second look took long, and then one in each"


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_a_page_answers_to_the_loopback_address_that_it_prints(tmp_path: Path, host: str) -> None:
    with serving(str(tmp_path), "--host", host) as address:
        assert host in address and "token" not in address and answered(address, "/")[0] == 200


def test_two_pages_of_one_host_have_two_cookies(tmp_path: Path) -> None:
    with serving(str(tmp_path), "--host", "0.0.0.0") as one, serving(str(tmp_path), "--host", "0.0.0.0") as two:
        cookies = [answered(a.replace("0.0.0.0", "127.0.0.1"), f"/?{urlsplit(a).query}")[2] for a in (one, two)]
        for address in (one, two):
            assert answered(address.replace("0.0.0.0", "127.0.0.1"), "/", "; ".join(cookies))[0] == 200


def test_hostile_names_are_text_in_every_place(tmp_path: Path, tab: Browser) -> None:
    evil = "<img src=x onerror=document.title='owned'>"
    written = record(tmp_path, "<svg onload=document.title='owned'>", strategy=evil)
    for now in (1, 2, 3):
        written.score({"seconds": now, "samples": now, "bytes": now, "loss": 1.0, evil: now})
    written.say(evil)
    role = {"step": 1, "samples": 0, "bytes": 0, "waiting": f"{evil} from worker 0"}
    roles = dict.fromkeys(("worker 0", evil, "__proto__ 1", "worker x", "constructor"), role)
    (written.path.parent / "now.json").write_text(json.dumps({
        "at": 1, "phase": "training", "seconds": 1, "links": {evil: {"worker 0": 5}},
        "roles": roles,
    }))  # fmt: skip
    written.end(f"x {evil}", evil)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('#cluster g.role').length == 5")
        tab.until("document.querySelectorAll('#lines li').length == 2")
        assert tab.js("document.querySelectorAll('img, [onload], [onerror]').length") == 0
        assert tab.js("document.title") == "covey" and tab.js("document.querySelector('h1').textContent") == evil
        assert not [line for line in tab.said if not re.search("favicon", line)]
