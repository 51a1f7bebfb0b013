"""The runs that a person has chosen: which is which in the charts, what they say, and how they are found."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import msgspec
import pytest

from covey.observe.facts import FACTS, SCHEMA, RecordFacts, RunFacts
from covey.observe.progress import Progress, RoleProgress
from tests.page.browser import Browser
from tests.page.conftest import page_process, record, serving, trained
from tests.page.test_browser import NAMES, click, wanted

pytestmark = pytest.mark.xdist_group("chromium")
KEY = "[...document.querySelectorAll('#chosen button')].map(button => button.textContent)"
LINES = "[...document.querySelectorAll('#lines li')].map(line => line.innerText)"


def comparison(runs: Path, name: str, began: str) -> None:
    """One that has ended, with two runs of the same strategy."""
    for number in range(2):
        then = began.replace(":00Z", f":0{number + 1}Z")
        journal = record(runs / name / "runs", f"2026-bsp-{number}aaaa", "bsp", then)
        trained(journal, 3)
        journal.end("target")
    facts = RunFacts(task="digits.py:task", strategy="bsp,easgd", taxonomy={}, engine="local", workers=14)
    known = RecordFacts(schema=SCHEMA, id=name, began=began, run=facts, kind="comparison")
    (runs / name / FACTS).write_bytes(msgspec.json.encode(known))
    (runs / name / "result.json").write_text(json.dumps({"verdict": "bsp is first: 1.3 to 1.8x faster than easgd"}))
    end = {"event": "ended", "at": time.time(), "stopped": "compared", "why": ""}
    (runs / name / "journal.jsonl").write_text(json.dumps(end) + "\n")


def test_a_comparison_stands_above_its_runs_and_says_its_verdict(tmp_path: Path, tab: Browser) -> None:
    record(tmp_path, "first", began="2026-11-17T07:00:00Z").end("budget")
    comparison(tmp_path, "race", "2026-11-17T08:00:00Z")
    record(tmp_path, "last", began="2026-11-17T09:00:00Z").end("budget")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        order = ["last", "race", "race/2026-bsp-1aaaa", "race/2026-bsp-0aaaa", "first"]
        assert tab.until(f"{NAMES}.length == 5 && {NAMES}") == order
        notes = tab.js("[...document.querySelectorAll('#rows small')].map(note => note.textContent)")
        assert notes == ["last", "race", "2026-bsp-1aaaa", "2026-bsp-0aaaa", "first"], "a run's own name"
        click(tab, "tr[data-run=race]")
        tab.until(f"{LINES}.includes('bsp is first: 1.3 to 1.8x faster than easgd')")
        wanted(tab, "bsp-0aaaa")
        assert tab.js(NAMES) == ["race/2026-bsp-0aaaa"], "also without its comparison"


def test_charts_have_a_key_from_which_a_click_takes_a_run_out(tmp_path: Path, tab: Browser) -> None:
    for number, strategy in enumerate(["bsp", "bsp", "easgd"]):
        journal = record(tmp_path, f"2026-{strategy}-{number}aaaa", strategy, f"2026-11-17T08:0{number}:00Z")
        trained(journal, 3)
        roles = {"worker 0": RoleProgress(step=1, samples=0, bytes=0)}
        journal.moment(Progress(phase="training", seconds=4, samples=400, roles=roles))
        journal.end("budget")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('figure canvas').length")
        assert tab.js(KEY) == [], "one run needs no key"
        click(tab, "tr[data-run='2026-bsp-0aaaa']")
        click(tab, "tr[data-run='2026-bsp-1aaaa']")
        assert tab.until(f"{KEY}.length == 3 && {KEY}") == ["easgd", "bsp 0aaaa", "bsp 1aaaa"]
        dots = "[...document.querySelectorAll('#chosen i')].map(dot => getComputedStyle(dot).backgroundColor)"
        rows = "[...document.querySelectorAll('tr.chosen .dot')].map(dot => getComputedStyle(dot).backgroundColor)"
        assert len(set(tab.js(dots))) == 3 and set(tab.js(dots)) == set(tab.js(rows))
        tab.until("document.querySelector('#cluster p')?.textContent == 'bsp 1aaaa'")  # of the run that was chosen last
        click(tab, "#chosen button")
        assert tab.until(f"{KEY}.length == 2 && {KEY}") == ["bsp 0aaaa", "bsp 1aaaa"]
        assert tab.said == []


def test_a_number_of_workers_is_that_number(tmp_path: Path, tab: Browser) -> None:
    comparison(tmp_path, "race", "2026-11-17T08:00:00Z")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{NAMES}.length == 3")
        wanted(tab, "4 workers")
        assert tab.js(NAMES) == ["race/2026-bsp-1aaaa", "race/2026-bsp-0aaaa"]
        wanted(tab, "14 workers bsp")
        assert tab.js(NAMES) == ["race"]


def test_a_run_without_numbers_says_so_and_an_error_keeps_its_lines(tmp_path: Path, tab: Browser) -> None:
    journal = record(tmp_path, "one")
    journal.moment(Progress(phase="warming"))
    (tmp_path / "one" / "now.json").unlink(missing_ok=True)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{LINES}.includes('warming: no numbers yet')")
        journal.end("failed", "RoleFailed: no\n\n  File \"train.py\", line 2")
        assert "\n\n  File" in tab.until(f"{LINES}.find(line => line.includes('RoleFailed'))")


def test_a_record_that_cannot_be_read_says_why_once(tmp_path: Path, tab: Browser) -> None:
    trained(record(tmp_path, "one"), 3)
    record(tmp_path, "old").end("budget")
    facts = tmp_path / "old" / FACTS
    facts.write_text(facts.read_text().replace(SCHEMA, "covey.run/99"))
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{NAMES}.length == 2")
        click(tab, "tr[data-run=old]")
        told = tab.until(f"{LINES}.find(line => line.includes('another version'))")
        assert tab.js(LINES).count(told) == 1


def test_a_curve_that_never_changes_has_an_axis_around_it(tmp_path: Path, tab: Browser) -> None:
    record(tmp_path, "one")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{NAMES}.length == 1")
        axis = "import('/static/charts.js').then(charts => charts.within(null, {0}, {0}))"
        assert tab.js(axis.format(0)) == [0, 1] and tab.js(axis.format(50)) == [45, 55]
        assert tab.js(axis.format(-10)) == [-11, -9]
        shown = "import('/static/table.js').then(table => [0, 12, 83360].map(table.bytes))"
        assert tab.js(shown) == ["0 B", "12 B", "83.36 kB"]


def test_the_text_of_a_cluster_can_be_read_on_a_phone(tmp_path: Path, tab: Browser) -> None:
    roles = {f"worker {rank}": RoleProgress(step=1, samples=0, bytes=0, staleness=1.5) for rank in range(4)}
    record(tmp_path, "one").moment(Progress(phase="training", seconds=1, samples=1, roles=roles))
    tab.screen(390, 844)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        assert tab.until("document.querySelector('#cluster text.small')?.getBoundingClientRect().height") > 10


def test_a_moment_just_after_another_makes_no_peak(tmp_path: Path, tab: Browser) -> None:
    """A phase that changes writes a moment at once, a millisecond after the one of its second."""
    record(tmp_path, "one")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{NAMES}.length == 1")
        moments = {"seconds": [0, 1, 2, 2.001, 3, 4], "samples": [0, 100, 200, 232, 300, 400]}
        given = f"import('/static/charts.js').then(charts => charts.rate('samples')({json.dumps(moments)}))"
        assert tab.js(given) == [None, 100, 100, None, 100, 100]


def test_a_long_strategy_is_not_broken_inside_a_number(tmp_path: Path, tab: Browser) -> None:
    record(tmp_path, "one", "asynchronous_strategy(weight=0.333333)")
    tab.screen(390, 844)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until(f"{NAMES}.length == 1")
        name = "document.querySelector('#rows span')"
        assert tab.js(f"{name}.textContent") == "asynchronous_strategy(weight=0.333333)"
        tab.js(f"all = new Range(); all.selectNode([...{name}.childNodes].findLast(part => part.data == '0.333333)'))")
        assert tab.js(f"{name}.getClientRects().length") > 1 and tab.js("all.getClientRects().length") == 1


def test_a_page_that_was_stopped_is_named_and_goes_on(tmp_path: Path, tab: Browser) -> None:
    record(tmp_path, "one")
    live = "document.getElementById('live').textContent"
    with page_process(str(tmp_path)) as (address, page):
        tab.open(address)
        tab.until(f"{live} == 'live'")
        page.send_signal(signal.SIGSTOP)
        try:
            tab.until(f"{live}.startsWith('no answer for')")
        finally:
            page.send_signal(signal.SIGCONT)
        tab.until(f"{live} == 'live'")
