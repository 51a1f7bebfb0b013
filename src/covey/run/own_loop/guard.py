"""Where may a loop use its member, and who may step its optimizers?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import current_thread
from typing import Any

from torch import nn
from torch.optim import Optimizer

from covey.errors import PlanError


class NewOptimizers:
    """Refuses optimizers that the loop makes over parameters that it trains already: no step would use them."""

    def __init__(self, known: list[Optimizer]) -> None:
        self._known, self._loop = known, current_thread()
        self._trained = {id(p) for optimizer in known for group in optimizer.param_groups for p in group["params"]}
        self._before = before = Optimizer.add_param_group

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            before(optimizer, param_group)
            if current_thread() is self._loop:
                self._check(optimizer, optimizer.param_groups[-1]["params"])

        self._ours = add_param_group
        Optimizer.add_param_group = add_param_group  # type: ignore[assignment, method-assign]

    def remove(self) -> None:
        """Let any be made again."""
        self._trained = set()
        if Optimizer.add_param_group is self._ours:
            Optimizer.add_param_group = self._before  # type: ignore[method-assign]

    def _check(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        if any(optimizer is each for each in self._known):
            return  # a new group of one of them is refused when it steps
        if any(id(parameter) in self._trained for parameter in parameters):
            raise PlanError(
                f"the loop made a new {type(optimizer).__name__} after covey.join over parameters of the run, and no "
                "step would use it: change the settings of the first one, such as optimizer.param_groups[0]['lr'], "
                "which apply to the next step; for another optimizer, begin another run with the weights of this one"
            )


class LoopGuard:
    """Holds a loop to the block of `with covey.join(…)`, and to steps that are the member's."""

    def __init__(self) -> None:
        self._loop = current_thread()
        self._inside = self._stepping = False
        self._hooks: list[Any] = []

    def begin(self, optimizers: Iterable[Optimizer], hooks: Iterable[Any]) -> None:
        """The block begins; these hooks are removed when it ends."""
        self._inside = True
        known = [*optimizers]
        steps = [optimizer.register_step_pre_hook(self._check_step) for optimizer in known]
        self._hooks = [*hooks, *steps, NewOptimizers(known)]

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
