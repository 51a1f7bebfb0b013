"""Requests per second and 99th percentile of covey, LitServe and Ray Serve: the same models, the same load by `wrk`.

`python -m benchmarks.serving LITSERVE RAY`, with the Python of an environment that has litserve and torch, and of one
that has ray[serve] and torch. Servers take turns on two cores, which they share with `wrk`; each is started anew for
its turn. Of the peers' settings a first round picks the best. `python -m benchmarks.serving predicted` compares the
99th percentile at 30, 60 and 80 % of the highest rate with that of the same programs in virtual time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from safetensors.torch import save_file

from benchmarks.peers.served_models import MODELS, seeded
from benchmarks.push_pull import free_port

PEERS = Path(__file__).parent / "peers"
CORES, CONNECTIONS, TURNS = 2, 64, 5
SECONDS, TRIAL, WARM_UP = 6, 3, 2
PATIENCE = 120.0  # seconds for a server to start

Setting = tuple[object, ...]
GRID: Mapping[str, Sequence[Setting]] = {
    "litserve": [(size, servers, fast) for size in (16, 64) for servers in (1, 2) for fast in (False, True)],
    "ray": [(size, replicas) for size in (16, 64) for replicas in (1, 2)],
}


@contextlib.contextmanager
def listening(words: Sequence[str], port: int, **environment: str) -> Iterator[None]:
    """A server in a process group of its own, from its first answer on."""
    body = json.dumps({"input": [[0.5] * 8] * 8}).encode()
    asked = Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
    process = subprocess.Popen(
        words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(URLError, OSError):
                assert len(json.load(urlopen(asked, timeout=10))["output"]) == 10
                break
            assert process.poll() is None and time.monotonic() < end, f"{words} does not answer"
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def covey(model: str, *flags: str) -> Iterator[int]:
    """covey's endpoint, with one replica; its port."""
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / "model.safetensors", free_port()
        save_file(seeded(model).state_dict(), file)
        words = ["serve", str(file), "--task", f"{PEERS / 'served_tasks.py'}:{model}", "--port", str(port), *flags]
        words += ["--runs", folder]
        with listening([sys.executable, "-m", "covey", *words, "--threads", "1"], port):
            yield port


@contextlib.contextmanager
def peer(name: str, python: str, model: str, setting: Setting) -> Iterator[int]:
    """A peer's endpoint; its port."""
    port = free_port()
    words = [python, str(PEERS / f"{name}_serve.py".replace("litserve", "lit")), model, str(port), *map(str, setting)]
    with listening(words, port, RAY_SERVE_THROUGHPUT_OPTIMIZED="1"):
        yield port


def load(port: int, seconds: float, connections: int = CONNECTIONS, **environment: str) -> dict[str, Any]:
    """What `wrk` finds."""
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(PEERS / "load.lua")]
    done = subprocess.run(
        [*words, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND ")[2])
    return found | {"rate": found["requests"] / found["seconds"]}


def turn(server: contextlib.AbstractContextManager[int], seconds: float) -> dict[str, float]:
    """One turn of a server: the rate, and the 99th percentile in ms."""
    with server as port:
        load(port, WARM_UP)
        found = load(port, seconds)
    assert not found["failed"], found
    return {"rate": found["rate"], "p99_ms": 1e3 * found["p99"]}


def measure(pythons: Mapping[str, str]) -> dict[str, Any]:
    """For each model rates and percentiles, and covey's as ratios to each peer's: median, lowest and highest turn."""
    return {model: _measure(model, pythons) for model in MODELS}


def _measure(model: str, pythons: Mapping[str, str]) -> dict[str, Any]:
    best: dict[str, Setting] = {}
    for name, python in pythons.items():
        tried = {setting: turn(peer(name, python, model, setting), TRIAL) for setting in GRID[name]}
        print(model, name, tried, file=sys.stderr, flush=True)
        best[name] = max(tried, key=lambda setting: tried[setting]["rate"])
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ("covey", *pythons)}
    for _ in range(TURNS):
        turns["covey"].append(turn(covey(model), SECONDS))
        for name, python in pythons.items():
            turns[name].append(turn(peer(name, python, model, best[name]), SECONDS))
        print(model, {name: found[-1] for name, found in turns.items()}, file=sys.stderr, flush=True)
    return {
        "settings": best,
        **{name: _spread(found) for name, found in turns.items()},
        **{f"covey / {name}": _spread(_ratios(turns["covey"], turns[name])) for name in pythons},
    }


def _ratios(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Turn by turn."""
    return [{key: one[key] / other[key] for key in one} for one, other in zip(ours, theirs, strict=True)]


def _spread(found: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The median, the lowest and the highest."""
    columns = {key: [one[key] for one in found] for key in found[0]}
    return {
        key: [round(value, 2) for value in (statistics.median(column), min(column), max(column))]
        for key, column in columns.items()
    }


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    litserve, ray = sys.argv[1:]
    print(json.dumps(measure({"litserve": litserve, "ray": ray}), indent=1))
