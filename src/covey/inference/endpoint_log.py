"""The log of an endpoint: lines of its error output."""

from __future__ import annotations

import sys
import time


def log(line: str) -> None:
    """A line, with the time in UTC."""
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), line, file=sys.stderr, flush=True)
