"""A role's part of MPI's all-reduce: it puts its vector into memory shared with its site, and requests the sum."""

from __future__ import annotations

import mmap
import os
import socket

import msgspec
import torch
from torch import Tensor

from covey.engines.native.mpi_service import MOST, WHERE, SumRequest
from covey.engines.process.contacts import Contacts
from covey.engines.process.role.native_sums import Group
from covey.errors import RoleFailed
from covey.message import Address

TYPES = {
    torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.int64: "INT64_T", torch.int32: "INT32_T",
    torch.complex64: "C_FLOAT_COMPLEX", torch.complex128: "C_DOUBLE_COMPLEX",
}  # fmt: skip


class MpiCollectives:
    """Sums by the site's MPI, over groups of which no two roles live on one site."""

    def __init__(self, me: Address, contacts: Contacts) -> None:
        self.sites = contacts.sites
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.connect(f"\0{os.environ[WHERE]}")
        self.memory: mmap.mmap | None = None

    def joins(self, group: Group) -> bool:
        return len({self.sites[str(who)] for who in group}) == len(group)

    def sum(self, parts: list[Tensor], group: Group) -> None:
        sites = tuple(self.sites[str(who)] for who in group)
        for part in parts:
            self._sum(part, sites)

    def _sum(self, part: Tensor, sites: tuple[int, ...]) -> None:
        kind = part.dtype if part.dtype in TYPES else torch.float32  # MPI knows no half precision
        size = part.numel() * kind.itemsize
        handle = self._grow(size)
        assert self.memory is not None
        numbers = torch.frombuffer(self.memory, dtype=kind, count=part.numel())
        numbers.copy_(part)
        wanted = SumRequest(sites, TYPES[kind], part.numel(), handle is not None)
        socket.send_fds(self.line, [msgspec.msgpack.encode(wanted)], [handle] if handle is not None else [])
        if handle is not None:
            os.close(handle)
        if failed := self.line.recv(MOST):
            raise RoleFailed(f"MPI: {failed.decode()}")
        part.copy_(numbers)

    def _grow(self, size: int) -> int | None:
        """The handle of new memory, if what there is was too small."""
        if self.memory is not None and len(self.memory) >= size:
            return None
        handle = os.memfd_create("covey-sum", os.MFD_CLOEXEC)
        os.posix_fallocate(handle, 0, size)
        self.memory = mmap.mmap(handle, size)
        return handle


collectives = MpiCollectives  # found by this name in every module of this room
