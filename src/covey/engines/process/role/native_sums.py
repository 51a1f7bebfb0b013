"""Sums over roles by an engine's own collective, on a thread of their own while the role goes on listening."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from covey.engines.process.contacts import Contacts
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.cuda_stream import CudaStream
from covey.errors import CoveyError, RoleFailed
from covey.message import Address, Message
from covey.program import Collective

Group = tuple[Address, ...]
GRACE = 8.0  # seconds in which the launcher finds out who died, which says more than a broken connection


class NativeCollectives(Protocol):
    """What a module of `engines/native` makes: `collectives(me, contacts, *arguments)`."""

    def joins(self, group: Group) -> bool:
        """Whether it can sum over this group; all members answer alike."""
        ...

    def sum(self, parts: list[Tensor], group: Group) -> None:
        """Sum over the group, in place; every member calls this."""
        ...


class NativeSum(Message):
    """Stands for what a native sum has sent, in the account of traffic."""

    wire_name = "native.native_sum"


class PendingSum(NamedTuple):
    """A sum, and the program that waits for it."""

    program: Any
    effect: Collective


class SumDone(NamedTuple):
    """How a sum ended; one that did not come about is left to the program."""

    wanted: PendingSum
    came: bool
    error: BaseException | None


class NativeSums:
    """The native sums of one role, one after the other."""

    def __init__(self, collectives: NativeCollectives, stream: CudaStream | None = None) -> None:
        self.collectives = collectives
        self.compute_thread = ComputeThread(stream)
        self.wakeups = (self.compute_thread.wakeup,)
        self.wanted: deque[PendingSum] = deque()
        Thread(target=self.compute_thread.serve, name="native sums", daemon=True).start()

    def take(self, program: Any, effect: Collective) -> bool:
        """Whether the sum is under way; the bell rings when it is done."""
        if not self.collectives.joins(effect.group):
            return False
        self.wanted.append(PendingSum(program, effect))
        self.compute_thread.put(partial(self._sum, effect))
        return True

    def advance(self) -> list[SumDone]:
        """The sums that are done."""
        _, _, done = self.compute_thread.collect()
        return [SumDone(self.wanted.popleft(), error is None, error) for _, error in done]

    def _sum(self, effect: Collective) -> None:
        try:
            if effect.share != 1:
                effect.vector.mul_(effect.share)
            self.collectives.sum([part for part in effect.vector.parts if part.numel()], effect.group)
        except CoveyError:  # it says enough
            raise
        except Exception as error:
            time.sleep(GRACE)
            raise RoleFailed(f"the native sum over {len(effect.group)} roles failed: {error}") from error


def find(me: Address, contacts: Contacts, stream: CudaStream | None = None) -> NativeSums | None:
    """The way of summing that the engine offers, if it does."""
    if not contacts.native:
        return None
    module, *arguments = contacts.native.split(" ")
    return NativeSums(import_module(module).collectives(me, contacts, *arguments), stream)
