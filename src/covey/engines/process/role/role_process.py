"""The process of a role, from start to end; an exception reaches the launcher as the user's own traceback."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import NoReturn

import zmq

from covey import faults
from covey.checkpoint import RoleState
from covey.engines.machine import this_boot
from covey.engines.process import control
from covey.engines.process.child_process import end
from covey.engines.process.contacts import Contacts, address, by_address
from covey.engines.process.control_lines import RoleLine
from covey.engines.process.driving_turn import DRIVER
from covey.engines.process.role import native_sums
from covey.engines.process.role.allocator import keep_memory
from covey.engines.process.role.command_handlers import obey
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.cuda_stream import lane_of
from covey.engines.process.role.driver import Driver
from covey.engines.process.role.native_sums import NativeSums
from covey.engines.process.role.op_profiler import OpProfiler
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import SEGMENT, WITHOUT
from covey.engines.transport.zmq import ZmqTransport
from covey.errors import CoveyError
from covey.message import Address
from covey.model.discarded import discarded
from covey.model.replica import Replica
from covey.strategy import Plan
from covey.vector import fingerprint

LARGEST, ROOM = 8, 1 << 20  # a message is at most this many models plus this many bytes (sparse ones carry their keys)
WARM = 2  # steps that are done before the clock starts, and undone
LONGEST = 100_000  # characters of a failure's story


class RoleLines:
    """A role's lines: to the launcher at once, to its peers once it is built. Failures inside are sent, then raised."""

    def __init__(self, me: Address, contacts: Contacts) -> None:
        keep_memory()
        self.me, self.contacts, self.key_ring = me, contacts, contacts.key_ring(me)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        incarnation = contacts.incarnations.get(str(me), 0)
        self.line = RoleLine(self.context, contacts.launcher, me, self.key_ring, contacts.token, incarnation)
        self.links: ZmqTransport | None = None

    def __enter__(self) -> RoleLines:
        return self

    def doing(self, what: str) -> None:
        """Report to the launcher what takes this role's time before it is ready."""
        self.line.tell(control.Doing(what))

    def ready(self, parameters: int, fingerprint: str = "", done: int = 0) -> None:
        self.line.tell(control.RoleReady(fingerprint, parameters, done))

    def open(self, window: int, model: int) -> ZmqTransport:
        """The links to the peers; `model` is the size of what is trained, in bytes, to which messages are held."""
        book = by_address(self.contacts.book)
        self.links = ZmqTransport(
            self.me, book, limit=LARGEST * model + ROOM, window=window, key_ring=self.key_ring,
            token=self.contacts.token, refusals=self.line.refusals, cipher=self.contacts.cipher,
            memory=HostMemory(self.me, SEGMENT[0]) if SEGMENT and self.me in SEGMENT[0].places else None,
            incarnations={address(name): incarnation for name, incarnation in self.contacts.incarnations.items()},
        )  # fmt: skip
        if self.contacts.open:
            self.line.tell(control.Bound(self.links.endpoint))
            word = self.line.wait()
            assert isinstance(word, control.Endpoints), f"{self.me} waits for the address book, and heard {word}"
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
            end(1)  # it is reported already; the terminal needs no second traceback


def tell_failure(me: Address, contacts: Contacts, error: Exception) -> NoReturn:
    """Report to the launcher a failure from before the role's lines were open, and end the process."""
    with RoleLines(me, contacts):
        raise error
    raise AssertionError("RoleLines ends the process after a failure")


def play(
    lines: RoleLines, plan: Plan, replica: Replica, kept: RoleState | None, serve: Callable[[ComputeThread], None],
    warm: bool = False, inherit: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Drive the role's program; `serve` is what this thread does meanwhile: the computing.

    A role that is to be `warm` first runs its program for a few steps from the initial weights, and undoes them.
    `inherit` gives the replica the model of a run with other roles.
    """
    stream = lane_of(replica.flat)
    role = plan.role(lines.me)
    links = lines.open(plan.window, replica.bulk)
    if links.memory:
        replica.house(links.memory.house)
    elif WITHOUT:
        lines.line.tell(control.MemoryShort(WITHOUT[0]))
    if plan.allowance:
        links.allow(plan.allowance, plan.away(lines.me))
    if role.prepare:
        role.prepare(replica.flat)
    sums: NativeSums | SharedSum | None = None
    if not plan.allowance:  # what the engine sums by itself passes no link of covey's
        found = native_sums.find(lines.me, lines.contacts, stream)
        sums = found or (SharedSum(lines.me, links.memory) if links.memory else None)

    def driver(plan: Plan, kept: RoleState | None) -> Driver:
        made = Driver(plan, role, replica, links, lines.line, ComputeThread(stream), kept)
        made.effects.sums = sums
        made.host.sums = sums if isinstance(sums, SharedSum) else None
        return made

    first = _first_weights(replica) if not (kept or plan.resumed or links.incarnation) else ""
    if warm:
        with discarded(replica, kept.done if kept else 0):
            warming = driver(plan.shortened(WARM), None)
            lines.ready(replica.flat.numel, first, kept.done if kept else 0)
            drive(warming, serve)
        if warming.quit != "undone":
            return
    if inherit:
        inherit()
    real = driver(plan, kept)
    replica.updates.house = links.memory.blocks.house_if_ample if links.memory else None
    real.host.notice.listen(plan.least > 0 and role.trains)
    align(real, plan)
    lines.ready(replica.flat.numel, first, kept.done if kept else 0)
    drive(real, serve)


def _first_weights(replica: Replica) -> str:
    """What all roles must have built alike; of who comes later it is not asked."""
    return replica.initial or fingerprint(replica.flat)


def align(driver: Driver, plan: Plan) -> None:
    """What is recorded of the role can be brought together with what is of others; also what torch does, if asked."""
    if not driver.links.incarnation:  # the clock of a later incarnation begins with what the launcher's says
        driver.metrics.machine = this_boot()
    if plan.profiled:
        heard = 0 if driver.host.role.trains else len(plan.limits)
        gpu = driver.host.compute_thread.stream is not None
        driver.metrics.profiler = OpProfiler(driver.metrics.watch, gpu=gpu, workers=heard)


def drive(driver: Driver, serve: Callable[[ComputeThread], None]) -> None:
    """Start the driver's thread and compute on this one, until the launcher ends the role."""
    compute_thread, failure = driver.host.compute_thread, list[BaseException]()

    def run() -> None:
        try:
            if compute_thread.stream:
                compute_thread.stream.enter()
            driver.run(obey)
        except BaseException as error:
            failure.append(error)
        finally:
            compute_thread.close()

    thread = Thread(target=run, name=DRIVER, daemon=True)
    thread.start()
    serve(compute_thread)
    thread.join()
    if compute_thread.stream:
        compute_thread.stream.leave()
    if failure:
        raise failure[0]


def told(error: BaseException) -> control.ProgramRaised:
    """A failure as the launcher receives it; an error of covey's own needs no traceback."""
    if isinstance(error, CoveyError):
        return control.ProgramRaised(_cut(str(error)), _cut(faults.story(error)), type(error).__name__)
    return control.ProgramRaised(_cut(faults.words(error)), _cut(faults.story(error)))


def _cut(text: str) -> str:
    """What the control line takes of a story, whose end says most."""
    return text if len(text) <= LONGEST else f"…{text[-LONGEST:]}"
