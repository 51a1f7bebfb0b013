"""The calls of CUDA's driver by which processes share memory of a GPU; torch itself offers them only with files."""

from __future__ import annotations

import ctypes
from functools import cache

HANDLE = 64  # bytes that name an allocation to other processes
PEER_ACCESS = 1  # the only flag that opening knows


class CudaRefused(Exception):
    """CUDA's driver is not there, or does not do what it was asked for."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE),)


class CudaDriver:
    """`libcuda`, for the thread's current GPU."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaRefused(str(error)) from None
        self._library.cuIpcOpenMemHandle_v2.argtypes = (ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint)
        self._library.cuIpcCloseMemHandle.argtypes = (ctypes.c_uint64,)

    def allocation(self, address: int) -> tuple[int, int]:
        """Where the allocation begins that this address lies in, and its size."""
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address))
        return start.value, size.value

    def handle(self, address: int) -> bytes:
        """By which another process can open the allocation that this address lies in."""
        found = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(found), ctypes.c_uint64(address))
        return bytes(found.reserved)

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; its address here."""
        address = ctypes.c_uint64()
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        """Map it no longer."""
        self._call("cuIpcCloseMemHandle", address)

    def _call(self, name: str, *arguments: object) -> None:
        if failed := getattr(self._library, name)(*arguments):
            raise CudaRefused(f"{name}: error {failed}")


@cache
def driver() -> CudaDriver:
    return CudaDriver()
