"""GPU tensors on their way to other roles through pinned memory, copied without blocking the role.

A copy is taken up by the stream of the thread that sends, so it holds what the tensor holds at that point of the
stream. A message leaves when its numbers have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

LEAST = 1 << 20  # bytes of memory that it pays to pin
PROMPT = 4 << 20  # bytes that come so fast that one waits for them
LOOK = 1e-3  # seconds after which one looks again whether more than that have come


def staged(tensor: Tensor) -> Tensor:
    """The tensor where the CPU can read it, by and by if it lies on a GPU."""
    if not tensor.is_cuda:
        return tensor
    return brought(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True))


def brought(tensor: Tensor, to: Tensor) -> Tensor:
    """Copy to memory of the CPU; from a GPU without waiting for that."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # its memory may be wanted elsewhere before
    return to.copy_(tensor.detach(), non_blocking=True)


def arrival(tensors: Sequence[Tensor], size: int) -> torch.cuda.Event | None:
    """When the copies of these will be complete; None where there is nothing to wait for."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return None
    event: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
    if size > PROMPT:
        return event
    event.synchronize()
    return None


def pin(address: int, size: int) -> None:
    """Pin this memory, so that this process's GPU reads it directly; if that fails, copies only take longer."""
    if size < LEAST or not torch.cuda.is_initialized():
        return
    if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)):
        with suppress(RuntimeError):  # the same failure, which CUDA reports again to the next caller: this one
            torch.zeros(1, device="cuda")
