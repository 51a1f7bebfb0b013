"""The launcher's check that all workers' loops have the same optimizer settings at the same steps."""

from __future__ import annotations

from covey.engines.process import control
from covey.errors import WireError
from covey.message import Address
from covey.settings import Agreement, Settings, after
from covey.settings.values import MOST_GROUPS, MOST_OPTIMIZERS


class SettingsCheck:
    """What each worker has reported so far."""

    def __init__(self) -> None:
        self.agreement = Agreement()
        self.now: dict[Address, Settings] = {}
        self.reached: dict[Address, int] = {}  # the first step that a worker has not reported

    def hear(self, who: Address, word: control.Settled) -> None:
        """Compare a worker's settings with what others had at these steps; raises where they differ."""
        for change in word.changes:
            if who in self.now:
                self._extend(who, change.step)
            groups = len(self.now[who].groups) if who in self.now else 1 + max([row[0] for row in change.rows] + [0])
            if groups > MOST_GROUPS:
                raise WireError(f"{who} reported settings of more than {MOST_GROUPS} parameter groups")
            self.now[who] = after(change, self.now.get(who), groups, MOST_OPTIMIZERS)
            self.reached.setdefault(who, change.step)
        if who in self.now:
            self._extend(who, word.reached)

    def lose(self, who: Address) -> None:
        """A worker is lost: its next incarnation tells anew what it has."""
        self.now.pop(who, None)
        self.reached.pop(who, None)

    def _extend(self, who: Address, step: int) -> None:
        if step > self.reached[who]:
            self.agreement.add(who, self.reached[who], step, self.now[who])
            self.reached[who] = step
