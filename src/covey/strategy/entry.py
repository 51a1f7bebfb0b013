"""One declaration per strategy: what the catalog, the documentation and the tests know of a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Taken = Literal["", "pushes", "exchanges"]
"""What a strategy has codecs for: nothing, what goes to servers (and back with `pull`), or both ways anyway."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A named strategy: the settings that make it, its paper, the graph it runs over by default, may it have codecs."""

    settings: type[Any]
    paper: str
    graph: str | None = None
    codecs: Taken = ""  # for what goes to servers, and back with `pull`; both ways anyway
    plain: str = ""  # why it takes none
    placed: bool = False  # has servers, which `over` places
    whole: str = ""  # why its workers need the whole model, which then cannot be cut
    example: str = ""  # what trains the digits, where the bare name's defaults are for far longer runs or refuse them

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").strip()
