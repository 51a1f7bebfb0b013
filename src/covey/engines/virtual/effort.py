"""Counts the arithmetic of a program between two effects, so that repeated runs charge the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from covey.exchange.codec_observer import Act, watching
from covey.simulate import Cluster, coding_of


class Effort(TorchDispatchMode):
    """While it is entered: the calls of torch and the bytes they read; apart, optimizer steps and priced codecs."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handling, self._update, self._prices = cluster.handling, cluster.update, cluster.coding
        self._apart = False
        self.seconds = 0.0  # of CPU time that the cluster model charges for it

    def take(self) -> float:
        """What it costs; from here on it is counted anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._apart and not func.is_view:
            self.seconds += self._handling.sums.of(sum(arg.nbytes for arg in args if isinstance(arg, torch.Tensor)))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Know optimizer steps and codecs from other arithmetic."""
        before = register_optimizer_step_pre_hook(self._begin)
        after = register_optimizer_step_post_hook(self._end)
        try:
            with watching(self._coding):
                yield
        finally:
            before.remove()
            after.remove()

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._apart = True

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._apart = False
        held = sum(parameter.nbytes for group in optimizer.param_groups for parameter in group["params"])
        self.seconds += self._handling.step + self._update * held

    @contextmanager
    def _coding(self, codec: tuple[str, ...], act: Act, size: int) -> Iterator[None]:
        price, before = coding_of(self._prices, codec), self._apart
        self._apart = before or price is not None
        try:
            yield
        finally:
            self._apart = before
        if price is not None and not before:
            self.seconds += (price.encode if act == "encode" else price.decode).of(size)
