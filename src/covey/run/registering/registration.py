"""A model is registered when its run is over; what it was trained on is looked at before."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from covey.errors import CoveyError, SaveError
from covey.names import option
from covey.observe.facts import RunFacts, RunOrigin
from covey.observe.result import OURS, Result
from covey.run.options import Options
from covey.run.record import folder_of_runs, origin_of_task
from covey.store.lineage import parent_of
from covey.store.model_store import ModelStore, folder_of_store
from covey.store.versions import ModelOrigin


def origin_of(given: Options, strategy: str, workers: int, engine: str, record: str) -> RunOrigin:
    """What lineages say of a run that is about to begin."""
    return RunOrigin(
        key=secrets.token_hex(8), record=record, began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        command=given.output.command, strategy=strategy, engine=engine, workers=workers, seed=given.training.seed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Registration:
    """What is known, before a run, of the version that is to come of it."""

    name: str
    store: ModelStore
    task: str
    source: str
    commit: str
    data: tuple[str, str]
    cluster: str

    @classmethod
    def of(
        cls, given: Options, file: str, data: Callable[[], tuple[str, str]], *, cluster: str = "", builds: bool = True
    ) -> Registration | None:
        """None where the model is not to be registered; `builds` if the file has a task that builds the model."""
        name = given.models.register
        if name is None:
            return None
        folder = folder_of_store(given.models.store, folder_of_runs(given.output.runs))
        source, commit = origin_of_task(file)
        task = os.path.abspath(file) if file and builds else ""
        return cls(name, ModelStore(folder), task, source, commit, data(), cluster)

    def register(self, result: Result) -> None:
        """Keep the model of a run that is over: the best one, where that was asked for; SaveError if it cannot be."""
        try:
            version = self.store.register(
                self.name, result.best_weights or result.weights, self._origin(result), scores(result)
            )
        except (CoveyError, OSError, sqlite3.Error) as error:
            why = getattr(error, "strerror", None) or error
            asked = option("register", self.name)
            raise SaveError(f"{asked}: the model could not be kept in {self.store.folder}: {why}", result) from None
        result.keep_version(version.text)

    def _origin(self, result: Result) -> ModelOrigin:
        run = RunFacts(**{name: getattr(result, name) for name in RunFacts.__struct_fields__})
        return ModelOrigin(
            run=run, runs=result.origins, task=self.task, source=self.source, commit=self.commit,
            data=self.data[0], data_from=self.data[1], cluster=self.cluster,
            parent=parent_of(self.store, result.origins), stopped=result.stopped, seconds=result.seconds,
            samples=result.samples, best=result.best.metric if result.best else "",
        )  # fmt: skip


def scores(result: Result) -> dict[str, float | None]:
    """The scores of the model that is registered."""
    rows = result.history
    if result.best:
        rows = [row for row in rows if row.get("samples") == result.best.samples] or rows
    return {name: value for name, value in (rows[-1] if rows else {}).items() if name not in OURS}

