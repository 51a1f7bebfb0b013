"""What is known of a version of a model: where it came from, its tensors, its scores, and what was made of it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from covey.decoding import WireFormat
from covey.errors import PlanError
from covey.observe.facts import RunFacts, RunOrigin

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HASH = re.compile(r"[0-9a-f]{64}")
SCHEMA = "covey.model/1"
NEWEST = "newest"
UseKind = Literal["onnx", "torch-export", "huggingface", "mlflow", "safetensors", "endpoint", "endpoint ended"]


class ModelOrigin(msgspec.Struct, kw_only=True):
    """Where a version came from: its data, its task, the runs that trained it, and the version that they began with."""

    schema: str = SCHEMA
    run: RunFacts  # of the last run, which registered it
    runs: list[RunOrigin]  # all runs, the first one first: one that was killed and resumed has several
    task: str = ""  # the file with its folder, and the name of the Task; empty for a task of another program
    source: str = ""  # sha256 of the task's file
    commit: str = ""  # that git had checked out there
    data: str = ""  # sha256 of the training data; empty where it could not be told
    data_from: str = ""  # what that hash is of
    cluster: str = ""  # that was simulated
    parent: str = ""  # an earlier version from which these runs went on, such as digits:2
    stopped: str = ""
    seconds: float = 0.0
    samples: int = 0
    best: str = ""  # the metric whose best model this is; empty: it is the last model


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor of a version: the file with this SHA-256 has its numbers."""

    hash: str
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes of the file


class ModelUse(msgspec.Struct, frozen=True):
    """What was made of a version: an exported file, or an endpoint that answers with it."""

    kind: str
    place: str
    hash: str
    at: str  # UTC


class ModelVersion(msgspec.Struct, kw_only=True):
    """A version of a model in a store."""

    name: str
    number: int
    made: str  # UTC
    promoted: bool
    origin: ModelOrigin
    metrics: dict[str, float]
    tensors: dict[str, StoredTensor]
    uses: list[ModelUse]

    @property
    def text(self) -> str:
        """How it is named on a command line."""
        return f"{self.name}:{self.number}"

    @property
    def size(self) -> int:
        """Bytes of its tensors, equal ones counted once."""
        return sum({tensor.hash: tensor.size for tensor in self.tensors.values()}.values())


origins: WireFormat[ModelOrigin] = WireFormat("origin of a model", ModelOrigin, "json", most=1 << 24)
shapes: WireFormat[tuple[int, ...]] = WireFormat("shape of a stored tensor", tuple[int, ...], "json", most=1 << 12)


def check_name(name: str, asked: str) -> None:
    """Refuse a name that a version cannot have; `asked` is how it was given."""
    if not NAME.fullmatch(name):
        raise PlanError(
            f"{asked}: a name of a model has up to 64 letters, digits, '.', '_' and '-', and begins with a letter or "
            "a digit, such as digits or fashion-cnn"
        )


def parse_reference(text: str) -> tuple[str, int | str]:
    """`digits` (the promoted version, else the newest), `digits:3` or `digits:newest`, as a person types it."""
    name, colon, which = text.partition(":")
    check_name(name, repr(text))
    if not colon:
        return name, ""
    if which == NEWEST:
        return name, NEWEST
    if not re.fullmatch(r"[1-9][0-9]{0,17}", which):
        raise PlanError(f"{text!r}: write the number of a version behind the colon, as {name}:3, or {name}:{NEWEST}")
    return name, int(which)
