"""How the user's thread and the role's compute thread take turns: one computes while the other waits."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from torch import Tensor

from covey.engines.process.role.cuda_stream import CudaStream, Mark, follow, mark
from covey.engines.process.role.role_process import RoleLines
from covey.engines.process.role.running_program import LoopEnded
from covey.model.batches import Batch


class LoopTurns:
    """The program asks for a gradient on the compute thread; the user's loop gives it on its own."""

    def __init__(self, play: Callable[[RoleLines], None], stream: CudaStream | None = None) -> None:
        self._play, self._stream = play, stream
        # True: a gradient is wanted; False: none will be any more
        self._ask: SimpleQueue[tuple[bool, Mark | None]] = SimpleQueue()
        self._give: SimpleQueue[tuple[Batch | BaseException, Mark | None]] = SimpleQueue()
        self._thread: Thread | None = None
        self.mine = self.over = False

    def start(self, lines: Callable[[], RoleLines], ended: Callable[[], None]) -> None:
        """Run the role beside the user's loop; the role reports a failure, and ends the process."""

        def run() -> None:
            try:
                with lines() as line:
                    self._play(line)
            finally:
                self._ask.put((False, None))
                ended()

        self._thread = Thread(target=run, name="role", daemon=True)
        self._thread.start()

    def compute(self, step: int) -> Batch:
        """(Compute thread) Let the user's loop do one forward and backward."""
        self._ask.put((True, mark(self._stream)))
        given, there = self._give.get()
        follow(self._stream, there)
        if isinstance(given, BaseException):
            raise given
        return given

    def wait(self) -> None:
        """(User's thread) Wait until the weights are ready for a gradient, or the run is over."""
        self.mine, there = self._ask.get()
        self.over = not self.mine
        follow(self._stream, there)

    def give(self, loss: float | Tensor, samples: int, seen: int) -> None:
        """(User's thread) The gradient is there, of `seen` samples; it counts as if it were of `samples`."""
        self.mine = False
        self._give.put((Batch(loss, samples, seen), mark(self._stream)))

    def finish(self, error: BaseException | None, votes: int) -> None:
        """(User's thread) The loop is left: say goodbye, or pass on what went wrong."""
        if self.mine:
            self.mine = False
            self._give.put((error if error is not None else LoopEnded(votes), None))
        assert self._thread is not None
        self._thread.join()
