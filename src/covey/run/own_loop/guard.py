"""Where may a loop use its member, and who may step its optimizers?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import current_thread
from typing import Any

from torch.optim import Optimizer

from covey.errors import PlanError


class LoopGuard:
    """Holds a loop to the block of `with covey.join(…)`, and to steps that are the member's."""

    def __init__(self) -> None:
        self._loop = current_thread()
        self._inside = self._stepping = False
        self._hooks: list[Any] = []

    def begin(self, optimizers: Iterable[Optimizer], hooks: Iterable[Any]) -> None:
        """The block begins; these hooks are removed when it ends."""
        self._inside = True
        self._hooks = [*hooks, *(optimizer.register_step_pre_hook(self._check_step) for optimizer in optimizers)]

    def end(self) -> None:
        self._inside = False
        for hook in self._hooks:
            hook.remove()

    def check(self, call: str) -> None:
        """Refuse what only means something inside of the block."""
        if not self._inside:
            raise PlanError(f"{call}: call it inside `with covey.join(…) as member:`, which starts and ends the run")

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside, the optimizers may step on the loop's thread."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def _check_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Refuse a step that passes by the strategy."""
        if current_thread() is self._loop and not self._stepping:
            raise PlanError(
                "the loop called optimizer.step(), which bypasses the other workers: call member.step(loss), or "
                "member.step(loss, scaler=scaler) instead of scaler.step(optimizer)"
            )
