"""An endpoint that only a plan asks: `python -m covey.inference.path.measured_endpoint WISHES`.

It is what `covey serve` would start, with one replica, on a free port; no lineage and no record tells of it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import msgspec

from covey.decoding import WireFormat
from covey.errors import CoveyError
from covey.inference.request_desk import FrontSettings
from covey.inference.served_model import ModelPlace
from covey.inference.serving import ServeWishes, serve

LEAST_QUEUE = 1024  # requests: those of all clients that measure fit in


class MeasuredWishes(msgspec.Struct, frozen=True, kw_only=True):
    """Which model is served, and how."""

    place: ModelPlace
    front: FrontSettings
    threads: int
    stages: int
    body: int

    @property
    def served(self) -> ServeWishes:
        """How the model is served while it is asked the same again and again, by many clients at a time."""
        front = replace(self.front, cache=0, queue=max(self.front.queue, LEAST_QUEUE))
        return ServeWishes(
            front=front, threads=self.threads, stages=self.stages, port=0, body=self.body, noted=False
        )


wanted: WireFormat[MeasuredWishes] = WireFormat("endpoint that is measured", MeasuredWishes, "json", most=1 << 20)


def main(text: str) -> None:
    """Serve until the process is told to end; the first line of its output is the address."""
    given = wanted.read(text.encode(), "the planner")
    serve(given.place, given.served, lambda line: print(line, flush=True), lambda line: None)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CoveyError as error:
        sys.exit(f"the endpoint to be measured could not start: {error}")
