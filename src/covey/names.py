"""Suggestions for misspelt names: the known names that are nearest."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 8  # names that are all shown
NEAREST = 3


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant, or all there is where that is little."""
    names = list(known)
    close = get_close_matches(name, names, n=NEAREST)
    if len(names) <= FEW:
        return f"{f'; did you mean {close[0]!r}?' if close else '.'} There are: {', '.join(names)}"
    if close:
        return f"; did you mean {_either(close)}?"
    return f"; the nearest are {_either(get_close_matches(name, names, n=NEAREST, cutoff=0.0))}."


def _either(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return " or ".join([*([", ".join(quoted[:-1])] if quoted[1:] else []), quoted[-1]])
