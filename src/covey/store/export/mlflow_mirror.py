"""A version as a registered model of MLflow: a run with settings and scores, weights and lineage as artifacts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.errors import PlanError
from covey.store.export.layouts import WEIGHTS, write_weights
from covey.store.export.loaded import needed_for_export
from covey.store.lineage import as_json
from covey.store.model_store import ModelStore
from covey.store.versions import ModelVersion

FOLDER, EXPERIMENT, PROMOTED = "model", "covey", "promoted"
LONG = 500  # characters of a parameter


def mirror(store: ModelStore, version: ModelVersion, uri: str) -> str:
    """Register the version with MLflow as well; where it is there."""
    library = needed_for_export("mlflow", "--mlflow")
    with _only_there(uri):
        return _mirrored(library, store, version, uri)


@contextmanager
def _only_there(uri: str) -> Iterator[None]:
    """Inside, MLflow uses this place only; otherwise it also makes a database in the folder where it runs."""
    names = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, uri))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _mirrored(library: Any, store: ModelStore, version: ModelVersion, uri: str) -> str:
    try:
        client = library.MlflowClient(uri, registry_uri=uri)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        run = client.create_run(experiment, run_name=version.text).info
        asked = version.origin.run
        facts = {"task": asked.task, "strategy": asked.strategy, "engine": asked.engine, "workers": asked.workers}
        for name, value in {**facts, "seed": asked.seed, "data": version.origin.data, **asked.settings}.items():
            client.log_param(run.run_id, name, str(value)[:LONG])
        for name, number in version.metrics.items():
            client.log_metric(run.run_id, name, number, step=version.origin.samples)
        with tempfile.TemporaryDirectory(prefix="covey-") as folder:
            write_weights(store, version, Path(folder) / WEIGHTS)
            (Path(folder) / "lineage.json").write_text(json.dumps(as_json(store, version), indent=1), encoding="utf-8")
            client.log_artifacts(run.run_id, folder, FOLDER)
        client.set_terminated(run.run_id)
        if not any(model.name == version.name for model in client.search_registered_models()):
            client.create_registered_model(version.name)
        tags = {"covey.version": version.text, "covey.data": version.origin.data}
        source = f"{run.artifact_uri}/{FOLDER}"
        made = client.create_model_version(version.name, source, run.run_id, tags=tags)
        if version.promoted:
            client.set_registered_model_alias(version.name, PROMOTED, made.version)
    except Exception as error:  # of whatever store the URI names
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise PlanError(f"--mlflow {uri}: {first[:300]}") from None
    return f"{uri} {version.name}/{made.version}"
