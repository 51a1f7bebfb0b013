"""An endpoint says once a second how it is doing, in a file that the live page reads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from covey import atomic_file
from covey.page.endpoints import FOLDER, EndpointNow
from covey.store.model_store import now

EVERY = 1.0  # seconds


class EndpointRecord:
    """The file of one endpoint.

    Args:
        runs: The folder of records.
        address: Of the endpoint.
        model: Which one answers.
        told: Says how it is doing.
    """

    def __init__(self, runs: Path, address: str, model: str, told: Callable[[], Mapping[str, Any]]) -> None:
        self.file = runs / FOLDER / f"{re.sub('[^0-9A-Za-z.]+', '-', address.partition('//')[2])}.json"
        self._address, self._model, self._began, self._told = address, model, now(), told
        self._before: tuple[float, int] = (time.monotonic(), 0)

    def state(self) -> EndpointNow:
        """How it is doing now; the rate is that since it was last asked."""
        told = self._told()
        answers: dict[str, int] = told["answers"]
        at, count = time.monotonic(), sum(answers.values())
        (since, before), self._before = self._before, (at, count)
        return EndpointNow(
            address=self._address, model=self._model, began=self._began, at=time.time(), replicas=told["replicas"],
            lost=told["replicas_lost"], rate=(count - before) / max(at - since, 1e-3), p50_ms=told["p50_ms"],
            p99_ms=told["p99_ms"], mean_batch=told["mean_batch"], answers=answers,
        )  # fmt: skip

    def write(self, state: EndpointNow) -> None:
        """Let the page see it; a disk that is full or gone ends no endpoint."""
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.write(self.file, msgspec.json.encode(state).decode(), ours=True)

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Write it again and again; after the block there is no endpoint any more."""
        task = asyncio.get_running_loop().create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            with contextlib.suppress(OSError):
                self.file.unlink()

    async def _keep(self) -> None:
        while True:
            await asyncio.shield(asyncio.to_thread(self.write, self.state()))  # (a disk may be slow)
            await asyncio.sleep(EVERY)
