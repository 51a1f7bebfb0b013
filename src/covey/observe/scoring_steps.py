"""After which steps is the model scored, where all workers take their steps together?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringSteps:
    """The scores in a pass over the data, evenly spread; the end of the run is not among them.

    A score after step 3 is of the model that the first three steps made, whatever the speeds of workers and links.
    """

    each_pass: int  # the steps of a pass
    samples: int  # of a pass
    scores: int  # of a pass
    total: int  # the steps of the run
    skipped: int = 0  # steps of the same run that were done with other workers: they are counted from there

    def after(self, step: int) -> int | None:
        """The first score after that of this step; None where only the end of the run is left."""
        passes, inside = divmod(step + self.skipped, self.each_pass)
        number = inside * self.scores // self.each_pass + 1
        found = passes * self.each_pass - (-number * self.each_pass // self.scores) - self.skipped
        return found if found < self.total else None

    def at(self, samples: int) -> int:
        """The step after which the workers have seen this many samples."""
        return max(0, samples * self.each_pass // self.samples - self.skipped)
