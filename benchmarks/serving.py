"""Requests per second and 99th percentile of covey, LitServe and Ray Serve: the same models, the same load by `wrk`.

`python -m benchmarks.serving peers LITSERVE RAY`, with the Python of an environment that has litserve and torch, and of
one that has ray[serve] and torch. Servers take turns on two cores, which they share with `wrk`; each is started anew
for its turn. Of the peers' settings a first round picks the best. Other parts, each with names of models behind it:
`predicted` compares the 99th percentile at 30, 60 and 80 % of the highest rate with that of the same programs in
virtual time, calibrated at other loads; `batching` the rate with batches whose size is found with that of the best
fixed size; `killed` counts failed answers while a replica is killed under load. With COVEY_KEPT=FILE what was measured
is kept there, and a second call measures the rest. COVEY_QUICK=1 only shows that everything works.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec
import torch
from safetensors.torch import save_file

from benchmarks.peers.served_models import MODELS, seeded
from benchmarks.push_pull import free_port
from covey.inference import planning
from covey.inference.path.path_costs import PathCosts, costs_of
from covey.inference.path.path_probe import PathProbe
from covey.inference.path.rehearsal import rehearsed
from covey.inference.request_desk import FrontSettings
from covey.inference.virtual_service import VirtualService

PEERS = Path(__file__).parent / "peers"
QUICK = bool(os.environ.get("COVEY_QUICK"))
CORES, CONNECTIONS, TURNS = 2, 64, 1 if QUICK else 5
SECONDS, TRIAL, WARM_UP = (1, 1, 1) if QUICK else (6, 3, 2)
PATIENCE = 120.0  # seconds for a server to start
LOADS, LIGHT = (0.3, 0.6, 0.8), (0.05, 0.2)  # shares of the highest rate
COSTS = ("request", "batch", "replica", "row", "client")  # of a request, beside the model
VISITORS = 256  # connections, most of which pause at any time
FRONT = FrontSettings(objective=0.05)  # as `covey serve` has it
SIZES, SHORT, CROWD = (1, 4, 16, 64, 256), "p99:10ms", 256  # fixed sizes; the objective by which one is found; clients

Setting = tuple[object, ...]
GRID: Mapping[str, Sequence[Setting]] = {
    "litserve": [(size, servers, fast) for size in (16, 64) for servers in (1, 2) for fast in (False, True)],
    "ray": [(size, replicas) for size in (16, 64) for replicas in (1, 2)],
}


class KeptResults:
    """What was measured, by names; in a file, so that a second call goes on where the first one ended."""

    def __init__(self, file: str) -> None:
        self.file = Path(file) if file else None
        self.found: dict[str, Any] = json.loads(self.file.read_text()) if self.file and self.file.exists() else {}

    def __call__(self, name: str, measured: Callable[[], Any]) -> Any:
        if name not in self.found:
            self.found[name] = measured()
            print(name, self.found[name], file=sys.stderr, flush=True)
            if self.file:
                self.file.write_text(json.dumps(self.found, indent=1))
        return self.found[name]


KEPT = KeptResults(os.environ.get("COVEY_KEPT", ""))


@contextlib.contextmanager
def listening(words: Sequence[str], port: int, **environment: str) -> Iterator[int]:
    """A server in a process group of its own, from its first answer on; its process number."""
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
        yield process.pid
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
    with covey_process(model, *flags) as (port, _):
        yield port


@contextlib.contextmanager
def covey_process(model: str, *flags: str) -> Iterator[tuple[int, int]]:
    """The same with its process number."""
    with tempfile.TemporaryDirectory() as folder:
        file, port = Path(folder) / "model.safetensors", free_port()
        save_file(seeded(model).state_dict(), file)
        words = ["serve", str(file), "--task", f"{PEERS / 'served_tasks.py'}:{model}", "--port", str(port), *flags]
        words += ["--runs", folder]
        with listening([sys.executable, "-m", "covey", *words, "--threads", "1"], port) as pid:
            yield port, pid


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
    before = _used_by_children()
    done = subprocess.run(
        [*words, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND ")[2])
    return found | {"rate": found["requests"] / found["seconds"], "cpu": _used_by_children() - before}


def _used_by_children() -> float:
    """Seconds of CPU time of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def turn(server: contextlib.AbstractContextManager[int], seconds: float) -> dict[str, float]:
    """One turn of a server: the rate, and the 99th percentile in ms."""
    with server as port:
        load(port, WARM_UP)
        found = load(port, seconds)
    assert not found["failed"], found
    return {"rate": found["rate"], "p99_ms": 1e3 * found["p99"]}


