"""What every strategy keeps on real processes; tests/promises holds the same, and more, in virtual time."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import covey
from covey import catalog
from covey.engines.process.forking import fork_server_client
from covey.observe.progress import Progress
from covey.observe.result import Result
from tests.promises.declared import LACKS
from tests.promises.digits import NUMBERS, counted, formula, positive
from tests.promises.specs import SPECS, TRAINED_AS
from tests.worlds import mlp

DIGITS = "examples/digits.py"
MARK = "COVEY_TEST_MARK"

SPINE = ("bsp", "ssp", "asynchronous", "allreduce", "local_sgd", "easgd", "gosgd", "dpsgd")

every = pytest.mark.parametrize("name", catalog.for_any_model())
# In CI each name trains once, to what it reaches soon: tests/promises has each of them learn more. What it sends and
# how it ends is asked of the others in virtual time, and here in full.
each_in_full = pytest.mark.parametrize(
    "name", [name if name in SPINE else pytest.param(name, marks=pytest.mark.full) for name in catalog.for_any_model()]
)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process of the test carries a mark, every file goes into one folder: both must be gone at the end."""
    mark, folder = uuid4().hex, Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))  # short: sockets have short names
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    deadline = time.monotonic() + 5
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(mark), "processes are left behind"
    assert not list(folder.glob("covey*")), "files are left behind"
    assert not [name for name in os.listdir("/dev/shm") if "covey" in name]
    shutil.rmtree(folder)  # torch may keep a cache there


def marked(mark: str) -> list[str]:
    """The other processes that carry the mark, by name."""
    found = []
    staying = {os.getpid(), *(server.process.pid for server in fork_server_client.RUNNING)}  # until this process ends
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) not in staying:
            try:
                if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:  # it has just ended, or is somebody else's
                continue
    return found


@every
@pytest.mark.parametrize("accuracy", [0.85, pytest.param(0.95, marks=pytest.mark.full)])
def test_trains_digits_to_the_target(name: str, accuracy: float) -> None:
    result = covey.fit(DIGITS, TRAINED_AS.get(name, SPECS.get(name, name)), 2, until=f"accuracy>={accuracy}")
    assert result.engine == "local"
    assert result.stopped == "target" and result.reached is not None
    assert result.samples < 40 * 1437
    module = covey.task.load_task(DIGITS).model()
    module.load_state_dict(result.weights)


@each_in_full
def test_payload_is_what_the_formula_says_and_the_budget_ends_it(name: str) -> None:
    """19 steps: no multiple of a period."""
    result = covey.fit(DIGITS, SPECS.get(name, name), 2, steps=19)
    assert result.stopped == "budget"
    assert result.samples == 2 * 19 * 32 or (name in LACKS and 19 * 32 <= result.samples < 2 * 19 * 32)
    traffic, says, run = result.traffic, formula(name), counted(name, 2, 19)
    if says.beside is not None:  # only chance knows how many
        assert traffic.bytes == traffic.messages * (4 * NUMBERS + says.beside)
    else:
        planned = positive(says.links(run))
        chance = {link: size for link, size in positive(traffic.by_link).items() if link not in planned}
        assert positive(traffic.by_link) == {**planned, **chance}
        unit = run.width if says.sized else run.model if says.counted else None
        assert not chance or (unit and all(size % unit == 0 for size in chance.values()))
    assert traffic.bytes == sum(traffic.by_link.values()) == sum(traffic.by_role.values())


@each_in_full
def test_ends_cleanly_on_ctrl_c(name: str) -> None:
    presser = CtrlC()
    result = covey.fit(DIGITS, SPECS.get(name, name), 2, epochs=100_000, watcher=presser)
    assert presser.pressed and result.stopped == "interrupted"
    assert result.samples > 0 and result.weights
    assert any("covey: worker 1" in process for process in presser.processes), "the mark finds no process of the run"
    assert_all_told(result)


class CtrlC:
    """Watches a run, and interrupts it once it trains."""

    def __init__(self) -> None:
        self.pressed = False
        self.processes: list[str] = []

    def update(self, progress: Progress) -> None:
        if progress.phase == "training" and progress.samples and not self.pressed:
            self.pressed = True
            self.processes = marked(os.environ[MARK])
            signal.raise_signal(signal.SIGINT)

    def say(self, line: str) -> None:
        pass


def assert_all_told(result: Result) -> None:
    roles = catalog.resolve(result.strategy, 2).layout(2, None)
    assert sorted(result.roles) == sorted(str(role.address) for role in roles)


def test_the_weights_of_bsp_are_those_of_virtual_time() -> None:
    """One strategy code, two engines: to the bit, because additions are in rank order."""
    real = covey.fit(DIGITS, "bsp", 2, steps=12, threads=1).weights
    virtual = covey.fit(DIGITS, "bsp", 2, steps=12, engine="simulated").weights
    assert all((real[key] == virtual[key]).all() for key in virtual)


def test_a_factor_on_the_rate_counts_once() -> None:
    """Of a task that is handed over, which has it already."""
    real = covey.fit(mlp(), "bsp", 2, steps=3, threads=1, rate=0.5).weights
    virtual, other = (covey.fit(mlp(), "bsp", 2, steps=3, engine="simulated", rate=r).weights for r in (0.5, 0.25))
    assert all((real[key] == virtual[key]).all() for key in virtual)
    assert not all((real[key] == other[key]).all() for key in other)
