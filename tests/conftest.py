"""What tests share: golden files, commands that start warm, and an ear for Ctrl-C."""

from __future__ import annotations

import os

# One thread, also in the library behind torch's products on ARM, which counts its threads when it is loaded. Two are
# slower where two tests run on two cores: each waits for the other's.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("COVEY_RUNS", "")  # tests record runs only where they say so

import gc
import re
import signal
import zlib
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import hypothesis
import pytest

from tests.warm import OF_SESSION, Warm

Golden = Callable[[str, str], None]

GOLDEN = Path(__file__).parent / "golden"

# How long an example takes says more about what else the machine does.
hypothesis.settings.register_profile("covey", deadline=None)
hypothesis.settings.load_profile("covey")

# A shell starts its background jobs with Ctrl-C ignored, and covey leaves an ignored one ignored; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """In `make matrix` skip a test that is refused because an optional package is not installed."""
    try:
        return (yield)
    except Exception as error:
        missing = re.search(r" needs (\w+): pip install ", str(error))
        if "COVEY_MATRIX" not in os.environ or missing is None or find_spec(missing[1]) is not None:
            raise
        return pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: looking through it for garbage took a third of this time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `full` what tests/shares.txt leaves to the slow run: of like cases all but a part, chosen by name.

    Whoever asks for a file, a test or a keyword gets all of it.
    """
    if config.option.keyword or any(arg.partition("::")[0].endswith(".py") for arg in config.args):
        return
    shares = {name: float(part) for part, name in share_lines()}
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name in shares.keys() & families.keys():
        cases = sorted(families[name], key=lambda item: zlib.crc32(item.nodeid.encode()))
        for item in cases[ceil(shares[name] * len(cases)) :]:
            item.add_marker(pytest.mark.full)


def share_lines() -> list[list[str]]:
    """The lines of tests/shares.txt: a part, and the name of a test."""
    lines = (Path(__file__).parent / "shares.txt").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


@pytest.fixture(scope="session", autouse=True)
def one_thread_each() -> Iterator[None]:
    """Roles have one thread by default, however few they are: for two, a run would start another fork server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.engines.machine.threads_each", lambda workers: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[Warm]:
    """Runs commands in forks of a process that has imported covey; that is started with the first one."""
    process = Warm()
    OF_SESSION.append(process)
    yield process
    OF_SESSION.remove(process)
    process.close()


@pytest.fixture
def golden() -> Golden:
    """Compare a text with tests/golden/NAME; with COVEY_GOLDEN=write in the environment, make it so."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("COVEY_GOLDEN") == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"there is no {path}: look at the text, then write it with COVEY_GOLDEN=write"
        assert text == path.read_text(encoding="utf-8")

    return compare
