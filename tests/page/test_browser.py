"""What a person sees: the page in a real browser."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from covey.observe.progress import Progress, RoleProgress
from tests.page.browser import CHROMIUM, Browser, browser
from tests.page.conftest import record, serving, trained
from tests.warm import Warm

pytestmark = pytest.mark.xdist_group("chromium")
NAMES = "[...document.querySelectorAll('#rows tr')].map(row => row.dataset.run)"
EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"


def click(tab: Browser, selector: str) -> None:
    tab.js(f"document.querySelector({json.dumps(selector)}).click()")


def wanted(tab: Browser, words: str) -> None:
    tab.js(f"box = document.getElementById('filter'); box.value = {json.dumps(words)}; 0")
    tab.js("box.dispatchEvent(new Event('input'))")


def test_runs_are_listed_sorted_filtered_and_overlaid(tmp_path: Path, tab: Browser) -> None:
    for number, (strategy, best) in enumerate([("bsp", 0.7), ("easgd", 0.9), ("ssp(bound=2)", 0.8)]):
        journal = record(tmp_path, f"run{number}", strategy, f"2026-11-17T08:0{number}:00Z")
        trained(journal, 4, best)
        if number != 2:
            journal.end("budget")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        assert tab.until(f"{NAMES}.length == 3 && {NAMES}") == ["run2", "run1", "run0"], "the newest first"
        click(tab, "th[data-column='metric accuracy'] button")
        assert tab.js(NAMES) == ["run0", "run2", "run1"]
        click(tab, "th[data-column='metric accuracy'] button")
        assert tab.js(NAMES) == ["run1", "run2", "run0"]
        wanted(tab, "budget BSP")
        assert tab.js(NAMES) == ["run0"]
        wanted(tab, "")
        assert tab.until("document.querySelectorAll('figure canvas').length") == 5
        click(tab, "tr[data-run=run0]")
        tab.until("document.getElementById('title').textContent == '2 runs'")
        dots = "[...document.querySelectorAll('tr.chosen .dot')].map(dot => getComputedStyle(dot).backgroundColor)"
        assert len(set(tab.js(dots))) == 2
        click(tab, "tr[data-run=run2]")
        click(tab, "tr[data-run=run0]")
        tab.until("document.querySelectorAll('figure').length == 0")
        assert tab.said == []


def test_a_change_shows_within_half_a_second(tmp_path: Path, tab: Browser) -> None:
    journal = record(tmp_path, "one")
    trained(journal, 2)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelector('td[data-column=seconds]')?.textContent == '2'")
        delays = []
        for number in (71, 72, 73):
            tab.js(
                "cell = document.querySelector('td[data-column=seconds]'); "
                "shown = new Promise(done => new MutationObserver(() => cell"
                f".textContent == '{number}' && done(Date.now())).observe(document.getElementById('rows'), "
                "{ subtree: true, childList: true, characterData: true })); 0"
            )
            began = time.time()
            journal.score({"seconds": number, "samples": 300, "bytes": 0, "accuracy": 0.5, "loss": 0.1})
            delays.append(tab.js("shown") / 1000 - began)
        assert sorted(delays)[1] < 0.5
        journal.end("failed", "the disk is full")
        tab.until("!!document.querySelector('tr.failed')")
        tab.until("document.getElementById('lines').textContent.includes('the disk is full')")


def test_text_of_records_is_only_text(tmp_path: Path, tab: Browser) -> None:
    journal = record(tmp_path, EVIL.replace("/", "."), EVIL)
    trained(journal, 2)
    journal.say(EVIL)
    journal.score({"seconds": 3, "samples": 300, "bytes": 0, EVIL: 0.5, "loss": 0.1})
    journal.score({"seconds": 4, "samples": 400, "bytes": 0, EVIL: 0.6, "loss": 0.1})
    record(tmp_path, "..evil", "../../etc").end("failed", EVIL)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('#rows tr').length == 2 && document.querySelectorAll('#lines li').length")
        time.sleep(0.3)
        assert tab.js("document.title") == "covey"
        assert tab.js("document.querySelectorAll('#rows script, #rows img, #detail script, #detail img').length") == 0
        assert EVIL in tab.js("document.getElementById('rows').innerText")
        assert EVIL in tab.js("document.getElementById('lines').innerText")
        assert tab.said == []


def test_the_policy_of_the_page_refuses_what_is_not_its_own(tmp_path: Path, tab: Browser) -> None:
    record(tmp_path, "one")
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('#rows tr').length")
        tab.js("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror=\"document.title='evil'\">`)")
        tab.js("script = document.createElement('script'); script.textContent = `document.title = 'evil'`; 0")
        tab.js("document.body.append(script)")
        time.sleep(0.3)
        assert tab.js("document.title") == "covey"
        assert any("Content Security Policy" in line for line in tab.said)


def test_a_folder_that_is_deleted_is_one_line_and_may_come_again(tmp_path: Path, tab: Browser) -> None:
    runs = tmp_path / "runs"
    trained(record(runs, "one"), 2)
    with serving(str(runs)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('#rows tr').length == 1")
        shutil.rmtree(runs)
        tab.until("document.querySelectorAll('#rows tr').length == 0 && !document.getElementById('trouble').hidden")
        assert "does not exist" in tab.js("document.getElementById('trouble').textContent")
        record(runs, "two")
        tab.until("document.querySelector('tr[data-run=two]') && document.getElementById('trouble').hidden")
        assert [line for line in tab.said if "409" not in line] == [], "a run may be asked for while it is removed"


@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, tab: Browser, width: int) -> None:
    for number in range(3):
        strategy = "parameter_server(rule=bounded, bound=3) over proxies"
        trained(record(tmp_path, f"20261117-080000-asynchronous-{number}", strategy), 3)
    tab.screen(width, 844)
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('figure canvas').length")
        assert tab.js("document.documentElement.scrollWidth") <= width


def test_the_cluster_is_drawn_with_links_waits_and_staleness(tmp_path: Path, tab: Browser) -> None:
    journal = record(tmp_path, "one")
    for now, sent in ((1, 100), (2, 100)):
        waits = "Params of step 3 from server 0"
        roles = {
            "worker 0": RoleProgress(step=now, samples=0, bytes=0, staleness=2.5),
            "worker 1": RoleProgress(step=now, samples=0, bytes=0, waiting=waits, waited=0.4),
            "server 0": RoleProgress(step=-1, samples=0, bytes=0),
        }
        links = {"worker 0": {"server 0": 1000 * now}, "worker 1": {"server 0": sent}}
        journal.moment(Progress(phase="training", seconds=now, samples=now, roles=roles, links=links))
        if now == 1:
            server = serving(str(tmp_path))
            tab.open(server.__enter__())
            tab.until("document.querySelectorAll('#cluster .role').length == 3")
    try:
        pair = "[link.dataset.link, +link.getAttribute('stroke-width')]"
        wide = f"[...document.querySelectorAll('.link')].map(link => {pair})"
        tab.until(f"Object.fromEntries({wide})['worker 1>server 0'] == 0.5")
        assert dict(tab.js(wide)) == {"worker 0>server 0": 7.5, "worker 1>server 0": 0.5}, "it has sent nothing since"
        titles = tab.js("[...document.querySelectorAll('#cluster title')].map(title => title.textContent)")
        assert "worker 1 waits for server 0" in titles
        assert "worker 0 computes, step 2, staleness 2.5" in titles
        assert tab.js("document.querySelector('[data-role=\"worker 1\"]').classList.contains('w')")
        assert tab.said == []
    finally:
        server.__exit__(None, None, None)


def test_ten_thousand_workers_are_dots_and_take_little_memory(tmp_path: Path, tab: Browser) -> None:
    journal = record(tmp_path, "one")
    waits = {1: "", 0: "Params of step 3 from server 0"}
    roles = {f"worker {n}": RoleProgress(step=1, samples=0, bytes=0, waiting=waits[n % 2]) for n in range(10_000)}
    roles["server 0"] = RoleProgress(step=-1, samples=0, bytes=0)
    links = {f"worker {n}": {"server 0": 100} for n in range(10_000)}
    for now in (1, 2):
        journal.moment(Progress(phase="training", seconds=now, samples=now, roles=roles, links=links))
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.querySelectorAll('#cluster canvas').length == 2")
        told = tab.js("document.getElementById('cluster').innerText")
        assert "10000 × worker: 5000 compute, 5000 wait" in told and "5000 × worker wait for server 0" in told
        assert "worker → server" in told
        used = {one["name"]: one["value"] for one in tab.ask("Performance.getMetrics")["metrics"]}
        assert used["JSHeapUsedSize"] < 50e6 and tab.js("document.querySelectorAll('*').length") < 300


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_simulated_run_of_ten_thousand_workers_takes_less_than_200_mb(tmp_path: Path, warm: Warm) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    words = ["simulate", "examples/digits.py", "--strategy", "asynchronous", "--workers", "10000", "--timing-only"]
    runs, most = tmp_path / "runs", 0
    runs.mkdir()
    with serving(str(runs)) as address, browser(tmp_path / "profile") as fresh:
        fresh.open(address)
        run = warm.start(["-m", "covey", *words, "--steps", "2", "--quiet", "--runs", str(runs)], Path.cwd())
        fresh.until("document.getElementById('cluster')?.innerText.includes('10000 × worker')", 400)
        while run.poll() is None:
            most = max(most, fresh.memory())
            time.sleep(0.2)
        assert run.wait(1) == 0
        fresh.until("document.querySelector('#rows tr')?.innerText.includes('budget')")
        most = max(most, fresh.memory())
        assert fresh.said == []
    print(f"the tab's process: at most {most / 1e6:.0f} MB")
    assert 20e6 < most < 200e6


def test_rows_are_drawn_as_far_as_a_person_scrolls(tmp_path: Path, tab: Browser) -> None:
    for number in range(150):
        record(tmp_path, f"run{number:03}").close()
    with serving(str(tmp_path)) as address:
        tab.open(address)
        tab.until("document.getElementById('count')?.textContent.startsWith('150 of 150')")
        assert tab.until(f"{NAMES}.length") < 150
        wanted(tab, "run149")
        assert tab.js(NAMES) == ["run149"], "what is not drawn is found"
        wanted(tab, "")
        tab.until(f"document.getElementById('more').scrollIntoView() || {NAMES}.length == 150")
