"""A recording for Chrome's and Perfetto's trace viewers."""

from __future__ import annotations

import json
from typing import Any

from covey.observe.recording import Recording

MICRO = 1e6


def events(recording: Recording) -> str:
    """The Trace Event Format: a thread for each role, slices for what it did, flows for messages."""
    lanes = {name: number for number, name in enumerate(recording.roles)}
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": name}}
        for name, lane in lanes.items()
    ]
    for span in recording.spans:
        name, kind = (f"waits for {span.what}", "wait") if span.what else ("computes", "compute")
        found.append(
            {
                "ph": "X", "name": name, "cat": kind, "pid": 0, "tid": lanes[span.who], "ts": span.begin * MICRO,
                "dur": (span.end - span.begin) * MICRO,
            }
        )  # fmt: skip
    for number, arrow in enumerate(recording.arrows):
        if arrow.arrived is None:
            continue
        both = {"name": arrow.kind, "cat": "message", "id": number, "pid": 0}
        found.append({**both, "ph": "s", "tid": lanes[arrow.sender], "ts": arrow.sent * MICRO})
        found.append({**both, "ph": "f", "bp": "e", "tid": lanes[arrow.to], "ts": arrow.arrived * MICRO})
    return json.dumps({"traceEvents": found, "displayTimeUnit": "ms"})
