"""Shards in an object store, or behind a web server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from covey.data.storage.ranges import MOST, RequestCount, split
from covey.data.storage.source import ShardSource, checked_name
from covey.errors import PlanError

CHANGED = "changed after the run began: shards must not be replaced during a run"
CHUNK = 1 << 20  # bytes of an answer that are handed on at once
SCHEMES = ("s3", "gs", "http", "https")
_USED_BY: dict[str, int] = {}  # the process that obstore has threads in; a forked one inherits the entry


class ObjectSource(ShardSource):
    """The objects below a URL, read with obstore; a large read is split into several requests at once.

    Credentials, region and endpoint come from the environment, as obstore reads it (`AWS_…`, `GOOGLE_…`). An object
    that changes after it was first seen is refused. A web server cannot list what it has: an index names its shards.

    Args:
        url: Such as `s3://bucket/folder`.
        requests: How many requests at once; None: as many as have proved useful.
    """

    def __init__(self, url: str, requests: int | None = None) -> None:
        super().__init__(url)
        self.requests = requests
        self.received = 0  # bytes
        self._count = RequestCount(count=requests or 1)
        self._known: dict[str, tuple[int, str]] = {}  # by name: size and tag
        self._process: tuple[Any, ThreadPoolExecutor] | None = None

    def names(self) -> tuple[str, ...]:
        obstore, store, _ = self._store()
        if urlsplit(self.place).scheme in ("http", "https"):
            return tuple(name for name in ("shards.json", "index.json") if self._is_there(name))
        try:
            for some in obstore.list(store):
                self._known.update({each["path"]: (each["size"], each["e_tag"] or "") for each in some})
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise PlanError(f"{self.place} cannot be listed: {_words(error)}") from None
        return tuple(sorted(self._known))

    def size(self, name: str) -> int:
        return self._seen(name)[0]

    def read(self, name: str, start: int, stop: int) -> bytes:
        size, tag = self._seen(name)
        if not 0 <= start <= stop <= size:
            raise self.error(name, f"ends after {size} bytes; bytes {start} to {stop} were asked for")
        if start == stop:
            return b""
        ranges = split(start, stop, self.requests or self._count.count)
        begin = time.monotonic()
        if len(ranges) == 1:
            data = self._get(name, tag, start, stop)
        else:
            _, _, pool = self._store()
            data = b"".join(pool.map(lambda part: self._get(name, tag, *part), ranges))
        self._count.measured(len(ranges), stop - start, time.monotonic() - begin)
        return data

    def _get(self, name: str, tag: str, start: int, stop: int) -> bytes:
        obstore, store, _ = self._store()
        options = {"range": (start, stop), **({"if_match": tag} if tag else {})}
        try:
            answer = obstore.get(store, checked_name(name), options=options)
            if tag and _plain(answer.meta["e_tag"] or tag) != _plain(tag):  # a server may ignore if_match
                raise self.error(name, CHANGED)
            data = _first(answer.stream(min_chunk_size=CHUNK), stop - start + 1)
        except obstore.exceptions.PreconditionError:
            raise self.error(name, CHANGED) from None
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise self.error(name, f"cannot be read: {_words(error)}") from None
        if len(data) != stop - start:
            many = f"{len(data)} bytes" if len(data) < stop - start else "more bytes than that"
            raise self.error(name, f"gave {many}; bytes {start} to {stop} were asked for")
        self.received += len(data)
        return data

    def _seen(self, name: str) -> tuple[int, str]:
        if name not in self._known:
            obstore, store, _ = self._store()
            try:
                found = obstore.head(store, checked_name(name))
            except (OSError, ValueError, obstore.exceptions.BaseError) as error:
                raise self.error(name, f"cannot be read: {_words(error)}") from None
            self._known[name] = found["size"], found["e_tag"] or ""
        return self._known[name]

    def _is_there(self, name: str) -> bool:
        obstore, store, _ = self._store()
        try:
            obstore.head(store, name)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            raise PlanError(f"{self.place} cannot be read: {_words(error)}") from None
        return True

    def _store(self) -> tuple[Any, Any, ThreadPoolExecutor]:
        """obstore, a store of its, and threads for several requests at once."""
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise PlanError(f"{self.place} needs obstore: pip install 'covey[remote]'") from None
        if self._process is None:
            self._check_fork()
            plain = urlsplit(os.environ.get("AWS_ENDPOINT_URL", "")).scheme == "http" or self.place.startswith("http:")
            try:
                store = from_url(self.place, client_options={"allow_http": plain, "timeout": "60s"})
            except (ValueError, obstore.exceptions.BaseError) as error:
                raise PlanError(f"{self.place} is no place of shards: {_words(error)}") from None
            self._process = store, ThreadPoolExecutor(MOST, "covey-ranges")
        self._check_fork()
        return obstore, *self._process

    def _check_fork(self) -> None:
        """The threads of obstore do not survive a fork: a process that was forked from one that has them hangs."""
        if _USED_BY.setdefault("process", os.getpid()) != os.getpid():
            raise PlanError(
                f"{self.place} was read before this process was forked, and obstore works in one of them: omit loaders "
                "(samples of a batch are fetched by threads), or let a DataLoader have multiprocessing_context='spawn'"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.place, "requests": self.requests, "known": self._known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["requests"])  # type: ignore[misc]
        self._known = state["known"]


def _first(chunks: Iterable[Any], most: int) -> bytes:
    """The first bytes of an answer, however many follow."""
    found, size = list[bytes](), 0
    for chunk in chunks:
        found.append(bytes(chunk))
        size += len(found[-1])
        if size >= most:
            break
    return b"".join(found)[:most]


def _plain(tag: str) -> str:
    """An ETag without the marks around it, which servers write in one answer and omit in another."""
    return tag.removeprefix("W/").strip('"')


def _words(error: Exception) -> str:
    """The first line of what obstore says, without the debugging text that follows."""
    return str(error).split("\n")[0].strip()[:300] or type(error).__name__


def is_url(place: str) -> bool:
    """Whether this is the URL of a store; one that covey does not know is refused."""
    scheme, found, _ = place.partition("://")
    if found and scheme not in SCHEMES:
        raise PlanError(f"{place}: covey reads {', '.join(f'{each}://' for each in SCHEMES)} and folders")
    return bool(found)
