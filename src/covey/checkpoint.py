"""How is a run kept? Tensors as safetensors, the rest as JSON, a whole directory at once or not at all.

DIR/latest                        the name of the newest checkpoint
DIR/checkpoint-000012/run.json    strategy, progress, and the size and SHA-256 of every other file
                      worker-0.json, worker-0.safetensors, server-0.json, ...
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.errors import CheckpointError
from covey.message import KINDS, Address, Message
from covey.vector import Vector

T = TypeVar("T")
SCHEMA = "covey.checkpoint/2"
KEEP = 2


@dataclass(slots=True)
class RoleState:
    """Everything of one role that a restart needs; what its coroutine held is not among it."""

    done: int  # the step that begins next
    seconds: float  # of training
    memories: dict[str, Any]  # by name
    replica: dict[str, Any]
    chance: list[Any]
    mailbox: list[Message]

    @staticmethod
    def of(*, rng: Random, **fields: Any) -> RoleState:
        version, state, gauss = rng.getstate()
        return RoleState(chance=[version, list(state), gauss], **fields)

    def restore_chance(self, rng: Random) -> None:
        version, state, gauss = self.chance
        rng.setstate((version, tuple(state), gauss))

    def recall(self, name: str, fresh: T) -> T:
        """The value remembered by this name, as a value of the kind that the program asks for."""
        kept = self.memories[name]
        if isinstance(kept, Mapping) and "$value" in kept:
            return msgspec.convert(kept["$value"], type(fresh), str_keys=True)
        return kept  # type: ignore[no-any-return]  # tensors and plain values come back as they were

    def write(self, directory: Path, who: Address) -> None:
        tensors: dict[str, Tensor] = {}
        tree = {field.name: _pack(getattr(self, field.name), tensors) for field in dataclasses.fields(self)}
        save_file(tensors, _file(directory, who, "safetensors"))
        _file(directory, who, "json").write_text(json.dumps(tree))

    @staticmethod
    def read(directory: Path, who: Address) -> RoleState:
        try:
            tensors = load_file(_file(directory, who, "safetensors"))
            tree = json.loads(_file(directory, who, "json").read_text())
            return RoleState(**{name: _unpack(value, tensors) for name, value in tree.items()})
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{directory} holds no readable state of {who}: {error}") from None


class Run(msgspec.Struct, kw_only=True):
    """What `run.json` says: which run this is, how far it came, and what belongs to it."""

    schema: str = SCHEMA
    strategy: str
    workers: int
    servers: int
    seed: int
    samples: int  # of the data set
    batch_size: int
    limits: list[int | None]  # each worker's budget of steps
    loop: bool = False  # of a script, which has no task's samples and batches
    ended: list[int] = []  # the workers that had done theirs
    progress: dict[str, Any] = {}
    files: dict[str, tuple[int, str]] = {}


class Vault:
    """A directory of checkpoints of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A fresh directory to write into; nothing counts before `commit`, and without it nothing stays."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for partial in self.directory.glob(".partial-*"):
            shutil.rmtree(partial, ignore_errors=True)
        partial = self.directory / f".partial-{os.getpid()}"
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def commit(self, partial: Path, run: Run) -> Path:
        """Seal what was written: one rename makes it the newest checkpoint, and only the newest few stay."""
        run.files = {path.name: _seal(path) for path in sorted(partial.iterdir())}
        # not msgspec's own JSON, which has no way to write a loss that became infinite
        _write(partial / "run.json", json.dumps(msgspec.to_builtins(run, str_keys=True)).encode())
        _sync(partial)
        number = max((int(path.name.rpartition("-")[2]) for path in self.all()), default=0) + 1
        final = self.directory / f"checkpoint-{number:06d}"
        partial.rename(final)
        _write(self.directory / "latest.new", final.name.encode())
        (self.directory / "latest.new").rename(self.directory / "latest")
        _sync(self.directory)
        whole = self.unended()
        for old in self.all()[:-KEEP]:
            if old != whole:
                shutil.rmtree(old, ignore_errors=True)
        return final

    def all(self) -> list[Path]:
        return sorted(self.directory.glob("checkpoint-" + "[0-9]" * 6))

    def unended(self) -> Path | None:
        """The newest checkpoint from before the first worker had done its steps: a longer run can go on from it."""
        for place in reversed(self.all()):
            with suppress(CheckpointError):  # a half of one that a crash left behind
                if not _read(place).ended:
                    return place
        return None

    def newest(self) -> tuple[Path, Run]:
        """The newest checkpoint, every file of it checked against its seal."""
        pointer = self.directory / "latest"
        if not pointer.exists():
            raise CheckpointError(f"{self.directory} holds no checkpoint: was the run started with --checkpoint?")
        return self.checked(self.directory / pointer.read_text().strip())

    def checked(self, place: Path) -> tuple[Path, Run]:
        run = _read(place)
        for name, seal in run.files.items():
            if not (place / name).exists() or _seal(place / name) != tuple(seal):
                raise CheckpointError(
                    f"{place / name} is torn or was changed: its size or SHA-256 is not the recorded one"
                )
        return place, run


def _read(place: Path) -> Run:
    try:
        run = msgspec.convert(json.loads((place / "run.json").read_text()), Run)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{place / 'run.json'} cannot be read: {error}") from None
    if run.schema != SCHEMA:
        raise CheckpointError(f"{place} has the format {run.schema!r}; this covey reads {SCHEMA!r}")
    return run


def _file(directory: Path, who: Address, kind: str) -> Path:
    return Path(directory) / f"{who.role}-{who.rank}.{kind}"


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, its tensors put aside under numbers."""
    if isinstance(value, Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": key}
    if isinstance(value, Vector):
        return {"$vector": [_pack(part, tensors) for part in value.parts]}
    if isinstance(value, Message):
        fields = {name: _pack(getattr(value, name), tensors) for name in value.__struct_fields__}
        return {"$message": value.wire_name, "fields": fields}
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_pack(item, tensors) for item in value]
    if isinstance(value, Mapping):
        return {"$dict": [[_pack(key, tensors), _pack(item, tensors)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return {"$value": msgspec.to_builtins(value, str_keys=True)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"a {type(value).__name__} cannot be kept: use numbers, words, tensors and lists of them")


def check_keepable(value: Any) -> None:
    """Refuse what a checkpoint cannot hold."""
    _pack(value, {})


def _unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$tensor" in tree:
        return tensors[tree["$tensor"]]
    if "$vector" in tree:
        return Vector(_unpack(part, tensors) for part in tree["$vector"])
    if "$message" in tree:
        fields = {name: _unpack(value, tensors) for name, value in tree["fields"].items()}
        return KINDS[tree["$message"]](**{**fields, "sender": Address(*fields["sender"])})
    if "$tuple" in tree:
        return tuple(_unpack(item, tensors) for item in tree["$tuple"])
    if "$dict" in tree:
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in tree["$dict"]}
    return tree  # a $value, which only the program that remembers it can read


def _seal(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
