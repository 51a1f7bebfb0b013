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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import torch
from safetensors.torch import save_file

from benchmarks.peers.served_models import MODELS, seeded
from benchmarks.push_pull import free_port
from covey.inference import planning
from covey.inference.request_desk import FrontSettings
from covey.inference.virtual_service import VirtualService

PEERS = Path(__file__).parent / "peers"
CORES, CONNECTIONS, TURNS = 2, 64, 5
SECONDS, TRIAL, WARM_UP = 6, 3, 2
PATIENCE = 120.0  # seconds for a server to start
LOADS, VISITORS = (0.3, 0.6, 0.8), 256  # shares of the highest rate; connections, most of which pause at any time
FRONT = FrontSettings(objective=0.05)  # as `covey serve` has it

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


def predicted(model: str) -> dict[str, Any]:
    """The 99th percentile at each load, measured by `wrk` and in virtual time over the arrivals that it wrote down."""
    found: dict[str, Any] = {}
    with covey(model) as port:
        load(port, WARM_UP)
        times, edge, highest = _calibrated(model, port)
        found["calibrated"] = {"rate": highest, "edge_us": 1e6 * edge, "batch_of_1_ms": 1e3 * times(1)}
        for share in LOADS:
            pause = str(1e3 * VISITORS / (share * highest))
            turns = [load(port, SECONDS, VISITORS, PAUSE=pause, SEED=str(seed)) for seed in range(TURNS)]
            rows = [(one["rate"] / highest, one["p99"], forecast(one["arrivals"], times, edge)) for one in turns]
            print(model, share, rows, file=sys.stderr, flush=True)
            middle = sorted(rows, key=lambda row: row[2] / row[1])[TURNS // 2]
            found[f"{share:.0%}"] = {
                "load": round(middle[0], 2), "measured_ms": round(1e3 * middle[1], 2),
                "predicted_ms": round(1e3 * middle[2], 2), "predicted / measured": round(middle[2] / middle[1], 2),
            }  # fmt: skip
    return found


def _calibrated(model: str, port: int) -> tuple[Callable[[int], float], float, float]:
    """How long a batch takes, how long the edge takes for a request and for an answer, and the highest rate.

    With one client after the other a request takes the time of the edge twice, that of a batch of one, and that of
    waking processes, which is the same for each batch. With many clients the edge is what limits the rate.
    """
    torch.set_num_threads(1)
    computing = planning.measure(torch.inference_mode()(seeded(model)), torch.rand(1, 8, 8), FRONT.largest)
    alone, many = load(port, TRIAL, 1), load(port, SECONDS)
    edge = 0.5 / many["rate"]
    waking = max(0.0, alone["p50"] - 2 * edge - computing(1))
    return lambda size: computing(size) + waking, edge, many["rate"]


def forecast(arrivals: Sequence[float], times: Callable[[int], float], edge: float) -> float:
    """The 99th percentile of the same programs in virtual time."""
    service = VirtualService(FRONT, 1, times, edge=edge)
    for at in sorted(arrivals):
        service.request(at - min(arrivals))
    waits = sorted(one.seconds for one in service.run())
    return waits[int(0.99 * len(waits))]


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if sys.argv[1:2] == ["predicted"]:
        print(json.dumps({model: predicted(model) for model in sys.argv[2:] or MODELS}, indent=1))
    else:
        litserve, ray = sys.argv[1:]
        print(json.dumps(measure({"litserve": litserve, "ray": ray}), indent=1))
