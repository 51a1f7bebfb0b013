"""The flags of commands that keep, or find, versions of models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.cli import options
from covey.cli.options import RecordFlags, flag

if TYPE_CHECKING:
    from covey.store.model_store import ModelStore

Store = Annotated[
    Path | None,
    flag("--store", "DIR", "The folder of registered models. (default: COVEY_STORE, or model_store)", options.KEEP),
]
Where = Annotated[
    str | None, flag("--where", "CONDITION", "Only these, such as 'accuracy>0.9 and strategy=easgd'.", options.OUTPUT)
]
Version = Annotated[str, typer.Argument(metavar="NAME[:VERSION]", help="A model: digits, digits:3 or digits:newest.")]
Versions = Annotated[list[str], typer.Argument(metavar="NAME:VERSION…", help="Versions, such as digits:3.")]


@dataclass(frozen=True, kw_only=True)
class RecordAndModelFlags(RecordFlags):
    """Where the run is recorded, and under which name its model is kept."""

    register: Annotated[
        str | None, flag("--register", "NAME", "Keep the model as the next version of this name.", options.KEEP)
    ] = None
    store: Store = None

    @property
    def models(self) -> dict[str, Any]:
        """What becomes of the model, as `covey.fit` takes it."""
        return {"register": self.register, "store": self.store}


def opened(store: Path | None) -> ModelStore:
    """The store that was named, or the usual one."""
    from covey.store.model_store import ModelStore, folder_of_store

    return ModelStore(folder_of_store(store, Path(os.environ.get("COVEY_RUNS") or "runs")))
