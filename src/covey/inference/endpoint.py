"""The edge: HTTP in front of the front."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from covey.decoding import WireFormat
from covey.errors import WireError
from covey.inference.front_driver import FrontDriver
from covey.inference.replicas.replica_pool import ReplicaPool
from covey.inference.schema import InputSchema
from covey.inference.versions.choice import NOTHING_TO_CHOOSE
from covey.page.host_names import is_meant

# What an ASGI server hands to an application.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]  # of a request, by their names in small letters
Answer = tuple[int, Any]  # a status, and what becomes JSON

_json = msgspec.json.Encoder().encode
JSON = b"application/json"
LONGEST = 500  # characters of a reason: it may repeat what the client has sent
EXTRA: Mapping[int, tuple[bytes, bytes]] = {  # headers of answers with these statuses
    429: (b"retry-after", b"1"),
    408: (b"connection", b"close"),  # the rest of its body is not read
    413: (b"connection", b"close"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeSettings:
    """What the edge lets in: bodies of at most so many bytes, who has the token, who asks for these hosts."""

    body: int = 1 << 20
    patience: float = 10.0  # seconds for a body to come
    token: str = ""
    hosts: Collection[str] = ()  # none: any


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good an answer was: its loss, from 0 to 1, or the class that would have been right."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    loss: float | None = None
    label: int | None = None

    def check(self) -> None:
        if (self.loss is None) == (self.label is None) or not 0 <= (self.loss or 0) <= 1:
            raise WireError("send the `id` of an answer with its `loss`, from 0 to 1, or with the right `label`")


judgements: WireFormat[Judgement] = WireFormat("judgement of an answer", Judgement, "json", most=1 << 12)


class RequestRefused(Exception):
    """A request that is answered without the model's numbers."""

    def __init__(self, status: int, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.status, self.content = status, content


def _cut(reason: object) -> str:
    text = str(reason)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


class Endpoint:
    """An ASGI application: POST /predict and /feedback, and GET /schema, /health and /stats."""

    def __init__(
        self, models: Sequence[str], schema: InputSchema, driver: FrontDriver, pool: ReplicaPool,
        settings: EdgeSettings,
    ) -> None:  # fmt: skip
        self._models, self._schema, self._settings = models, schema, settings
        self._driver, self._pool = driver, pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            if [name for name, _ in scope["headers"]].count(b"host") > 1:
                raise RequestRefused(400, {"error": "send one Host, not several"})
            status, content = await self._answer(scope, dict(scope["headers"]), receive)
        except RequestRefused as refused:
            status, content = refused.status, refused.content
        body = _json(content)
        headers = [(b"content-type", JSON), (b"content-length", str(len(body)).encode())]
        if status in EXTRA:
            headers.append(EXTRA[status])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive) -> Answer:
        if self._settings.hosts and not is_meant(headers.get(b"host", b"").decode("latin-1"), self._settings.hosts):
            raise RequestRefused(421, {"error": f"as Host, send one of {', '.join(sorted(self._settings.hosts))}"})
        if self._settings.token and not _knows(headers.get(b"authorization", b""), self._settings.token):
            raise RequestRefused(401, {"error": "send the token: Authorization: Bearer TOKEN"})
        match scope["method"], scope["path"]:
            case "POST", "/predict":
                return await self._predict(headers, receive)
            case "POST", "/feedback":
                return await self._judge(headers, receive)
            case "GET", "/schema":
                return 200, {"model": self._most(), **self._schema.explain()}
            case "GET", "/health":
                there = len(self._pool.present)
                return 200 if there else 503, {"model": self._most(), "replicas": there}
            case "GET", "/stats":
                return 200, statistics(self._driver, self._pool, self._models)
        raise RequestRefused(
            404, {"error": "there are POST /predict, POST /feedback, GET /schema, GET /health and GET /stats"}
        )

    def _most(self) -> str:
        """The version that answers most requests; after a canary's promotion it is the new one."""
        if len(self._models) == 1:
            return self._models[0]
        shares = self._driver.choice.shares()
        return self._models[shares.index(max(shares))]

    async def _predict(self, headers: Headers, receive: Receive) -> Answer:
        body = await _body(headers, receive, self._settings)
        try:
            row = self._schema.read(body)
        except WireError as error:
            raise RequestRefused(422, {"error": _cut(error), "expected": self._schema.explain()}) from None
        answered = await self._driver.ask(row)
        if answered.status != 200:
            raise RequestRefused(answered.status, {"error": _cut(answered.reason)})
        told: dict[str, Any] = {"output": answered.row.parts[0].tolist(), "model": self._models[answered.version]}
        if len(self._models) > 1:
            told |= {"id": f"{answered.ticket:016x}", "confidence": answered.confidence}
        return 200, told

    async def _judge(self, headers: Headers, receive: Receive) -> Answer:
        body = await _body(headers, receive, self._settings)
        if len(self._models) == 1:  # answers have no ids: no body would be right
            raise RequestRefused(409, {"error": NOTHING_TO_CHOOSE})
        try:
            given = judgements.read(body, "the client")
            given.check()
        except WireError as error:
            raise RequestRefused(422, {"error": _cut(error)}) from None
        if reason := self._driver.judge(int(given.id, 16), given.loss, given.label):
            raise RequestRefused(409, {"error": reason})
        return 200, {}


def statistics(driver: FrontDriver, pool: ReplicaPool, models: Sequence[str]) -> dict[str, Any]:
    """How the last requests went."""
    times, batches = sorted(driver.times), driver.batches
    return {
        "answers": {str(status): number for status, number in sorted(driver.statuses.items())},
        "p50_ms": _percentile(times, 0.50), "p99_ms": _percentile(times, 0.99),
        "batches": driver.batches_sent, "mean_batch": sum(batches) / len(batches) if batches else None,
        "replicas": len(pool.present), "replicas_lost": pool.lost,
        "versions": dict(zip(models, driver.choice.shares(), strict=True)),
    }  # fmt: skip


def _percentile(times: list[float], share: float) -> float | None:
    return 1e3 * times[min(len(times) - 1, int(share * len(times)))] if times else None


async def _body(headers: Headers, receive: Receive, settings: EdgeSettings) -> bytes:
    # A page in a browser may send other types to any address without asking first.
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON:
        raise RequestRefused(415, {"error": "send JSON, with Content-Type: application/json"})
    announced = headers.get(b"content-length", b"0")
    if not announced.isdigit() or int(announced[:20]) > settings.body:
        raise _too_large(settings)
    body, more = b"", True
    try:
        async with asyncio.timeout(settings.patience):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestRefused(400, {"error": "the client hung up"})
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > settings.body:
                    raise _too_large(settings)
    except TimeoutError:
        raise RequestRefused(408, {"error": f"the body did not come within {settings.patience:g} s"}) from None
    return body


def _too_large(settings: EdgeSettings) -> RequestRefused:
    return RequestRefused(413, {"error": f"a body may have {settings.body} bytes"})


def _knows(given: bytes, token: str) -> bool:
    return secrets.compare_digest(given, f"Bearer {token}".encode())
