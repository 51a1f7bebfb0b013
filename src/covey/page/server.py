"""The web server of the page: read-only, one folder, nothing from elsewhere."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Collection
from importlib.resources import files

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from covey.decoding import UNREADABLE
from covey.errors import WireError
from covey.page.folder import WatchedFolder
from covey.page.host_names import is_meant
from covey.page.rows import RunRow, encodable
from covey.page.series import job_series, series
from covey.page.tail import JournalCursor

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
QUIET = 3.0  # seconds after which a stream says that it lives; the page waits for 8
STREAMS = 32  # that are open at a time
COOKIE = "covey"  # with the port: browsers send a host's cookies to all of its ports
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_json = msgspec.json.Encoder().encode


def application(folder: WatchedFolder, token: str = "", hosts: Collection[str] = ()) -> ASGIApp:
    """The page over a folder; who has no token gets nothing if there is one, nor who asks for another host."""
    assets = {one.name: one.read_bytes() for one in files("covey.page").joinpath("static").iterdir() if one.is_file()}
    streams: dict[object, None] = {}  # those that are open, the oldest first

    async def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in assets:
            return PlainTextResponse("there is no such page", 404)
        return Response(assets[name], media_type=KINDS.get(name.rpartition(".")[2], "text/plain"))

    async def run(request: Request) -> Response:
        path = folder.path(request.query_params.get("id", ""))
        if path is None:
            return PlainTextResponse("there is no such run", 404)
        try:
            since = JournalCursor.parse(request.query_params.get("since", ""))
            job = folder.job(request.query_params.get("id", ""))
            found = job_series(job) if job else await run_in_threadpool(series, path, since)
            return Response(_json(found), media_type="application/json")
        except (WireError, OSError, *UNREADABLE) as error:
            return PlainTextResponse(encodable(str(error)), 409)

    async def events(request: Request) -> Response:
        return StreamingResponse(_stream(folder, streams), media_type="text/event-stream")

    routes = [Route("/", asset), Route("/events", events), Route("/run", run), Route("/static/{name}", asset)]
    return _guarded(Starlette(routes=routes), token, hosts)


async def _stream(folder: WatchedFolder, streams: dict[object, None]) -> AsyncIterator[bytes]:
    """All rows, then whatever changes, as server-sent events, until too many others have begun."""
    me = object()
    streams[me] = None
    while len(streams) > STREAMS:
        del streams[next(iter(streams))]  # a browser that still shows the page connects again
    try:
        async for word in _words(folder):
            yield word
            if me not in streams:
                return
    finally:
        streams.pop(me, None)


async def _words(folder: WatchedFolder) -> AsyncIterator[bytes]:
    serial, trouble, spoke = -1, "", time.monotonic()
    look: asyncio.Task[tuple[int, list[RunRow], list[str]]] | None = None
    try:
        while True:
            look = look or asyncio.create_task(run_in_threadpool(folder.changes, serial))
            await asyncio.wait([look], timeout=QUIET / 4)  # a slow disk keeps no beat waiting
            word = b""
            if look.done():
                now, rows, gone = look.result()
                look = None
                if now != serial or folder.trouble != trouble:
                    news = {"all": serial < 0, "folder": encodable(str(folder.runs)), "rows": rows, "gone": gone}
                    news |= {"queue": folder.queue.view, "endpoints": folder.endpoints.view}
                    serial, trouble = now, folder.trouble
                    word = b"data: " + _json(news | {"trouble": trouble}) + b"\n\n"
            if not word and time.monotonic() - spoke > QUIET:
                word = b"event: beat\ndata:\n\n"
            spoke = time.monotonic() if word else spoke
            yield word
            if look is None:
                await anyio.sleep(0.1)
    finally:
        if look is not None:
            look.cancel()


def _guarded(app: ASGIApp, token: str, hosts: Collection[str]) -> ASGIApp:
    """Headers for every answer; a browser that was lured here under another name, or has no token, gets nothing."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = _refused(scope, token, hosts)
        await (answer or app)(scope, receive, marked)

    return guard


def _refused(scope: Scope, token: str, hosts: Collection[str]) -> ASGIApp | None:
    headers, asked = Headers(scope=scope), QueryParams(scope["query_string"])
    if hosts and not is_meant(headers.get("host", ""), hosts):
        return PlainTextResponse("this page answers only to the address that it was started with", 421)
    if not token:
        return None
    cookie = f"{COOKIE}{scope['server'][1]}"
    if secrets.compare_digest(asked.get("token", "").encode(), token.encode()):
        welcome = RedirectResponse("/", 303)  # the token leaves the address, and what a browser remembers of it
        welcome.set_cookie(cookie, token, httponly=True, samesite="strict")
        return welcome
    cookies = Request(scope).cookies.get(cookie, "")
    if secrets.compare_digest(cookies.encode(), token.encode()):
        return None
    return PlainTextResponse("open the address with ?token=… that `covey page` printed", 403)
