"""How is a text read from left to right? What all grammars of the command line have in common."""

from __future__ import annotations

import re
from typing import NoReturn

from covey.spec.call import SpecError

QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"' + r"|'((?:[^'\\]|\\.)*)'", re.DOTALL)


class TextReader:
    """A position in a text, and what may come next."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def skip(self, mark: str) -> bool:
        """Whether this comes next, and go past it."""
        found = self.peek() == mark
        self.at += found
        return found

    def look(self, pattern: re.Pattern[str]) -> str | None:
        """What comes next, if it is of this kind."""
        match = pattern.match(self.text, self.at)
        return match[0] if match else None

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """The same, and go past it."""
        found = self.look(pattern)
        self.at += len(found or "")
        return found

    def quoted(self) -> str:
        """A string in quotes, without them."""
        match = QUOTED.match(self.text, self.at)
        if match is None:
            self.fail(f"this {self.text[self.at]} is never closed")
        self.at = match.end()
        return re.sub(r"\\(.)", r"\1", match[1] if match[1] is not None else match[2], flags=re.DOTALL)

    def fail(self, why: str) -> NoReturn:
        """Refuse the text, pointing at where it is wrong."""
        raise SpecError(self.text, self.at, why)
