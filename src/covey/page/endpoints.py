"""Endpoints that are serving, as the page shows them: each says once a second in a file how it is doing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from covey.decoding import UNREADABLE, WireFormat
from covey.errors import WireError
from covey.page.rows import changed_since, encodable, finite

FOLDER = "endpoints"  # in the folder of records
SILENT = 10.0  # seconds after which an endpoint that says nothing is called silent
FORGOTTEN = 600.0  # seconds after which it is not shown any more
MOST = 64  # endpoints that are shown


class EndpointNow(msgspec.Struct, kw_only=True):
    """How an endpoint is doing; numbers are those of its last answers."""

    address: str
    model: str
    began: str  # UTC
    at: float  # seconds since 1970
    replicas: int = 0
    lost: int = 0  # replicas, so far
    rate: float = 0.0  # answers per second, in the last second
    p50_ms: float | None = None
    p99_ms: float | None = None
    mean_batch: float | None = None
    answers: dict[str, int] = {}  # by their status, so far
    silent: bool = False  # it has not said anything for a while


_endpoints: WireFormat[EndpointNow] = WireFormat("endpoint", EndpointNow, "json", most=1 << 16)


class WatchedEndpoints:
    """The endpoints of a folder of records."""

    def __init__(self, runs: Path) -> None:
        self.folder, self.view = runs / FOLDER, list[EndpointNow]()
        self._read: dict[str, tuple[tuple[int, ...], EndpointNow | None]] = {}

    def look(self) -> bool:
        """Read what is new; True if there is anything."""
        before, now = self.view, time.time()
        self._read = {name: self._endpoint(name) for name in self._names()}
        found = [one for _, one in self._read.values() if one and now - one.at < FORGOTTEN]
        self.view = [msgspec.structs.replace(one, silent=now - one.at > SILENT) for one in found]
        return self.view != before

    def _names(self) -> list[str]:
        if self.folder.is_symlink():
            return []
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".json"))[:MOST]
        except OSError:
            return []

    def _endpoint(self, name: str) -> tuple[tuple[int, ...], EndpointNow | None]:
        stamp = changed_since(self.folder / name)
        if name in self._read and self._read[name][0] == stamp:
            return self._read[name]
        try:
            return stamp, presentable(_endpoints.read_file(self.folder / name))
        except (WireError, OSError, *UNREADABLE):  # it is just going, or is none
            return stamp, None


def presentable(one: EndpointNow) -> EndpointNow:
    """The same with text and numbers that fit on a page."""
    return msgspec.structs.replace(
        one, address=encodable(one.address)[:200], model=encodable(one.model)[:200], began=encodable(one.began)[:40],
        rate=finite(one.rate) or 0.0, p50_ms=finite(one.p50_ms), p99_ms=finite(one.p99_ms),
        mean_batch=finite(one.mean_batch), answers=dict(list(one.answers.items())[:20]),
    )  # fmt: skip
