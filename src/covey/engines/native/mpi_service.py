"""A site's part of MPI's all-reduce: roles are not ranks, so they share their vectors with the site.

A role connects to a socket without a file, whose name only this site's own processes are told; it sends the memory's
handle when it has a new one, then for each sum who takes part in it, and is answered when the sum lies there.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
import threading
import zlib
from typing import Any

import msgspec

from covey.decoding import WireFormat
from covey.errors import WireError

NATIVE = "covey.engines.native.mpi"  # the roles' side
WHERE = "COVEY_SUMS"  # the variable with the socket's name, for a site's roles
MOST = 1 << 20  # bytes of one request
SIZES = {"FLOAT": 4, "DOUBLE": 8, "INT64_T": 8, "INT32_T": 4, "C_FLOAT_COMPLEX": 8, "C_DOUBLE_COMPLEX": 16}
"""Bytes of a number of each type."""


class SumRequest(msgspec.Struct, frozen=True):
    """A sum over these sites, of `count` numbers of a type at the beginning of the memory."""

    sites: tuple[int, ...]
    type: str  # as MPI calls it
    count: int
    fresh: bool = False  # the memory's handle comes along


_wanted: WireFormat[SumRequest] = WireFormat("sum that is wanted", SumRequest, most=MOST)


class Service:
    """Answers this site's roles; site `n` is rank `n + first` of `comm`."""

    def __init__(self, comm: Any, first: int = 0) -> None:
        self.comm, self.first = comm, first
        self.groups: dict[tuple[int, ...], Any] = {}
        name = f"\0covey-{secrets.token_hex(16)}"
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.bind(name)
        self.door.listen()
        os.environ[WHERE] = name[1:]
        threading.Thread(target=self._welcome, name="native sums", daemon=True).start()

    def close(self) -> None:
        os.environ.pop(WHERE, None)
        self.door.close()

    def _welcome(self) -> None:
        while True:
            try:
                line, _ = self.door.accept()
            except OSError:
                return
            _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                line.close()
                continue
            threading.Thread(target=self._serve, args=(line,), name="native sums", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        memory: mmap.mmap | None = None
        with line:
            while True:
                data, handles, _, _ = socket.recv_fds(line, MOST, 1)
                if not data:
                    return
                try:
                    wanted = _wanted.read(data, "a role")
                    memory = _mapped(handles) if wanted.fresh else memory
                    answer = self._sum(wanted, memory)
                except (WireError, OSError, ValueError) as error:
                    answer = str(error).encode()
                line.send(answer[:MOST])

    def _sum(self, wanted: SumRequest, memory: mmap.mmap | None) -> bytes:
        """Empty when it is done, else what went wrong."""
        known = memory is not None and wanted.type in SIZES and min(wanted.sites, default=-1) >= 0
        if memory is None or not known or not 0 <= wanted.count * SIZES[wanted.type] <= len(memory):
            raise WireError(f"a role wants a sum of {wanted.count} {wanted.type[:20]} that it has not laid out")
        from mpi4py import MPI

        try:
            group = self._group(wanted.sites)
            group.Allreduce(MPI.IN_PLACE, [memory, wanted.count, getattr(MPI, wanted.type)], MPI.SUM)
        except MPI.Exception as error:
            return str(error).encode()
        return b""

    def _group(self, sites: tuple[int, ...]) -> Any:
        """The communicator of these sites, made by all of them when they first sum."""
        if sites not in self.groups:
            members = self.comm.group.Incl([site + self.first for site in sites])
            self.groups[sites] = self.comm.Create_group(members, tag=zlib.crc32(repr(sites).encode()) & 0x7FFF)
        return self.groups[sites]


def _mapped(handles: list[int]) -> mmap.mmap:
    """The memory whose handle came along."""
    if len(handles) != 1:
        raise WireError("a role speaks of new memory, and no handle of it came")
    try:
        return mmap.mmap(handles[0], os.fstat(handles[0]).st_size)
    finally:
        os.close(handles[0])