def measure(model: str, pythons: Mapping[str, str]) -> dict[str, Any]:
    """Rates and percentiles, and covey's as ratios to each peer's: median, lowest and highest turn."""
    best: dict[str, Setting] = {}

    def tried_out(name: str, python: str, setting: Setting) -> dict[str, float]:
        return turn(peer(name, python, model, setting), TRIAL)

    def a_turn(name: str) -> dict[str, float]:
        return turn(server(name), SECONDS)

    def server(name: str) -> contextlib.AbstractContextManager[int]:
        return covey(model) if name == "covey" else peer(name, pythons[name], model, best[name])

    for name, python in pythons.items():
        tried = {
            setting: KEPT(f"{model} {name} {setting}", partial(tried_out, name, python, setting))
            for setting in GRID[name][: 1 if QUICK else None]
        }
        best[name] = max(tried, key=lambda setting: tried[setting]["rate"])
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in ("covey", *pythons)}
    for number in range(TURNS):
        for name, found in turns.items():
            found.append(KEPT(f"{model} {name}, turn {number}", partial(a_turn, name)))
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
    with covey_process(model) as (port, pid):
        load(port, WARM_UP)
        times, costs, highest = _calibrated(model, port, pid)
        found["calibrated"] = {
            "rate": round(highest), "batch_of_1_us": round(1e6 * times(1)), "wake_us": _spread_of(costs.wakes),
            "slower": [[round(number, 2) for number in (one.busy, *one.ratios)] for one in costs.slower],
            **{f"{name}_us": round(1e6 * getattr(costs, name)) for name in COSTS},
        }  # fmt: skip
        print(model, found["calibrated"], file=sys.stderr, flush=True)
        for share in LOADS:
            pause = str(1e3 * VISITORS / (share * highest))
            turns = [load(port, SECONDS, VISITORS, PAUSE=pause, SEED=str(seed)) for seed in range(TURNS)]
            rows = [(one["rate"] / highest, one["p99"], forecast(one["arrivals"], times, costs)) for one in turns]
            print(model, share, rows, file=sys.stderr, flush=True)
            middle = sorted(rows, key=lambda row: row[2] / row[1])[TURNS // 2]
            found[f"{share:.0%}"] = {
                "load": round(middle[0], 2), "measured_ms": round(1e3 * middle[1], 2),
                "predicted_ms": round(1e3 * middle[2], 2), "predicted / measured": round(middle[2] / middle[1], 2),
            }  # fmt: skip
    return found


def _calibrated(model: str, port: int, pid: int) -> tuple[Callable[[int], float], PathCosts, float]:
    """How long batches take, what requests cost beside them, and the highest rate.

    What `wrk` itself needs for a request, beside what it always needs, is measured at light loads: it shares the cores.
    """
    torch.set_num_threads(1)
    computing = planning.measure(torch.inference_mode()(seeded(model)), torch.rand(1, 8, 8), FRONT.largest)
    body = json.dumps({"input": [[round(column / 16, 4) for column in range(8)]] * 8}).encode()
    probe = PathProbe(port, pid, body)
    phases = probe.phases()
    rate = max(one.rate for one in phases)
    costs = rehearsed(probe, rate, costs_of(phases, computing), FRONT, [computing], CORES)
    highest = load(port, SECONDS)["rate"]
    few, more = (load(port, TRIAL, VISITORS, PAUSE=str(1e3 * VISITORS / (share * highest))) for share in LIGHT)
    client = max(0.0, more["cpu"] - few["cpu"]) / (more["requests"] - few["requests"])
    return computing, msgspec.structs.replace(costs, client=client), highest


def _spread_of(seconds: Sequence[float]) -> list[int]:
    """The median, the 90th and the 99th percentile, in us."""
    ranked = sorted(seconds)
    return [round(1e6 * ranked[int(share * len(ranked))]) for share in (0.5, 0.9, 0.99)]


def forecast(arrivals: Sequence[float], times: Callable[[int], float], costs: PathCosts) -> float:
    """The 99th percentile of the same programs in virtual time."""
    service = VirtualService(FRONT, 1, times, path=costs, cores=CORES)
    for at in sorted(arrivals):
        service.request(at - min(arrivals))
    waits = costs.stretched(sorted(one.seconds for one in service.run()), service.busy)
    return waits[int(0.99 * len(waits))]


def batching(model: str) -> dict[str, Any]:
    """Rates with batches of fixed sizes, and of the size that is found; that one as a ratio to the best."""

    def measured(*flags: str) -> dict[str, float]:
        with covey(model, *flags) as port:
            load(port, WARM_UP, CROWD)
            found = load(port, TRIAL, CROWD)
            told = json.load(urlopen(f"http://127.0.0.1:{port}/stats"))
        return {"rate": found["rate"], "mean_batch": told["mean_batch"], "failed": found["failed"]}

    def of(size: int) -> dict[str, float]:
        return measured("--slo", "p99:5s", "--largest-batch", str(size))

    fixed = {size: KEPT(f"{model} batches of {size}", partial(of, size)) for size in SIZES}
    own = KEPT(f"{model} batches as found", lambda: measured("--slo", SHORT))
    best = max(fixed, key=lambda size: fixed[size]["rate"])
    return {"fixed": fixed, "best": best, "found": own, "found / best": round(own["rate"] / fixed[best]["rate"], 2)}


def killed(model: str) -> dict[str, Any]:
    """Failed answers of a load during which one of two replicas is killed, and how many replicas were lost."""
    with covey_process(model, "--replicas", "2") as (port, pid):
        load(port, WARM_UP)
        (server,) = _children(pid)
        with ThreadPoolExecutor(1) as loads:
            found = loads.submit(load, port, 2 * TRIAL)
            time.sleep(TRIAL)
            os.kill(_children(server)[0], signal.SIGKILL)
            counted = found.result()
        told = json.load(urlopen(f"http://127.0.0.1:{port}/stats"))
    return {"requests": counted["requests"], "failed": counted["failed"], "replicas_lost": told["replicas_lost"]}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


PARTS: Mapping[str, Callable[[str], dict[str, Any]]] = {"predicted": predicted, "batching": batching, "killed": killed}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started ends with it
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    part, *given = sys.argv[1:]
    if part == "peers":
        litserve, ray, *named = given
        shown = {one: measure(one, {"litserve": litserve, "ray": ray}) for one in named or MODELS}
    else:
        shown = {one: KEPT(f"{one} {part}", partial(PARTS[part], one)) for one in given or MODELS}
    print(json.dumps(shown, indent=1))
