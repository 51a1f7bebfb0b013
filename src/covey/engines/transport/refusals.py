"""Counts and reasons of refused messages, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

MOST = 32  # reasons that are counted separately
LONGEST = 200  # characters of a reason, part of which a stranger may have chosen
OTHERS = "for yet other reasons"


class Refusals:
    """Reasons with their numbers."""

    def __init__(self) -> None:
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._news: Counter[str] = Counter()

    def note(self, reason: str, times: int = 1) -> str:
        """Count it, and return the reason under which it is counted; further reasons share one."""
        line = shown(reason)
        if line not in self.counts and len(self.counts) >= MOST:
            line = OTHERS
        self.total += times
        self.counts[line] += times
        self._news[line] += times
        return line

    def add(self, others: Mapping[str, int], by: str) -> list[str]:
        """Take over what `by` has refused; the lines that a person should see: the 1st, 10th, 100th time."""
        lines = []
        for reason, times in others.items():
            told = self.note(f"{by}: {reason}", times)
            after = self.counts[told]
            if len(str(after)) > len(str(after - times)) or after == times:
                lines.append(line(told, after))
        return lines

    def news(self) -> dict[str, int]:
        """What came since this was last asked."""
        if not self._news:
            return {}
        news, self._news = dict(self._news), Counter()
        return news

    def lines(self) -> list[str]:
        """All of them, for the result."""
        return [line(reason, times) for reason, times in self.counts.items()]


def line(reason: str, times: int) -> str:
    return ("refused " if reason == OTHERS else "refused by ") + reason + (f" ({times} times)" if times > 1 else "")


def shown(reason: str) -> str:
    """The reason as a terminal may show it."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:LONGEST])
