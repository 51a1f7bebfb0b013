"""What reaches a terminal? Colours that covey chose, and printable text: no sequence that somebody put into a file."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

KEPT = "\n\t"
UNPRINTABLE = "?"


class SafeConsole(Console):
    """A console on which text cannot move the cursor, change the title or clear the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def printable(text: str) -> str:
    """The text with a question mark in place of each character that a terminal may obey."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in KEPT else UNPRINTABLE for sign in text)
