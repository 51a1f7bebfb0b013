"""Which checkpoints has a run? A folder with a lock, written whole or not at all, of which the newest few stay."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec

from covey.atomic_file import replacing
from covey.checkpoint.files import MODE, opened, seal, seal_read, settle, sync, write_synced
from covey.checkpoint.record import RunRecord, is_whole, read_record, sealed
from covey.errors import CheckpointError
from covey.names import option

KEEP = 2
NAME = re.compile(r"checkpoint-([0-9]{6,})")


class CheckpointDirectory:
    """A directory of checkpoints of one run."""

    told: Callable[[Path], None] = staticmethod(lambda checkpoint: None)  # hears of each that is complete

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
            settle(path)
        run.files = {path.name: seal(path) for path in sorted(partial.iterdir())}
        # not msgspec's own JSON, which has no way to write a loss that became infinite
        unwritten = {"torn"} if run.replicas > 1 else {"torn", "replicas"}
        record = {key: value for key, value in msgspec.to_builtins(run, str_keys=True).items() if key not in unwritten}
        write_synced(partial / "run.json", json.dumps({**record, "seal": sealed(record)}).encode())
        sync(partial)
        final = self.directory / f"checkpoint-{max(map(_number, self.all()), default=0) + 1:06d}"
        partial.rename(final)
        try:
            with replacing(self.directory / "latest", ours=True) as latest:
                write_synced(latest, final.name.encode())
        except OSError:  # what `latest` does not name is never read: it would only take room
            shutil.rmtree(final, ignore_errors=True)
            raise
        sync(self.directory)
        self._prune()
        return final

    def _prune(self) -> None:
        """Remove what is older than the newest few whole ones, but for the one that a longer run goes on from."""
        whole = [place for place in self.all() if is_whole(place)]
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
                if not read_record(place).ended:
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
            errors[0] if errors else f"{self.directory} holds no checkpoint: did the run have {option('checkpoint')}?"
        )

    def _newest_first(self) -> list[Path]:
        """From the one that `latest` names on; from the newest on where it names none."""
        found = self.all()[::-1]
        try:
            with opened(self.directory / "latest") as file:
                name = file.read(100).decode().strip()
        except (OSError, ValueError, CheckpointError):
            return found
        named = _number(Path(name))
        return [place for place in found if _number(place) <= named] or found

    def checked(self, place: Path) -> tuple[Path, RunRecord]:
        run = read_record(place)
        try:
            there = set(os.listdir(place)) - {"run.json"}
        except OSError as error:
            raise CheckpointError(f"{place} cannot be read: {error.strerror}") from None
        for name in sorted(there | set(run.files)):
            if name not in run.files or name not in there or seal_read(place / name) != tuple(run.files[name]):
                raise CheckpointError(
                    f"{place / name} is torn or was changed: its size or SHA-256 is not the recorded one"
                )
        return place, run


def _number(path: Path) -> int:
    """Of a checkpoint, by its name; 0 where that is none."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def _identity(directory: Path) -> tuple[int, int]:
    found = directory.stat()
    return found.st_dev, found.st_ino
