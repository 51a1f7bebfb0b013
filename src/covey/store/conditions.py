"""Which versions does a person mean?

CONDITION  = all {"or" all}
all        = test {"and" test}
test       = field op value | "(" CONDITION ")"
op         = "=" | "!=" | ">=" | "<=" | ">" | "<"
value      = number | word | quoted string
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from covey.names import meant
from covey.spec.call import SpecError
from covey.spec.text_reader import TextReader

OPS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "=": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_FIELD = re.compile(r"[A-Za-z_][\w./-]*")
_OP = re.compile(r">=|<=|!=|=|>|<")
_WORD = re.compile(r"""[^\s()"'<>=!]+""")
DEEP = 50  # parentheses inside each other
LONGEST = 10_000  # characters
BEGINNINGS = ("data", "source", "commit")  # hashes, of which the first characters are enough

Fact = str | float | bool


class WrittenValue(NamedTuple):
    """A value as it was written, and as a number where it is one."""

    text: str
    number: float | None


Test = Callable[[Mapping[str, Fact]], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was read; it says of a version's facts whether they fit."""

    fits: Test
    text: str
    fields: Mapping[str, int]  # and where each is first named

    def check(self, known: Collection[str]) -> None:
        """Refuse a field that no version has."""
        for name, at in self.fields.items():
            if name not in known:
                raise SpecError(self.text, at, f"no version has {name!r}{meant(name, sorted(known))}")


def parse_condition(text: str) -> Condition:
    """Read a condition such as `accuracy>0.9 and strategy=easgd`."""
    if len(text) > LONGEST:
        raise SpecError(text, LONGEST, f"the condition has {len(text):,} characters; at most {LONGEST:,} are read")
    reader = _ConditionReader(text)
    test = reader.either(0)
    reader.end()
    return Condition(test, text, reader.fields)


class _ConditionReader(TextReader):
    """Of a condition; spaces may stand everywhere."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.fields: dict[str, int] = {}

    def either(self, deep: int) -> Test:
        tests = [self.both(deep)]
        while self.word("or"):
            tests.append(self.both(deep))
        return tests[0] if len(tests) == 1 else lambda facts: any(test(facts) for test in tests)

    def both(self, deep: int) -> Test:
        tests = [self.test(deep)]
        while self.word("and"):
            tests.append(self.test(deep))
        return tests[0] if len(tests) == 1 else lambda facts: all(test(facts) for test in tests)

    def test(self, deep: int) -> Test:
        if self.match(re.compile(r"\(")):
            if deep == DEEP:
                self.fail(f"more than {DEEP} parentheses inside each other", self.at - 1)
            inner = self.either(deep + 1)
            if not self.match(re.compile(r"\)")):
                self.fail("expected 'and', 'or' or ')'")
            return inner
        self.peek()
        at = self.at
        field = self.match(_FIELD)
        if field is None or field in ("and", "or"):
            self.fail("expected the name of a metric or of a setting, such as accuracy or strategy", at)
        self.fields.setdefault(field, at)
        op = self.match(_OP)
        if op is None:
            self.fail("expected =, !=, >, >=, < or <=")
        value = self.value()
        return lambda facts: field in facts and compared(field, facts[field], op, value)

    def value(self) -> WrittenValue:
        if self.peek() in ("'", '"'):
            return WrittenValue(self.quoted(), None)
        at, word = self.at, self.match(_WORD)
        if word is None or word in ("and", "or"):
            self.fail("expected a value: a number, a word or a quoted string", at)
        try:
            return WrittenValue(word, float(word))
        except ValueError:
            return WrittenValue(word, None)

    def word(self, word: str) -> bool:
        return self.match(re.compile(rf"{word}(?![\w./-])")) is not None

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.peek()
        return super().match(pattern)

    def end(self) -> None:
        if self.peek():
            self.fail("expected 'and', 'or' or the end")

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        self.at = self.at if at is None else at
        super().fail(why)


def compared(field: str, fact: Fact, op: str, value: WrittenValue) -> bool:
    """Whether a fact meets a test; a number never equals a word."""
    if isinstance(fact, bool):
        fact = str(fact).lower()
    if isinstance(fact, str):
        return _equal(field, fact, value.text) == (op == "=") if op in ("=", "!=") else OPS[op](fact, value.text)
    return OPS[op](fact, value.number) if value.number is not None else op == "!="


def _equal(field: str, fact: str, wanted: str) -> bool:
    if field == "strategy":  # by its name, or with all settings
        return wanted in (fact, re.split(r"[( +]", fact, maxsplit=1)[0])
    return fact.startswith(wanted) if field in BEGINNINGS and len(wanted) >= 6 else fact == wanted
