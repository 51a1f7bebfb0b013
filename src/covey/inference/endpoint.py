"""The edge: HTTP in front of the front."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from covey.errors import WireError
from covey.inference.front_driver import FrontDriver
from covey.inference.replicas.replica_pool import ReplicaPool
from covey.inference.schema import InputSchema

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeSettings:
    """What the edge lets in: bodies of at most so many bytes, and with a token only those who have it."""

    body: int = 1 << 20
    patience: float = 10.0  # seconds for a body to come
    token: str = ""


class RequestRefused(Exception):
    """A request that is answered without the model's numbers."""

    def __init__(self, status: int, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.status, self.content = status, content


class Endpoint:
    """An ASGI application: POST /predict, and GET /schema, /health and /stats."""

    def __init__(
        self, model: str, schema: InputSchema, driver: FrontDriver, pool: ReplicaPool, settings: EdgeSettings
    ) -> None:
        self._model, self._schema, self._settings = model, schema, settings
        self._driver, self._pool = driver, pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(scope, Headers(scope=scope), receive)
        except RequestRefused as refused:
            response = _json_answer(refused.status, refused.content)
            if refused.status == 429:
                response.headers["retry-after"] = "1"
            if refused.status in (408, 413):  # the rest of its body is not read
                response.headers["connection"] = "close"
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        if self._settings.token and not _knows(headers.get("authorization", ""), self._settings.token):
            raise RequestRefused(401, {"error": "send the token: Authorization: Bearer TOKEN"})
        match scope["method"], scope["path"]:
            case "POST", "/predict":
                return await self._predict(headers, receive)
            case "GET", "/schema":
                return _json_answer(200, {"model": self._model, **self._schema.explain()})
            case "GET", "/health":
                there = len(self._pool.present)
                return _json_answer(200 if there else 503, {"model": self._model, "replicas": there})
            case "GET", "/stats":
                return _json_answer(200, statistics(self._driver, self._pool))
        raise RequestRefused(404, {"error": "there are POST /predict, GET /schema, GET /health and GET /stats"})

    async def _predict(self, headers: Headers, receive: Receive) -> Response:
        # A page in a browser may send other types to any address without asking first.
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestRefused(415, {"error": "send JSON, with Content-Type: application/json"})
        body = await _body(headers, receive, self._settings)
        try:
            row = self._schema.read(body)
        except WireError as error:
            raise RequestRefused(422, {"error": str(error), "expected": self._schema.explain()}) from None
        answered = await self._driver.ask(row)
        if answered.status != 200:
            raise RequestRefused(answered.status, {"error": answered.reason})
        return _json_answer(200, {"output": answered.row.parts[0].tolist(), "model": self._model})


def statistics(driver: FrontDriver, pool: ReplicaPool) -> dict[str, Any]:
    """How the last requests went."""
    times, batches = sorted(driver.times), driver.batches
    return {
        "answers": {str(status): number for status, number in sorted(driver.statuses.items())},
        "p50_ms": _percentile(times, 0.50), "p99_ms": _percentile(times, 0.99),
        "mean_batch": sum(batches) / len(batches) if batches else None,
        "replicas": len(pool.present), "replicas_lost": pool.lost,
    }  # fmt: skip


def _percentile(times: list[float], share: float) -> float | None:
    return 1e3 * times[min(len(times) - 1, int(share * len(times)))] if times else None


async def _body(headers: Headers, receive: Receive, settings: EdgeSettings) -> bytes:
    large = RequestRefused(413, {"error": f"a body may have {settings.body} bytes"})
    announced = headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced[:20]) > settings.body:
        raise large
    body, more = b"", True
    try:
        async with asyncio.timeout(settings.patience):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestRefused(400, {"error": "the client hung up"})
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > settings.body:
                    raise large
    except TimeoutError:
        raise RequestRefused(408, {"error": f"the body did not come within {settings.patience:g} s"}) from None
    return body


def _knows(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode())


def _json_answer(status: int, content: Mapping[str, Any]) -> Response:
    return Response(_json(content), status, media_type="application/json")
