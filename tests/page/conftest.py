"""Records to look at, a page over them as a process of its own, and a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from covey.observe.facts import FACTS, SCHEMA, RecordFacts, RunFacts
from covey.observe.journal import Journal
from covey.observe.progress import Progress
from tests.page.browser import CHROMIUM, Browser, browser
from tests.warm import OF_SESSION, Command


def record(runs: Path, name: str, strategy: str = "bsp", began: str = "2026-11-17T08:00:00Z") -> Journal:
    """A record as a run leaves it, and its journal, which is open."""
    (runs / name).mkdir(parents=True)
    facts = RunFacts(task="digits.py:task", strategy=strategy, taxonomy={}, engine="local", workers=4)
    known = RecordFacts(schema=SCHEMA, id=name, began=began, run=facts)
    (runs / name / FACTS).write_bytes(msgspec.json.encode(known))
    return Journal(runs / name / "journal.jsonl", lambda line: None, ticking(began))


def ticking(began: str) -> Callable[[], float]:
    seconds = [1.8e9 + hash(began) % 1000]

    def clock() -> float:
        seconds[0] += 1.0
        return seconds[0]

    return clock


def trained(journal: Journal, seconds: int, best: float = 0.9) -> None:
    """So many seconds of training, scored in each."""
    for now in range(1, seconds + 1):
        counts = {"seconds": now, "samples": 100 * now, "bytes": 1000 * now, "loss": 2 / now}
        journal.moment(Progress(phase="training", staleness=0.5, **counts))
        journal.score({**counts, "accuracy": best * now / seconds})


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """`covey page` with these words; its address."""
    with page_process(*words) as (address, _):
        yield address


@contextmanager
def page_process(*words: str) -> Iterator[tuple[str, Command]]:
    """Its address, and the process."""
    page = OF_SESSION[0].start(["-m", "covey", "page", *words, "--port", "0"], Path.cwd())
    try:
        yield page.first_line().strip(), page
    finally:
        page.kill()
        page.wait(10)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def tab(chromium: Browser) -> Browser:
    """A wide, light screen."""
    chromium.open("about:blank")  # the page of another test says that its server has gone
    chromium.until("location.href == 'about:blank'")
    chromium.said.clear()
    chromium.screen(1400, 860)
    return chromium
