"""How is a SPEC read?

SPEC     = call {"+" call} ["over" call] ["with" call]     strategy, codecs, topology, mesh
call     = name ["(" [setting {"," setting}] ")"]
setting  = key "=" value {"|" value}                       several values are a grid, for compare
value    = number | word | quoted string
"""

from __future__ import annotations

import re

from covey.spec.call import BARE, Call, Grid, Scalar, Spec, SpecError, Value, read
from covey.spec.text_reader import QUOTED, TextReader

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\+\+)?")
_KEY = re.compile(r"[a-z][a-z0-9_]*")
_JOINERS = ("over", "with")


def parse(text: str, *, grids: bool = False) -> Spec:
    """Read one SPEC."""
    reader = _Reader(text, grids)
    spec = reader.spec()
    reader.end("'+', 'over', 'with' or the end")
    return spec


def parse_list(text: str, *, grids: bool = False) -> list[Spec]:
    """Read SPECs that are separated by commas."""
    pieces = _split(text)
    for at, piece in pieces:
        if not piece.strip():
            raise SpecError(text, at, "expected a strategy")
    return [parse(piece.strip(), grids=grids) for _, piece in pieces]


def parse_call(text: str, *, grids: bool = False) -> Call:
    """Read one name with settings, such as an engine."""
    reader = _Reader(text, grids)
    call = reader.call("a name")
    reader.end("the end" if call.settings else "'(' or the end")
    return call


def _split(text: str) -> list[tuple[int, str]]:
    """The pieces between commas outside parentheses and quotes, and where each begins."""
    pieces, begin, depth, at = [], 0, 0, 0
    while at < len(text):
        quoted = QUOTED.match(text, at)
        if text[at] == "," and depth == 0:
            pieces.append((begin, text[begin:at]))
            begin = at + 1
        depth = max(0, depth + (text[at] == "(") - (text[at] == ")"))
        at = quoted.end() if quoted else at + 1
    return [*pieces, (begin, text[begin:])]


class _Reader(TextReader):
    """Of a SPEC."""

    def __init__(self, text: str, grids: bool) -> None:
        super().__init__(text)
        self.grids = grids

    def spec(self) -> Spec:
        strategy = self.call("a strategy")
        codecs = []
        while self.skip("+"):
            codecs.append(self.call("a codec"))
        topology = self.call("a topology") if self.joined("over") else None
        mesh = self.call("a mesh") if self.joined("with") else None
        return Spec(strategy, tuple(codecs), topology, mesh, self.text)

    def call(self, what: str) -> Call:
        self.peek()
        at = self.at
        name = self.match(_NAME)
        if name is None or name in _JOINERS:
            self.at = at
            self.fail(f"expected {what}: a name of lower-case letters, digits and _")
        settings: dict[str, Value] = {}
        places: dict[str, int] = {}
        if self.skip("(") and not self.skip(")"):
            self.setting(settings, places)
            while not self.skip(")"):
                if not self.skip(","):
                    self.fail("expected ',' or ')'")
                self.setting(settings, places)
        return Call(name, settings, at, places)

    def setting(self, settings: dict[str, Value], places: dict[str, int]) -> None:
        self.peek()
        at = self.at
        key = self.match(_KEY)
        if key is None:
            self.fail("expected a setting, written key=value")
        if key in settings:
            self.at = at
            self.fail(f"'{key}' is set twice; keep one")
        if not self.skip("="):
            self.fail(f"expected '=': settings are written {key}=value")
        values = [self.value()]
        while self.grids and self.skip("|"):
            values.append(self.value())
        if self.peek() == "|":
            self.fail("several values are a grid, which is for compare; give one value here")
        settings[key] = values[0] if len(values) == 1 else Grid(tuple(values))
        places[key] = at

    def value(self) -> Scalar:
        if self.peek() in ("'", '"'):
            return self.quoted()
        at = self.at
        word = self.match(BARE)
        if word is None:
            self.fail("expected a value: a number, a word or a quoted string")
        value = read(word)
        if value is None:
            self.at = at
            self.fail("expected a smaller number")
        return value

    def joined(self, word: str) -> bool:
        self.peek()
        match = re.compile(rf"{word}(?![a-z0-9_+])").match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match is not None

    def end(self, expected: str) -> None:
        if self.peek():
            self.fail(f"expected {expected}")
