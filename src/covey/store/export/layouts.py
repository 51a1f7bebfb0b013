"""A version in files for other tools: safetensors, an archive of torch.export, the layout of the Hugging Face hub."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch

from covey.errors import PlanError
from covey.model import scored
from covey.store.export.loaded import LoadedModel, exporting
from covey.store.lineage import as_json
from covey.store.model_store import ModelStore
from covey.store.versions import ModelVersion

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def write_weights(store: ModelStore, version: ModelVersion, to: Path) -> None:
    """The weights as one safetensors file."""
    scored.save(store.weights(version), to, {"format": "pt", "covey.version": version.text})


def write_archive(model: LoadedModel, to: Path) -> None:
    """An archive of torch.export, which may hold pickles: covey writes it and never loads it."""
    example = model.example()
    with torch.no_grad(), exporting(model.version, "torch.export"):
        program = torch.export.export(model.module, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        with to.open("wb") as file:
            torch.export.save(program, file)


def write_huggingface(store: ModelStore, version: ModelVersion, to: Path) -> None:
    """A folder that can be pushed to the hub as it is: weights, a configuration, and a card with the lineage."""
    if os.path.lexists(to) and (not to.is_dir() or to.is_symlink() or any(to.iterdir())):
        raise PlanError(f"--huggingface {to} is there and is not an empty folder: name a new one")
    to.absolute().parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".covey-", dir=to.absolute().parent))
    try:
        write_weights(store, version, made / WEIGHTS)
        config = {"model_type": "covey", "covey": as_json(store, version)}
        (made / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        (made / CARD).write_text(_card(version), encoding="utf-8")
        made.chmod(0o755)
        os.rename(made, to)  # an empty folder makes room
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _card(version: ModelVersion) -> str:
    """A model card; what a person wrote stands in JSON strings, which are YAML too."""
    run, origin = version.origin.run, version.origin
    head = ["---", "library_name: covey", f"tags: [covey, {json.dumps(run.strategy)}]", "---", ""]
    facts = {
        "task": origin.task or run.task, "strategy": run.strategy, "workers": run.workers, "seed": run.seed,
        "data sha256": origin.data, "source sha256": origin.source, "commit": origin.commit, "parent": origin.parent,
    }  # fmt: skip
    told = {name: value for name, value in (facts | version.metrics).items() if value != ""}
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in told.items()]
    return "\n".join([*head, f"# {version.text}", "", "| | |", "|---|---|", *rows, ""])


def _cell(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
