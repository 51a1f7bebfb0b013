"""Which model of a run had the best score? It is kept beside the checkpoints, and returned with the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from covey.checkpoint.files import opened
from covey.decoding import WireFormat
from covey.errors import CheckpointError, PlanError, WireError
from covey.model import scored
from covey.model.scored import AVERAGED, ScoredModel
from covey.names import nearest, option
from covey.observe.referee import BestScore, Preference, Referee
from covey.observe.result import Result
from covey.run.option_parts import BudgetOptions
from covey.run.options import Options
from covey.target import KNOWN, direction
from covey.task import Task

FOLDER = "best"
SCORE = "covey.best"  # what the file says of itself
best_scores: WireFormat[BestScore] = WireFormat("best score", BestScore, "json")


def preference(task: Task, given: BudgetOptions) -> Preference | None:
    """The metric by which models are compared, if that was asked for; refused where nobody knows what is better."""
    if given.best is None:
        return None
    plain = given.best.removeprefix(AVERAGED)
    if given.best != plain and task.ema is None:
        raise PlanError(f"{option('best', given.best)}: the task has no average: give Task(ema=0.999), or use {plain}")
    if task.evaluate is None:
        raise PlanError(f"{option('best', given.best)}: the task has no evaluate=…, so its models have no scores")
    way = direction(given.best, task.better)
    if way is None:
        close = nearest(plain, [*task.better, *KNOWN])
        other = f", or did you mean {close[0]!r}?" if close else ""
        raise PlanError(
            f"{option('best', given.best)}: is more of it better, or less? Declare it in the task: "
            f"Task(…, better={{{given.best!r}: 'lower'}}){other}"
        )
    return Preference(given.best, way, given.patience)


class BestModel:
    """The best model of a run so far, over all attempts at it; in a file where the run has checkpoints.

    Without a metric there is none.
    """

    def __init__(self, metric: str, file: Path | None, say: Callable[[str], None]) -> None:
        self.metric, self.file, self._say = metric, file, say
        self.score: BestScore | None = None
        self.weights: dict[str, Any] = {}

    @classmethod
    def of(cls, given: Options) -> BestModel:
        """What a run with these options keeps; one that goes on has the best model of the run before."""
        metric, kept = given.budget.best or "", given.checkpoints
        made = cls(metric, _file(kept.checkpoint) if kept.checkpoint is not None else None, given.output.say)
        if metric and kept.resume is not None:
            made._take_over(_file(kept.resume))
        return made

    def watch(
        self, referee: Referee, model: Callable[[], dict[str, Any]], check: Callable[[], None] = lambda: None
    ) -> None:
        """Keep each better model that the referee sees, which can be had at that moment; `check` says if it may be."""

        def keep(best: BestScore) -> None:
            weights = model()
            check()
            self._keep(best, weights)

        referee.best, referee.bettered = self.score, keep

    def written(self, write: Callable[[Path], None], file: Path) -> dict[str, Any]:
        """The model that a scorer writes to this file."""
        write(file)
        return scored.read(scored.averages_beside(file) if self._averaged else file)

    def chosen(self, model: ScoredModel) -> dict[str, Any]:
        return model.averaged.state() if self._averaged and model.averaged else model.state()

    def tell(self, result: Result) -> None:
        if self.score:
            result.keep_best(self.score, self.weights)

    @property
    def _averaged(self) -> bool:
        return self.metric.startswith(AVERAGED)

    def _keep(self, best: BestScore, weights: dict[str, Any]) -> None:
        self.score, self.weights = best, weights
        if self.file is None:
            return
        try:
            if self.file.parent.is_symlink():
                raise OSError(f"{self.file.parent} is a link")
            scored.save(weights, self.file, {SCORE: json.dumps(msgspec.to_builtins(best))})
            self.file.chmod(0o600)
        except OSError as error:  # a full disk does not end the run
            self._say(f"{self.file} could not be written ({error.strerror or error}); the run goes on")

    def _take_over(self, file: Path) -> None:
        """Go on with what an earlier run has kept, if that was by the same metric."""
        try:
            if file.parent.is_symlink():
                raise CheckpointError(f"{file.parent} is a link")
            with opened(file), safe_open(file, "pt") as found:
                best = best_scores.read((found.metadata() or {}).get(SCORE, "").encode(), file)
            weights = scored.read(file)
        except FileNotFoundError:  # the earlier run kept none
            return
        except (OSError, SafetensorError, WireError, CheckpointError) as error:
            return self._say(f"the best model so far is not known: {file} cannot be read ({error})")
        if best.metric == self.metric:
            self._keep(best, weights)


def _file(folder: Any) -> Path:
    return Path(folder) / FOLDER / "model.safetensors"
