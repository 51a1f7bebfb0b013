"""A recording for Chrome's and Perfetto's trace viewers: https://ui.perfetto.dev."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from msgspec import UNSET

from covey.observe.recording import Recording, TorchOp

MICRO = 1e6



class Track(NamedTuple):
    """A line of the viewer: a thread of a process, by their numbers."""

    pid: int
    tid: int


def events(recording: Recording) -> str:
    """The Trace Event Format: slices for what roles did, flows for messages.

    Each role is a thread; in a profiled run it is a process, whose other threads are those of torch.
    """
    ops = [] if recording.ops is UNSET else recording.ops
    lanes = {name: Track(*((place + 1, 0) if ops else (0, place))) for place, name in enumerate(recording.roles)}
    found = [_named("thread_name", track, "covey" if ops else name) for name, track in lanes.items()]
    if ops:
        found += [_named("process_name", track, name) for name, track in lanes.items()]
        found += [
            {"ph": "M", "name": "process_sort_index", **track._asdict(), "args": {"sort_index": track.pid}}
            for track in lanes.values()
        ]
    for span in recording.spans:
        name, kind = (f"waits for {span.what}", "wait") if span.what else ("computes", "compute")
        found.append(_slice(name, kind, lanes[span.who], span.begin, span.end))
    for number, arrow in enumerate(recording.arrows):
        if arrow.arrived is None:
            continue
        both = {"name": arrow.kind, "cat": "message", "id": number}
        found.append({**both, "ph": "s", **lanes[arrow.sender]._asdict(), "ts": arrow.sent * MICRO})
        found.append({**both, "ph": "f", "bp": "e", **lanes[arrow.to]._asdict(), "ts": arrow.arrived * MICRO})
    return json.dumps({"traceEvents": found + _of_torch(ops, lanes), "displayTimeUnit": "ms"})


def _of_torch(ops: list[TorchOp], lanes: dict[str, Track]) -> list[dict[str, Any]]:
    """What torch did: a thread for each of its own, below that of the role."""
    tracks: dict[tuple[str, str], Track] = {}
    for who, thread in sorted({(op.who, op.thread) for op in ops if op.who in lanes}):
        number = 1 + sum(other == who for other, _ in tracks)
        tracks[who, thread] = Track(lanes[who].pid, number)
    found = [_named("thread_name", track, thread) for (_, thread), track in tracks.items()]
    slices = (op for op in ops if op.who in lanes)
    return found + [_slice(op.name, "torch", tracks[op.who, op.thread], op.begin, op.end) for op in slices]


def _named(kind: str, track: Track, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, **track._asdict(), "args": {"name": name}}


def _slice(name: str, kind: str, track: Track, begin: float, end: float) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": kind, **track._asdict(), "ts": begin * MICRO, "dur": (end - begin) * MICRO,
    }  # fmt: skip
