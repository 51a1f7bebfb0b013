"""How is a run kept? Tensors as safetensors, the rest as JSON, a whole directory at once or not at all.

DIR/.lock                         held by the run that writes here, and freed by its end, however it ends
DIR/latest                        the name of the newest checkpoint
DIR/checkpoint-000012/run.json    strategy, progress, the size and SHA-256 of every other file, and of itself
                      worker-0.json, worker-0.safetensors, server-0.json, ...
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from covey.atomic_file import replacing
from covey.checkpoint.packing import pack, unpack
from covey.decoding import UNREADABLE
from covey.errors import CheckpointError
from covey.message import Address, Message

T = TypeVar("T")
SCHEMA = "covey.checkpoint/2"
KEEP = 2
MODE = 0o600  # of every file: weights and data are their owner's
NAME = re.compile(r"checkpoint-([0-9]{6,})")


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
        try:
            version, state, gauss = self.chance
            rng.setstate((version, tuple(state), gauss))
        except UNREADABLE as error:
            raise CheckpointError(f"the checkpoint keeps no state of a random generator: {error}") from None

    def recall(self, name: str, fresh: T) -> T:
        """The value remembered by this name, as a value of the kind that the program asks for."""
        kept = self.memories[name]
        if isinstance(kept, Mapping) and "$value" in kept:
            try:
                return msgspec.convert(kept["$value"], type(fresh), str_keys=True)
            except UNREADABLE as error:
                raise CheckpointError(f"what the checkpoint keeps as {name!r} cannot be read: {error}") from None
        return kept  # type: ignore[no-any-return]  # tensors and plain values come back as they were

    def write(self, directory: Path, who: Address) -> None:
        tensors: dict[str, Tensor] = {}
        tree = {field.name: pack(getattr(self, field.name), tensors) for field in dataclasses.fields(self)}
        try:
            save_file(tensors, _file(directory, who, "safetensors"))
        except SafetensorError as error:  # it tells so of a full disk, too
            raise OSError(str(error)) from None
        _file(directory, who, "json").write_text(json.dumps(tree))

    @staticmethod
    def read(directory: Path, who: Address) -> RoleState:
        try:
            with _opened(_file(directory, who, "safetensors")):
                tensors = load_file(_file(directory, who, "safetensors"))
            with _opened(_file(directory, who, "json")) as file:
                tree = json.load(file)
            state = RoleState(**{name: unpack(value, tensors) for name, value in tree.items()})
            state.check()
        except (OSError, SafetensorError, *UNREADABLE, CheckpointError) as error:
            raise CheckpointError(f"{directory} holds no readable state of {who}: {error}") from None
        return state

    def check(self) -> None:
        """Refuse what no role can have kept."""
        if type(self.done) is not int or self.done < 0:
            raise ValueError(f"{self.done!r} steps cannot have been done")
        if not isinstance(self.seconds, float | int) or not 0 <= self.seconds < math.inf:
            raise ValueError(f"{self.seconds!r} seconds cannot have passed")
        if not all(isinstance(one, Message) for one in self.mailbox) or not isinstance(self.mailbox, list):
            raise ValueError("its mailbox has something else than messages")
        if not isinstance(self.memories, dict) or not isinstance(self.replica, dict):
            raise ValueError("what it remembers has no names")


class RunRecord(msgspec.Struct, kw_only=True):
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
    optimizer: list[dict[str, str]] = []  # of each group, what the task's optimizer is made with, as text
    ended: list[int] = []  # the workers that had done theirs
    progress: dict[str, Any] = {}
    files: dict[str, tuple[int, str]] = {}
    torn: list[str] = []  # newer checkpoints that could not be read; never written


class CheckpointDirectory:
    """A directory of checkpoints of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._lock = directory, -1
        self._locked: tuple[int, int] | None = None  # the folder that was, as the kernel numbers it

    def __enter__(self) -> Self:
        """Keep other runs from writing here until the block ends, or this process does."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locked = _identity(self.directory)
        except OSError as error:
            self.__exit__()
            if isinstance(error, BlockingIOError):
                raise CheckpointError(
                    f"another run keeps its checkpoints in {self.directory}: wait for its end, or choose another folder"
                ) from None
            raise CheckpointError(f"{self.directory} cannot hold checkpoints: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A fresh directory to write into; nothing counts before `commit`, and without it nothing stays."""
        self._lock_again()
        for partial in self.directory.glob(".partial-*"):
            shutil.rmtree(partial, ignore_errors=True)
        partial = self.directory / f".partial-{os.getpid()}"
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _lock_again(self) -> None:
        """Where somebody has removed the folder or its lock under the run, take it anew, unless others are there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._locked is None or self._holds_lock():
            return
        before = self._locked
        self.__exit__()
        try:
            self.__enter__()
        except CheckpointError as error:
            raise OSError(str(error)) from None
        if self._locked != before and self.all():
            self._locked = before  # so that the next try finds the same
            raise OSError("the folder was replaced by one with the checkpoints of another run")

    def _holds_lock(self) -> bool:
        if self._lock < 0 or _identity(self.directory) != self._locked:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), os.lstat(self.directory / ".lock"))
        except FileNotFoundError:
            return False

    def commit(self, partial: Path, run: RunRecord) -> Path:
        """Seal what was written: one rename makes it the newest checkpoint, and only the newest few stay."""
        for path in partial.iterdir():
            _settled(path)
        run.files = {path.name: _seal(path) for path in sorted(partial.iterdir())}
        # not msgspec's own JSON, which has no way to write a loss that became infinite
        record = {key: value for key, value in msgspec.to_builtins(run, str_keys=True).items() if key != "torn"}
        _write(partial / "run.json", json.dumps({**record, "seal": _sealed(record)}).encode())
        _sync(partial)
        final = self.directory / f"checkpoint-{max(map(_number, self.all()), default=0) + 1:06d}"
        partial.rename(final)
        try:
            with replacing(self.directory / "latest") as latest:
                _write(latest, final.name.encode())
        except OSError:  # what `latest` does not name is never read: it would only take room
            shutil.rmtree(final, ignore_errors=True)
            raise
        _sync(self.directory)
        self._prune()
        return final

    def _prune(self) -> None:
        """Remove what is older than the newest few whole ones, but for the one that a longer run goes on from."""
        whole = [place for place in self.all() if _is_whole(place)]
        unended = self.unended()
        for old in self.all():
            if len(whole) >= KEEP and _number(old) < _number(whole[-KEEP]) and old != unended:
                shutil.rmtree(old, ignore_errors=True)

    def all(self) -> list[Path]:
        """Whatever has the name of a checkpoint, the newest last."""
        try:
            return sorted(filter(_number, self.directory.iterdir()), key=_number)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def unended(self) -> Path | None:
        """The newest checkpoint from before the first worker had done its steps: a longer run can go on from it."""
        for place in reversed(self.all()):
            with suppress(CheckpointError):  # a half of one that a crash left behind
                if not _read(place).ended:
                    return place
        return None

    def newest(self) -> tuple[Path, RunRecord]:
        """The newest checkpoint, every file of it checked against its seal; if it is torn, the one before it."""
        errors: list[str] = []
        for place in self._newest_first():
            try:
                place, run = self.checked(place)
            except CheckpointError as error:
                errors.append(str(error))
            else:
                return place, msgspec.structs.replace(run, torn=errors)
        raise CheckpointError(
            errors[0] if errors else f"{self.directory} holds no checkpoint: was the run started with --checkpoint?"
        )

    def _newest_first(self) -> list[Path]:
        """From the one that `latest` names on; from the newest on where it names none."""
        found = self.all()[::-1]
        try:
            with _opened(self.directory / "latest") as file:
                name = file.read(100).decode().strip()
        except (OSError, ValueError, CheckpointError):
            return found
        named = _number(Path(name))
        return [place for place in found if _number(place) <= named] or found

    def checked(self, place: Path) -> tuple[Path, RunRecord]:
        run = _read(place)
        try:
            there = set(os.listdir(place)) - {"run.json"}
        except OSError as error:
            raise CheckpointError(f"{place} cannot be read: {error.strerror}") from None
        for name in sorted(there | set(run.files)):
            if name not in run.files or name not in there or _seal_read(place / name) != tuple(run.files[name]):
                raise CheckpointError(
                    f"{place / name} is torn or was changed: its size or SHA-256 is not the recorded one"
                )
        return place, run


def _read(place: Path) -> RunRecord:
    try:
        if place.is_symlink():
            raise ValueError("its folder is a link")
        with _opened(place / "run.json") as file:
            record = dict(json.load(file))
        if (schema := record.get("schema")) != SCHEMA:
            raise CheckpointError(
                f"{place} has the format {str(schema)[:40]!r}, and this covey reads {SCHEMA!r}: go on with the covey "
                "that wrote it, or start again"
            )
        if record.pop("seal", "") != _sealed(record):
            raise CheckpointError(f"{place / 'run.json'} is torn or was changed: its SHA-256 is not the recorded one")
        run = msgspec.convert(record, RunRecord)
        if not all(0 <= number < 1 << 53 for number in (run.workers, run.servers, run.samples, run.batch_size)):
            raise ValueError("it contains a number out of range")
        if len(run.limits) != run.workers or not all(limit is None or 0 <= limit < 1 << 53 for limit in run.limits):
            raise ValueError(f"it does not say for each of {run.workers} workers how many steps it may do")
        if not all(0 <= rank < run.workers for rank in run.ended):
            raise ValueError(f"it says that workers {run.ended} had ended, and the run has {run.workers}")
        return run
    except (OSError, *UNREADABLE) as error:
        raise CheckpointError(f"{place / 'run.json'} cannot be read: {error}") from None


def _sealed(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A plain file, and nothing that could lead elsewhere or wait for a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CheckpointError(f"{path} is not a regular file")
        yield file


def _file(directory: Path, who: Address, kind: str) -> Path:
    return Path(directory) / f"{who.role}-{who.rank}.{kind}"


def _number(path: Path) -> int:
    """Of a checkpoint, by its name; 0 where that is none."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def _is_whole(place: Path) -> bool:
    """Whether its record can be read; that of a torn one, or of something else with the name of one, cannot."""
    try:
        _read(place)
    except CheckpointError:
        return False
    return True


def _identity(directory: Path) -> tuple[int, int]:
    found = directory.stat()
    return found.st_dev, found.st_ino


def _seal(path: Path) -> tuple[int, str]:
    with _opened(path) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _seal_read(path: Path) -> tuple[int, str]:
    try:
        return _seal(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def _settled(path: Path) -> None:
    """On the disk, and for nobody else."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), MODE)
        os.fsync(file.fileno())


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
