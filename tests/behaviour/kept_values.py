"""Numbers of a behaviour that are kept in a file which a person can read, and compared one by one.

A file of tests/golden/values has cases. A case is a title and lines under it; words of a line must stay as they are,
and so must whole numbers that are not a vector's; other numbers may differ by a part of themselves: 1e-6, unless the
title says `within`. Where a vector lies along a direction may differ by that part of its norm, which stands before it:
another order of additions moves a vector by a part of its norm, however little of it lies along a direction.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "values"
EXACT = 1e-6  # of a number in double precision: processors round the last bits of sums in their own ways
NOTHING = 1e-9  # what is smaller counts as zero
SHARES = 1.1e-4  # of times that are kept to four digits
TIMES = ("compute", "exchange", "waiting")
VECTORS = ("arrives", "waits", "weights", "buffers", "total")  # a norm, then where the vector lies along directions

_WHOLE = re.compile(r"-?[0-9]+")
_WITHIN = re.compile(r"within ([0-9.e-]+)")
_SPLIT = re.compile(r"[ =,/]+")


class Case:
    """A title, and the lines under it."""

    def __init__(self, title: str, lines: Iterable[str]) -> None:
        self.title, self.lines = title, list(lines)

    @property
    def within(self) -> float:
        said = _WITHIN.search(self.title)
        return float(said[1]) if said else EXACT

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"    {line}" for line in self.lines)])

    def differences(self, kept: Case) -> list[str]:
        """What is not as it was kept, by name."""
        now, before = _named(self.lines), _named(kept.lines)
        found = [f"{name}: is new: {now[name]}" for name in now if name not in before]
        found += [f"{name}: is missing: {before[name]}" for name in before if name not in now]
        for name in now:
            if name in before:
                found += _line_differences(name, now[name], before[name], self.within)
        return found


def _named(lines: Sequence[str]) -> dict[str, str]:
    parts = [line.partition(": ") for line in lines]
    return {name: rest for name, _, rest in parts}


def _line_differences(line: str, now: str, before: str, within: float) -> list[str]:
    tokens, kept = _SPLIT.split(now), _SPLIT.split(before)
    if len(tokens) != len(kept):
        return [f"{line}: was {before}", f"{line}: is  {now}"]
    found, name, number, norm = [], "", 0, 0.0
    for token, old in zip(tokens, kept, strict=True):
        value, expected = _number(token), _number(old)
        name, number = (token, 0) if value is None else (name, number + 1)
        norm = norm if number > 1 else expected or 0.0
        least = within * norm if name in VECTORS and number > 1 else SHARES if name in TIMES else NOTHING
        counted = name not in VECTORS and bool(_WHOLE.fullmatch(token) and _WHOLE.fullmatch(old))
        if not _same(token, old, None if counted else value, expected, within, least):
            found.append(
                f"{line}: {name}[{number - 1}] was {old}, is {token}" if number else f"{line}: {old} is {token}"
            )
    return found


def _number(token: str) -> float | None:
    try:
        return float(token)
    except ValueError:
        return None


def _same(token: str, old: str, value: float | None, expected: float | None, within: float, least: float) -> bool:
    if token == old:
        return True
    if value is None or expected is None:
        return False
    return math.isclose(value, expected, rel_tol=within, abs_tol=max(least, NOTHING))


def number(value: float) -> str:
    """As a file holds it."""
    return str(value) if isinstance(value, int) else f"{value:.8g}" if value != int_of(value) else f"{value:.1f}"


def int_of(value: float) -> float:
    return math.nan if not math.isfinite(value) or abs(value) > 1e6 else float(round(value))


def read(file: Path) -> dict[str, Case]:
    """The cases of a file, by their titles."""
    found: dict[str, Case] = {}
    title = ""
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.startswith("    "):
            found[title].lines.append(line[4:])
        elif line:
            title = line
            found[title] = Case(title, [])
    return found


def compare(name: str, titles: Sequence[str], now: Callable[[str], Iterable[str]], tried: Sequence[str]) -> None:
    """Hold the cases that are tried to tests/golden/values/NAME.txt, which has one of each title and no other.

    With COVEY_GOLDEN=write in the environment, make it so.
    """
    file = GOLDEN / f"{name}.txt"
    kept = read(file)
    cases = {title: Case(title, now(title)) for title in tried}
    if os.environ.get("COVEY_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = [cases.get(title) or kept.get(title) for title in titles]
        file.write_text("\n\n".join(str(case) for case in whole if case) + "\n", encoding="utf-8")
        kept = read(file)
    found = [f"{title}\n    has no values: run it with COVEY_GOLDEN=write" for title in tried if title not in kept]
    for title, case in cases.items():
        if title in kept and (differing := case.differences(kept[title])):
            found.append("\n    ".join([title, *differing]))
    found += [
        f"{title}\n    is no case any more: run it with COVEY_GOLDEN=write" for title in kept.keys() - set(titles)
    ]
    assert not found, f"tests/golden/values/{name}.txt, and what is now:\n" + "\n".join(found)
