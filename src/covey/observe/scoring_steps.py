"""After which steps is the model scored, where all workers take their steps together?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringSteps:
    """The scores in a pass over the data, evenly spread, or one after a number of steps; the end of the run is none.

    A score after step 3 is of the model that the first three steps made, whatever the speeds of workers and links.
    """

    each_pass: int  # the steps of a pass
    samples: int  # of a pass
    scores: int  # of a pass
    total: int  # the steps of the run
    every: int = 0  # steps between two scores, where a number of them is wanted
    skipped: int = 0  # steps of the same run that were done with other workers: they are counted from there

    def after(self, step: int) -> int | None:
        """The first score after that of this step; None where only the end of the run is left."""
        found = self._after(step + self.skipped) - self.skipped
        return found if found < self.total else None

    def _after(self, step: int) -> int:
        if self.every:
            return (step // self.every + 1) * self.every
        passes, inside = divmod(step, self.each_pass)
        number = inside * self.scores // self.each_pass + 1
        return passes * self.each_pass - (-number * self.each_pass // self.scores)

    def at(self, samples: int) -> int:
        """The step after which the workers have seen this many samples."""
        return max(0, samples * self.each_pass // self.samples - self.skipped)
