"""Which checkpoints has a run? A folder with a lock, written whole or not at all, of which the newest few stay."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec

from covey import atomic_file
from covey.checkpoint.files import MODE, opened, seal, seal_read, settle, sync, write_synced
from covey.checkpoint.record import RunRecord, is_whole, read_record, sealed
from covey.errors import AnotherLeads, CheckpointError
from covey.names import option

KEEP = 2
NAME = re.compile(r"checkpoint-([0-9]{6,200})")
ID = ".id"  # of the folder, for a log that lies elsewhere


class CheckpointDirectory:
    """A directory of checkpoints of one run."""

    told: Callable[[Path], None] = staticmethod(lambda checkpoint: None)  # hears of each that is complete
    refused: Callable[[], str] = staticmethod(lambda: "")  # why nothing may be written any more, if that is so

    def __init__(self, directory: Path) -> None:
        self.directory, self._lock = directory, -1
        self._locked: tuple[int, int] | None = None  # the folder that was, as the kernel numbers it
        self._seized_by = ""  # the keeper by which this launcher has its run, if it has one

    def __enter__(self) -> Self:
        """Keep other runs from writing here until the block ends, or this process does."""
        if self._lock >= 0:
            return self
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.write(self._lock, self._seized_by.encode())  # so that others of that keeper can seize it
            self._locked = _identity(self.directory)
        except OSError as error:
            self.__exit__()
            if isinstance(error, BlockingIOError):
                raise AnotherLeads(
                    f"another run keeps its checkpoints in {self.directory}: wait for its end (a run "
                    f"with {option('standby', True)} waits), or choose another folder"
                ) from None
            raise CheckpointError(f"{self.directory} cannot hold checkpoints: {error.strerror}") from None
        return self

    def seize(self, keeper: str) -> None:
        """Take the folder, also from a launcher whose process may still live, if it had the run by the same `keeper`.

        It finds that it has lost the lock. If it was stopped between its last look and the rename that makes a
        checkpoint, that rename fails: what it would rename is gone.
        """
        try:
            self.__enter__()
        except AnotherLeads:
            if self._keeper() != keeper:
                raise
        self.__exit__()
        try:
            mine = self.directory / f".lock-{secrets.token_hex(4)}"
            self._lock = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, keeper.encode())
            os.replace(mine, self.directory / ".lock")
            self._locked, self._seized_by = _identity(self.directory), keeper
            self._remove_partial()
        except OSError as error:
            self.__exit__()
            raise CheckpointError(f"{self.directory} cannot hold checkpoints: {error.strerror}") from None

    def identity(self) -> str:
        """Which folder this is, by whatever path and on whatever machine; whoever has the lock may ask."""
        file = self.directory / ID
        try:
            with suppress(FileNotFoundError), opened(file) as found:
                if known := found.read(100).decode(errors="replace").strip():
                    return known
            write_synced(file, (new := secrets.token_hex(8)).encode())
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read or written: {error.strerror}") from None
        return new

    def _keeper(self) -> str:
        """By what the launcher that has the lock has its run; by nothing but the lock if that is empty."""
        try:
            with opened(self.directory / ".lock") as file:
                return file.read(1000).decode(errors="replace")
        except (OSError, CheckpointError):
            return ""

    def _remove_partial(self) -> None:
        """Whatever is not yet a checkpoint: each goes at once, so that nobody can finish it."""
        for partial in self.directory.glob(".partial-*"):
            away = self.directory / f".removed-{secrets.token_hex(4)}"
            with suppress(FileNotFoundError):
                partial.rename(away)
        for away in self.directory.glob(".removed-*"):
            shutil.rmtree(away, ignore_errors=True) if away.is_dir() else away.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A fresh directory to write into; nothing counts before `commit`, and without it nothing stays."""
        self._lock_again()
        self._remove_partial()
        partial = self.directory / f".partial-{os.getpid()}-{secrets.token_hex(4)}"  # another host may have that number
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
        return atomic_file.is_at(self._lock, self.directory / ".lock")

    def commit(self, partial: Path, run: RunRecord) -> Path:
        """Seal what was written: one rename makes it the newest checkpoint, and only the newest few stay."""
        if why := self.refused():
            raise OSError(why)
        for path in partial.iterdir():
            settle(path)
        run.files = {path.name: seal(path) for path in sorted(partial.iterdir())}
        # not msgspec's own JSON, which has no way to write a loss that became infinite
        unwritten = {"torn"} if run.replicas > 1 else {"torn", "replicas"}
        record = {key: value for key, value in msgspec.to_builtins(run, str_keys=True).items() if key not in unwritten}
        write_synced(partial / "run.json", json.dumps({**record, "seal": sealed(record)}).encode())
        final = self.directory / f"checkpoint-{max(map(number_of, self.all()), default=0) + 1:06d}"
        latest = partial.with_name(f"{partial.name}.latest")  # there before the first of the two renames: see `seize`
        try:
            write_synced(latest, final.name.encode())
            sync(partial)
            partial.rename(final)
            try:
                os.replace(latest, self.directory / "latest")
            except OSError:  # what `latest` does not name is never read: it would only take room
                if self._locked is None or self._holds_lock():
                    shutil.rmtree(final, ignore_errors=True)
                raise
        finally:
            latest.unlink(missing_ok=True)
        sync(self.directory)
        self._prune()
        return final

    def _prune(self) -> None:
        """Remove what is older than the newest few whole ones, but for the one that a longer run goes on from."""
        whole = [place for place in self.all() if is_whole(place)]
        unended = self.unended()
        for old in self.all():
            if len(whole) >= KEEP and number_of(old) < number_of(whole[-KEEP]) and old != unended:
                shutil.rmtree(old, ignore_errors=True)

    def all(self) -> list[Path]:
        """Whatever has the name of a checkpoint, the newest last."""
        try:
            return sorted(filter(number_of, self.directory.iterdir()), key=number_of)
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
        named = number_of(Path(name))
        return [place for place in found if number_of(place) <= named] or found

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


def number_of(path: Path) -> int:
    """Of a checkpoint, by its name; 0 where that is none."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def _identity(directory: Path) -> tuple[int, int]:
    found = directory.stat()
    return found.st_dev, found.st_ino
