"""Counting semaphores in shared memory: what one process wrote before it gives, another sees after it has taken.

They are the C library's own (sem_overview(7)); plain flags would not do, for a processor may let others see them
before the numbers that they speak of.
"""

from __future__ import annotations

import ctypes
import mmap
import platform

SIZE = 64  # bytes of one: at least a sem_t, and a cache line of its own

_libc = ctypes.PyDLL(None)  # keeps the interpreter's lock: none of these calls waits
_init, _post, _trywait = _libc.sem_init, _libc.sem_post, _libc.sem_trywait
_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
_post.argtypes = _trywait.argtypes = [ctypes.c_void_p]

GIVING_FENCES = platform.machine() == "x86_64"  # where the instruction that gives a sign is a fence as well

_COUNT = slice(0, 4)  # bytes of a sem_t on 64-bit Linux that say how many there are to take
_KIND = slice(8, 12)  # bytes of a sem_t on 64-bit Linux that say how it was made; what counts lies before them


class Semaphore:
    """One that lies at `offset` of memory that several processes map."""

    __slots__ = ("_at", "_memory")

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = (ctypes.c_char * SIZE).from_buffer(memory, offset)  # keeps it mapped
        self._at = ctypes.addressof(self._memory)

    def clear(self) -> None:
        """Begin with nothing to take; before anybody else knows it."""
        _init(self._at, 1, 0)

    def sound(self) -> bool:
        """Whether one was laid here: over bytes that are none the C library ends the process."""
        return self._memory.raw[_KIND] == _SHARED

    def give(self) -> None:
        _post(self._at)

    def fence(self) -> None:
        """(Of one that only this process uses) Nothing is read after this before all sees what was written before it.

        To give is to release and to take is to acquire, and no processor exchanges these two.
        """
        _post(self._at)
        _trywait(self._at)

    @property
    def count(self) -> memoryview:
        """Its only number says how many there are to take; only after `take` is seen what was written before."""
        return memoryview(self._memory).cast("B")[_COUNT].cast("I")

    def take(self) -> bool:
        """Whether there was something to take; never waits."""
        return _trywait(self._at) == 0  # type: ignore[no-any-return]


def _shared() -> bytes:
    """How one looks that several processes may use."""
    room = mmap.mmap(-1, SIZE)
    one = Semaphore(room, 0)
    one.clear()
    return one._memory.raw[_KIND]


_SHARED = _shared()
