"""A role's own CUDA stream, so that its programs do not wait for the computation on the GPU.

Work is computed on the GPU's usual stream; the driver's thread, with all that programs send, receive and average, is on
one of its own. What one thread hands to the other goes with a mark of how far its stream had come, and the other's
stream waits for that: things happen in the order in which they do on a CPU.
"""

from __future__ import annotations

import torch

from covey.vector import Vector

Mark = torch.cuda.Event


class CudaStream:
    """The driver's own stream, and how threads hand things over."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def enter(self) -> None:
        """(Driver's thread) Be on the own stream from now on, behind all that was done before."""
        self.stream.wait_stream(torch.cuda.default_stream(self.device))
        torch.cuda.set_stream(self.stream)

    def leave(self) -> None:
        """(When that thread has ended) What is computed from now on waits for what the stream was still given."""
        torch.cuda.default_stream(self.device).wait_stream(self.stream)

    def mark(self) -> Mark:
        """How far the stream of this thread has come."""
        here: Mark = torch.cuda.current_stream(self.device).record_event()
        return here

    def follow(self, mark: Mark) -> None:
        """Let the stream of this thread go on only after the mark."""
        torch.cuda.current_stream(self.device).wait_event(mark)


def lane_of(vector: Vector) -> CudaStream | None:
    """For a role whose numbers lie on a GPU."""
    return next((CudaStream(part.device) for part in vector.parts if part.is_cuda), None)


def mark(stream: CudaStream | None) -> Mark | None:
    return stream.mark() if stream else None


def follow(stream: CudaStream | None, mark: Mark | None) -> None:
    if stream and mark:
        stream.follow(mark)
