"""A role's process, from birth to goodbye; whatever it raises reaches the launcher as the user's own traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import NoReturn

import zmq

from covey import faults
from covey.checkpoint import RoleState
from covey.engines.process import control, native
from covey.engines.process.assembly import Assembly
from covey.engines.process.contacts import Contacts, by_address
from covey.engines.process.desk import Desk
from covey.engines.process.driver import Driver
from covey.engines.process.lane import lane_of
from covey.engines.process.lines import RoleLine
from covey.engines.process.obedience import obey
from covey.engines.transport.ground import GROUND, WITHOUT
from covey.engines.transport.memory import Memory
from covey.engines.transport.zmq import ZmqTransport, keep_memory
from covey.errors import CoveyError
from covey.message import Address
from covey.replica import Replica
from covey.strategy import Plan
from covey.vector import fingerprint

LARGEST, ROOM = 8, 1 << 20  # a message is at most so many models and so many bytes (sparse ones carry their keys)
LONGEST = 100_000  # characters of a failure's story


class Post:
    """A role's lines: to the launcher at once, to its peers once it is built. Failures inside are told, then raised."""

    def __init__(self, me: Address, contacts: Contacts) -> None:
        keep_memory()
        self.me, self.contacts, self.ring = me, contacts, contacts.ring(me)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.line = RoleLine(self.context, contacts.launcher, me, self.ring, contacts.token)
        self.links: ZmqTransport | None = None

    def __enter__(self) -> Post:
        return self

    def doing(self, what: str) -> None:
        """Tell the launcher what takes this role's time before it is ready."""
        self.line.tell(control.Doing(what))

    def ready(self, parameters: int, fingerprint: str = "") -> None:
        self.line.tell(control.Ready(fingerprint, parameters))

    def open(self, window: int, model: int) -> ZmqTransport:
        """The links to the peers; `model` is the size of what is trained, in bytes, to which messages are held."""
        book = by_address(self.contacts.book)
        self.links = ZmqTransport(
            self.me, book, limit=LARGEST * model + ROOM, window=window, ring=self.ring, token=self.contacts.token,
            refusals=self.line.refusals, memory=Memory(self.me, GROUND[0]) if GROUND else None,
        )  # fmt: skip
        if self.contacts.open:
            self.line.tell(control.Bound(self.links.endpoint))
            word = self.line.wait()
            assert isinstance(word, control.Book), f"{self.me} waits for the address book, and heard {word}"
            self.links.book = by_address(word.endpoints)
        return self.links

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self.line.tell(told(error))
        if self.links is not None:
            self.links.close()
        self.line.socket.close(1000)
        self.context.term()
        if error is not None:
            sys.stdout.flush()
            os._exit(1)  # told already; a second traceback on the terminal would be one too many


def tell_failure(me: Address, contacts: Contacts, error: Exception) -> NoReturn:
    """Tell the launcher of a failure outside any post, and end the process."""
    with Post(me, contacts):
        raise error
    raise AssertionError("a post does not let a failure through")


def play(post: Post, plan: Plan, replica: Replica, kept: RoleState | None, serve: Callable[[Desk], None]) -> None:
    """Drive the role's program; `serve` is what this thread does meanwhile: the computing."""
    desk = Desk(lane_of(replica.flat))
    links = post.open(plan.window, replica.bulk)
    if links.memory:
        replica.house(links.memory.arena.house)
    elif WITHOUT:
        post.line.tell(control.Cramped(WITHOUT[0]))
    if plan.allowance:
        links.allow(plan.allowance, plan.away(post.me))
    role = plan.role(post.me)
    driver = Driver(plan, role, replica, links, post.line, desk, obey, kept)
    if role.prepare:
        role.prepare(replica.flat)
    if not plan.allowance:  # what the engine sums by itself passes no link of covey's
        found = native.find(post.me, post.contacts, desk.lane)
        driver.sums = found or (Assembly(post.me, links.memory) if links.memory else None)
    post.ready(replica.flat.numel, "" if kept else replica.initial or fingerprint(replica.flat))
    failure: list[BaseException] = []

    def drive() -> None:
        try:
            if desk.lane:
                desk.lane.enter()
            driver.run()
        except BaseException as error:
            failure.append(error)
        finally:
            desk.close()

    thread = Thread(target=drive, name="driver", daemon=True)
    thread.start()
    serve(desk)
    thread.join()
    if failure:
        raise failure[0]


def told(error: BaseException) -> control.Failed:
    """A failure as the launcher hears of it; where covey itself says no, its words are enough."""
    if isinstance(error, CoveyError):
        return control.Failed(_cut(str(error)), _cut(faults.story(error)), type(error).__name__)
    return control.Failed(_cut(faults.words(error)), _cut(faults.story(error)))


def _cut(text: str) -> str:
    """What the control line takes of a story, whose end says most."""
    return text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
