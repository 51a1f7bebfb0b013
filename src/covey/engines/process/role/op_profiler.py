"""What does torch do in this process, on all of its threads? Its own profiler says so, in seconds of training.

`torch.profiler.profile` is the same with schedules, for which it imports 800 modules in each role.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Container
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch._C._profiler import _ExperimentalConfig as ProfilerConfig
from torch.autograd.profiler import profile

from covey.engines.process.clock import Stopwatch
from covey.engines.process.driving_turn import DRIVER
from covey.observe.recording import RoleOps

SECONDS, STEPS = 3.0, 3  # for which it runs at least
MOST = 20_000  # operations of a role, which fit into a word of the control line
LONGEST = 120  # characters of a name, of which kernels have long ones
KEPT = frozenset({"cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset"})


class OpProfiler:
    """torch's profiler over a whole process, from now on; it is started on the main thread, and ended on any."""

    def __init__(self, watch: Stopwatch, gpu: bool = False, workers: int = 0) -> None:
        """`workers` are those that a role without data of its own hears."""
        self._watch, self._workers, self._running = watch, workers, True
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would write to the person's terminal
        config = ProfilerConfig(profile_all_threads=True)
        self._profile = profile(use_kineto=True, use_device="cuda" if gpu else None, experimental_config=config)
        self._profile.__enter__()
        self._offset = time.time() - time.monotonic()  # the profiler writes down times of day

    def enough(self, step: int, messages: int) -> bool:
        """Whether it has run for some seconds and some steps; those of others are counted by the messages of theirs."""
        steps = messages / self._workers if self._workers else step
        return self._running and self._watch.now() >= SECONDS and steps >= STEPS

    def end(self) -> None:
        if self._running:
            self._running = False
            self._profile.__exit__(None, None, None)

    def ops(self) -> RoleOps:
        """The first operations while the clock ran."""
        self.end()
        with TemporaryDirectory(prefix="covey-") as folder:
            file = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(file))
            found = json.loads(file.read_bytes())
        return self._read(found)

    def _read(self, found: dict[str, Any]) -> RoleOps:
        threads, names, rows = dict[str, int](), dict[str, int](), list[tuple[int, int, float, float]]()
        base = float(found.get("baseTimeNanoseconds", 0)) / 1e9 - self._offset
        drivers = {thread.native_id for thread in threading.enumerate() if thread.name == DRIVER}
        events = [event for event in found["traceEvents"] if event.get("ph") == "X" and event.get("cat") in KEPT]
        for event in sorted(events, key=lambda event: float(event["ts"])):
            moment, seconds = base + float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
            begin = self._watch.then(moment)
            if begin is None or len(rows) == MOST:
                continue
            thread = threads.setdefault(_thread(event, drivers), len(threads))
            name = names.setdefault(event["name"][:LONGEST], len(names))
            rows.append((thread, name, begin, begin + seconds))
        return RoleOps(list(threads), list(names), rows)


def _thread(event: dict[str, Any], drivers: Container[int | None]) -> str:
    """What a person calls the thread, or the stream of a GPU, of an event; `drivers` are the threads that drive."""
    if event["cat"] not in ("cpu_op", "user_annotation"):
        return f"GPU {event['pid']} stream {event['tid']}"
    if event["tid"] == os.getpid():
        return "torch: computing"
    return "torch: exchange" if event["tid"] in drivers else f"torch: thread {event['tid']}"
