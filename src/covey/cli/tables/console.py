"""What reaches a terminal? Colours that covey chose, and printable text: no sequence that somebody put into a file."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from covey.decoding import printable


class SafeConsole(Console):
    """A console on which text cannot move the cursor, change the title or clear the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
