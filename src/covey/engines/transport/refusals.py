"""What was refused: how often, and why; in little memory, whoever floods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

MOST = 32  # reasons that are told apart
LONGEST = 200  # characters of a reason, part of which a stranger may have chosen
OTHERS = "for yet other reasons"


class Refusals:
    """Reasons with their numbers."""

    def __init__(self) -> None:
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._news: Counter[str] = Counter()

    def note(self, reason: str, times: int = 1) -> None:
        line = shown(reason)
        if line not in self.counts and len(self.counts) >= MOST:
            line = OTHERS
        self.total += times
        self.counts[line] += times
        self._news[line] += times

    def add(self, others: Mapping[str, int], by: str) -> list[str]:
        """Take over what `by` has refused; the lines that a person should see: the 1st, 10th, 100th time."""
        lines = []
        for reason, times in others.items():
            told = shown(f"{by}: {reason}")
            before = self.counts.get(told, 0)
            self.note(told, times)
            if len(str(before + times)) > len(str(before)) or not before:
                lines.append(line(told, before + times))
        return lines

    def news(self) -> dict[str, int]:
        """What came since this was last asked."""
        news, self._news = dict(self._news), Counter()
        return news

    def lines(self) -> list[str]:
        """Everything, for whoever reads the result."""
        return [line(reason, times) for reason, times in self.counts.items()]


def line(reason: str, times: int) -> str:
    return f"refused by {reason}" + (f" ({times} times)" if times > 1 else "")


def shown(reason: str) -> str:
    """The reason as a terminal may show it."""
    return "".join(letter if letter.isprintable() else "?" for letter in reason[:LONGEST])
