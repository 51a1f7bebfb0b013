"""Which codec did `+ auto` choose? What results note of that, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CHOSEN, TOOK, REST = "codec ", "seconds to exchange ", "seconds of a step besides its exchange"
PLAIN = "dense"


class Chosen(NamedTuple):
    """What this many roles chose, and how long an exchange was with it and without."""

    codec: str
    what: str  # is exchanged with it, where there are several things
    roles: int
    seconds: float
    plain: float


def chosen(notes: Mapping[str, float | None]) -> list[Chosen]:
    """The choices of a run; none where nobody had one."""
    found = []
    for note, roles in notes.items():
        if note.startswith(CHOSEN):
            codec, _, what = note.removeprefix(CHOSEN).partition(" for ")
            took, plain = (notes.get(f"{TOOK}{name}{_told(what)}") or 0.0 for name in (codec, PLAIN))
            found.append(Chosen(codec, what, int(roles or 0), took, plain))
    return found


def told(codec: str, times: Mapping[str, float], rest: float, what: str) -> dict[str, float]:
    """What to note of a choice, and of the times on which it stands; nothing of these where they are told already."""
    why = {REST + _told(what): rest} if times else {}
    return {f"{CHOSEN}{codec}{_told(what)}": 1, **why, **{f"{TOOK}{name}{_told(what)}": s for name, s in times.items()}}


def _told(what: str) -> str:
    return f" for {what}" if what else ""
