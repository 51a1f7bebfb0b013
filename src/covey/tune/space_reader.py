"""How is a SPACE read?

SPACE    = setting {"," setting}
setting  = name "=" values
values   = range | choice {"|" choice}
range    = ("uniform" | "log" | "int" | "logint") "(" number "," number ")"
choice   = number | word | quoted string | name "(" [setting {"," setting}] ")"
"""

from __future__ import annotations

import math
import re

from covey.spec.call import BARE, Scalar, read
from covey.spec.text_reader import TextReader
from covey.tune.space import KINDS, Alternative, NumberRange, Space, Values

DEEP = 50  # parentheses inside each other
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_CALL = re.compile(r"[a-z][a-z0-9_]*(?=\s*\()")


def parse_space(text: str) -> Space:
    """Read a SPACE, such as `rate=log(1e-4, 1), strategy=bsp|easgd(period=4|16)`."""
    reader = _SpaceReader(text)
    settings, places = reader.settings(end="")
    return Space(settings, places, text)


class _SpaceReader(TextReader):
    """Of a SPACE."""

    deep = 0  # in how many parentheses

    def settings(self, end: str) -> tuple[dict[str, Values], dict[str, int]]:
        """Settings up to the end of the text, or to a closing parenthesis."""
        found: dict[str, Values] = {}
        places: dict[str, int] = {}
        while True:
            self.peek()
            at, name = self.at, self.match(_NAME)
            if name is None:
                self.fail("the space is empty: write name=values, such as rate=log(1e-4, 1)" if not self.text.strip()
                          else "expected a setting, written name=values")  # fmt: skip
            if name in found:
                self.at = at
                self.fail(f"'{name}' is given twice; keep one")
            if not self.skip("="):
                self.fail(f"expected '=': settings are written {name}=values")
            found[name], places[name] = self.values(), at
            if self.skip(end) if end else not self.peek():
                return found, places
            if not self.skip(","):
                self.fail(f"expected ',', '|' or '{end}'" if end else "expected ',', '|' or the end")

    def values(self) -> Values:
        self.peek()
        at, called = self.at, self.look(_CALL)
        if called is not None and called in KINDS:
            found = self.range(called)
            if self.peek() == "|":
                self.fail("a range of numbers stands alone: write it without '|', or list the values")
            return found
        choices = [self.choice()]
        known = {choices[0].value}
        while self.skip("|"):
            self.peek()
            at = self.at
            choices.append(self.choice())
            if choices[-1].value in known:
                self.at = at
                self.fail(f"{choices[-1].value} is there twice; keep one, with all values of its settings")
            known.add(choices[-1].value)
        return tuple(choices)

    def range(self, kind: str) -> NumberRange:
        """Two numbers in parentheses."""
        self.match(_NAME)
        assert self.skip("(")
        self.peek()
        first, low = self.at, self.number(kind)
        if not self.skip(","):
            self.fail(f"expected ',': a range is written {kind}(low, high)")
        self.peek()
        at = self.at
        high = self.number(kind)
        whole, logarithmic = KINDS[kind]
        if high <= low:
            self.at = at
            self.fail(f"the range is empty: {high:g} is not above {low:g}")
        if logarithmic and low <= 0:
            self.at = first
            self.fail(f"a {kind} range begins above 0, not at {low:g}")
        if not math.isfinite(high / low if logarithmic else high - low):
            self.at = first
            self.fail("the range is too wide: floating-point numbers do not reach from one end to the other")
        if whole and (low % 1 or high % 1):
            self.at = first if low % 1 else at
            self.fail(f"{kind} takes whole numbers")
        if not self.skip(")"):
            self.fail(f"expected ')': a range is written {kind}(low, high)")
        return NumberRange(low, high, whole, logarithmic)

    def number(self, kind: str) -> float:
        self.peek()
        at, word = self.at, self.match(BARE)
        value = read(word) if word else None
        if isinstance(value, str) or value is None:
            self.at = at
            self.fail(f"expected a number: a range is written {kind}(low, high)")
        return float(value)

    def choice(self) -> Alternative:
        """One value; a name may have settings."""
        mark = self.peek()
        at = self.at
        if mark in ("'", '"') and mark:
            return Alternative(self.quoted(), at=at)
        if (called := self.look(_CALL)) is not None:
            if called in KINDS:
                self.fail("a range of numbers stands alone: write it without '|', or list the values")
            self.match(_NAME)
            if self.deep == DEEP:
                self.fail(f"more than {DEEP} parentheses inside each other")
            assert self.skip("(")
            self.deep += 1
            inside = {} if self.skip(")") else self.settings(end=")")[0]
            self.deep -= 1
            return Alternative(called, inside, at)
        word = self.match(BARE)
        value: Scalar | None = read(word) if word else None
        if value is None:
            self.at = at
            self.fail("expected a value: a number, a word, a quoted string, or a range such as log(1e-4, 1)")
        return Alternative(value, at=at)
