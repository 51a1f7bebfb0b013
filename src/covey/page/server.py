"""The web server of the page: read-only, one folder, nothing from elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
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

from covey.errors import WireError
from covey.page.folder import WatchedFolder
from covey.page.series import series
from covey.page.tail import JournalCursor

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
QUIET = 15.0  # seconds after which a stream says that it lives
COOKIE = "covey"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_json = msgspec.json.Encoder().encode


def application(folder: WatchedFolder, token: str = "", hosts: Sequence[str] = ()) -> ASGIApp:
    """The page over a folder; who has no token gets nothing if there is one, nor who asks for another host."""
    assets = {one.name: one.read_bytes() for one in files("covey.page").joinpath("static").iterdir() if one.is_file()}

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
            found = await run_in_threadpool(series, path, since)
        except (WireError, OSError) as error:
            return PlainTextResponse(str(error), 409)
        return Response(_json(found), media_type="application/json")

    async def events(request: Request) -> Response:
        return StreamingResponse(_stream(folder), media_type="text/event-stream")

    routes = [Route("/", asset), Route("/events", events), Route("/run", run), Route("/static/{name}", asset)]
    return _guarded(Starlette(routes=routes), token, hosts)


async def _stream(folder: WatchedFolder) -> AsyncIterator[bytes]:
    """All rows, then whatever changes, as server-sent events."""
    serial, trouble, silent = -1, "", 0.0
    while True:
        now, rows, gone = await run_in_threadpool(folder.changes, serial)
        if now != serial or folder.trouble != trouble:
            word = {"all": serial < 0, "folder": str(folder.runs), "rows": rows, "gone": gone}
            serial, trouble, silent = now, folder.trouble, 0.0
            yield b"data: " + _json(word | {"trouble": trouble}) + b"\n\n"
        elif silent > QUIET:
            silent = 0.0
            yield b": still here\n\n"
        await anyio.sleep(0.1)
        silent += 0.1


def _guarded(app: ASGIApp, token: str, hosts: Sequence[str]) -> ASGIApp:
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


def _refused(scope: Scope, token: str, hosts: Sequence[str]) -> ASGIApp | None:
    headers, asked = Headers(scope=scope), QueryParams(scope["query_string"])
    host = headers.get("host", "").rsplit(":", 1)[0] if not headers.get("host", "").endswith("]") else headers["host"]
    if hosts and host not in hosts:
        return PlainTextResponse("this page answers only to the address that it was started with", 421)
    if not token:
        return None
    if secrets.compare_digest(asked.get("token", "").encode(), token.encode()):
        welcome = RedirectResponse("/", 303)  # the token leaves the address, and what a browser remembers of it
        welcome.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return welcome
    cookies = Request(scope).cookies.get(COOKIE, "")
    if secrets.compare_digest(cookies.encode(), token.encode()):
        return None
    return PlainTextResponse("open the address with ?token=… that `covey page` printed", 403)
