"""Import torch._dynamo only where something is compiled: every optimizer asks for it, and it takes 1.5 s to import.

Of an optimizer's code that is not being compiled it wants two things: `graph_break`, which then does nothing, and
`disable`, which then changes nothing. A stand-in in `sys.modules` gives these; whatever else is asked of it, such as by
`torch.compile`, imports the real one and puts it in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class LazyDynamo(ModuleType):
    """The stand-in."""

    def graph_break(self, msg: str = "") -> None:
        """Nothing is compiled, so there is no graph to break."""

    def disable(self, fn: Any = None, recursive: bool = True, **settings: Any) -> Any:
        """The function as it is, and not to be compiled as soon as something is."""
        if fn is None:
            return partial(self.disable, recursive=recursive, **settings)
        made: Callable[..., Any] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            if made is None and sys.modules.get(NAME) is not self:
                made = self._real().disable(fn, recursive, **settings)
            return (made or fn)(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # `inspect` asks all modules for such; an import for the path
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _real(self) -> Any:
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], sys.modules["torch"]._dynamo
        return import_module(NAME)


def stand_in() -> None:
    """From here on optimizers do not import torch._dynamo, unless it is there already."""
    import torch

    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = LazyDynamo(NAME)
