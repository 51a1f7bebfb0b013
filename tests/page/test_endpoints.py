"""Endpoints on the page: what each says of itself, until it says nothing any more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from covey.inference.endpoint_record import EndpointRecord
from covey.page.endpoints import FOLDER, EndpointNow, WatchedEndpoints
from covey.page.folder import WatchedFolder
from tests.page.browser import Browser
from tests.page.conftest import serving
from tests.page.test_browser import EVIL

CELLS = "[...document.querySelectorAll('#endpoints tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"


def endpoint(runs: Path, name: str = "a", **more: Any) -> None:
    (runs / FOLDER).mkdir(parents=True, exist_ok=True)
    usual = {"address": "http://127.0.0.1:8480", "model": "digits:3", "began": "2026-11-18T05:00:00Z"}
    (runs / FOLDER / f"{name}.json").write_bytes(
        msgspec.json.encode(EndpointNow(**({"at": time.time()} | usual | more)))
    )


def told(answers: dict[str, int]) -> dict[str, Any]:
    return {
        "answers": answers, "p50_ms": 1.0, "p99_ms": 2.5, "mean_batch": 3.0, "replicas": 2, "replicas_lost": 1
    }  # fmt: skip


def test_endpoints_are_shown_until_they_have_been_silent_for_long(tmp_path: Path) -> None:
    folder = WatchedFolder(tmp_path)
    before, *_ = folder.changes(-1)
    endpoint(tmp_path, "now", replicas=2)
    endpoint(tmp_path, "silent", at=time.time() - 60)
    endpoint(tmp_path, "forgotten", at=time.time() - 3600)
    (tmp_path / FOLDER / "other.json").write_text('{"address": 1}')
    (tmp_path / FOLDER / "link.json").symlink_to(tmp_path / FOLDER / "now.json")
    folder._looked = 0.0
    after, rows, _ = folder.changes(before)
    assert after > before and rows == [], "they are no runs"
    assert [(one.replicas, one.silent) for one in folder.endpoints.view] == [(2, False), (0, True)]
    assert not folder.endpoints.look(), "nothing is new"
    (tmp_path / FOLDER / "now.json").unlink()
    assert folder.endpoints.look() and [one.silent for one in folder.endpoints.view] == [True]


def test_an_endpoint_writes_how_it_is_doing_and_removes_that_at_its_end(tmp_path: Path) -> None:
    answers = {"200": 10}
    record = EndpointRecord(tmp_path, "http://[::1]:80", "digits:3", lambda: told(answers))
    record._before = (time.monotonic() - 2.0, 0)
    assert record.state().rate == pytest.approx(5.0, rel=0.5)
    record._before = (time.monotonic() - 2.0, record._before[1])
    answers["200"] = 12
    assert record.state().rate == pytest.approx(1.0, rel=0.5), "those since it was last asked"
    page = WatchedEndpoints(tmp_path)

    async def served() -> None:
        async with record.kept():
            while not page.look():
                await asyncio.sleep(0.01)

    asyncio.run(served())
    (one,) = page.view
    assert (one.address, one.model, one.replicas, one.lost) == ("http://[::1]:80", "digits:3", 2, 1)
    assert (one.p99_ms, one.mean_batch, one.answers) == (2.5, 3.0, answers)
    assert page.look() and page.view == [] and list((tmp_path / FOLDER).iterdir()) == []


@pytest.mark.xdist_group("chromium")
def test_the_page_has_a_row_for_each_endpoint(tmp_path: Path, tab: Browser) -> None:
    times = {"rate": 2500.0, "p50_ms": 1.5, "p99_ms": 9.25, "mean_batch": 17.0}
    endpoint(tmp_path, replicas=2, lost=1, answers={"200": 7, "429": 1}, **times)
    endpoint(tmp_path, "b", model=EVIL, at=time.time() - 60)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        rows = tab.until(f"{CELLS}.length == 2 && {CELLS}")
        assert rows[0][1:] == ["digits:3", "2 (1 lost)", "2.5k", "1.5", "9.25", "17", "7", "1", "0", "0"]
        assert rows[1][1] == EVIL and rows[1][3] == "silent"
        (tmp_path / FOLDER / "a.json").unlink()
        tab.until(f"{CELLS}.length == 1")
        assert tab.said == []
