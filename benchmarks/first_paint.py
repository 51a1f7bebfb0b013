"""How soon does a page with a thousand runs show something? `covey page` against Aim and optuna-dashboard.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install aim optuna-dashboard
    python -m benchmarks.first_paint /tmp/peers/bin/python

All pages are opened in turn in one tab of one Chromium, without its cache, while their servers run. A browser paints
first when anything is on the screen (`first-contentful-paint`); the rows are there when the name of a run is. Without
an argument only covey's own page is opened.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.page.browser import Browser, browser
from tests.page.conftest import record, serving, trained

RUNS, POINTS, ROUNDS = 1000, 30, 5
NAME = "newest-run"  # of one run that every page shows first
SEEN = f"""
(() => {{
  const look = () => {{
    if (document.body && document.body.textContent.includes({NAME!r})) window.rowsSeen = performance.now();
    else requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}})();
"""
OPTUNA = f"""
import sys, optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.RDBStorage(f"sqlite:///{{sys.argv[1]}}/optuna.db")
study = optuna.create_study(storage=storage, study_name={NAME!r}, direction="maximize")
steps = {{step: 0.9 * step / {POINTS} for step in range(1, {POINTS} + 1)}}
study.add_trials([
    optuna.trial.create_trial(value=0.9 * number / {RUNS}, intermediate_values=steps, params={{"lr": 0.1 * number}},
                              distributions={{"lr": optuna.distributions.FloatDistribution(0, 1000)}})
    for number in range({RUNS})
])
"""
AIM = f"""
import sys, aim
for number in range({RUNS}):
    run = aim.Run(repo=sys.argv[1], system_tracking_interval=None, capture_terminal_logs=False)
    run.name = {NAME!r} if number == {RUNS} - 1 else f"run{{number}}"
    run["hparams"] = {{"strategy": "bsp", "workers": 4}}
    for step in range(1, {POINTS} + 1):
        run.track(0.9 * step / {POINTS}, name="accuracy", step=step)
        run.track(2 / step, name="loss", step=step)
    run.close()
"""


def recorded(runs: Path) -> None:
    """As many records as a person has after some months, each of half a minute."""
    for number in range(RUNS):
        name = NAME if number == RUNS - 1 else f"run{number}"
        journal = record(runs, name, "bsp", f"2026-11-{1 + number // 50:02}T08:{number % 50:02}:00Z")
        trained(journal, POINTS)
        journal.end("budget")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def peer(command: list[str], address: str, folder: Path) -> Iterator[str]:
    """A server that runs; its address once it answers."""
    environment = {**os.environ, "__AIM_TELEMETRY__": "0", "HOME": str(folder)}
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=nowhere, stderr=nowhere, start_new_session=True
    ) as process:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(address, timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield address
        finally:
            os.killpg(process.pid, 15)


@contextmanager
def pages(python: str, folder: Path) -> Iterator[dict[str, str]]:
    """The addresses of all pages, by name; a peer that is not installed is left out."""
    with ExitStack() as open_pages:
        recorded(folder / "covey")
        found = {"covey page": open_pages.enter_context(serving(str(folder / "covey")))}
        if python and made(python, OPTUNA, folder):
            port = free_port()
            command = [f"{Path(python).parent}/optuna-dashboard", f"sqlite:///{folder}/optuna.db", "--port", str(port)]
            place = open_pages.enter_context(peer(command, f"http://127.0.0.1:{port}/dashboard/", folder))
            found |= {"optuna-dashboard: list of studies (one)": place}
            found |= {"optuna-dashboard: table of trials": f"{place}studies/1/trialTable"}
        if python and made(python, AIM, folder):
            port = free_port()
            command = [f"{Path(python).parent}/aim", "up", "--repo", str(folder), "--port", str(port)]
            place = open_pages.enter_context(peer(command, f"http://127.0.0.1:{port}/", folder))
            found |= {"Aim: home": place, "Aim: table of runs": f"{place}runs"}
        yield found


def made(python: str, text: str, folder: Path) -> bool:
    """Let a peer write its runs; whether it could."""
    environment = {**os.environ, "__AIM_TELEMETRY__": "0", "HOME": str(folder)}
    done = subprocess.run(
        [python, "-c", text, str(folder)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr.splitlines()[-1:], file=sys.stderr)
    return done.returncode == 0


def opened(tab: Browser, address: str) -> dict[str, float]:
    """Seconds from the request to the first paint, and to the rows; infinite after a minute."""
    tab.open("about:blank")
    tab.until("location.href == 'about:blank'")
    tab.open(address)
    end = time.monotonic() + 60
    while not (seen := tab.js("window.rowsSeen || 0")) and time.monotonic() < end:
        time.sleep(0.1)
    paints = tab.js("performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)")
    return {"paint": paints[0] / 1000 if paints else float("inf"), "rows": seen / 1000 if seen else float("inf")}


def measure(python: str = "") -> Mapping[str, Any]:
    """Medians and ranges, in seconds."""
    with TemporaryDirectory() as place, pages(python, Path(place)) as found, browser(Path(place) / "profile") as tab:
        tab.screen(1400, 860)
        tab.ask("Network.setCacheDisabled", cacheDisabled=True)
        tab.ask("Page.addScriptToEvaluateOnNewDocument", source=SEEN)
        took: dict[str, list[dict[str, float]]] = {name: [] for name in found}
        for _ in range(ROUNDS):
            for name, address in found.items():
                took[name].append(opened(tab, address))
    return {
        name: {what: spread([one[what] for one in rounds]) for what in ("paint", "rows")}
        for name, rounds in took.items()
    }


def spread(values: list[float]) -> list[float]:
    return [round(value, 3) for value in (statistics.median(values), min(values), max(values))]


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:2]), indent=1))
