"""Which versions are there? An SQLite file that only covey writes; every change is one transaction."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from covey.errors import CoveyError, PlanError, WireError
from covey.store.versions import NAME, ModelOrigin, ModelUse, ModelVersion, StoredTensor, origins, shapes

MARK = 0x636F7665  # "cove", the application_id of an index
FORMAT = 1  # its user_version
PATIENCE = 30.0  # seconds in which another process may be changing the index
TABLES = (
    "CREATE TABLE names (name TEXT PRIMARY KEY, last INTEGER NOT NULL)",
    "CREATE TABLE versions (id INTEGER PRIMARY KEY, name TEXT NOT NULL, number INTEGER NOT NULL, made TEXT NOT NULL, "
    "promoted INTEGER NOT NULL, origin TEXT NOT NULL, UNIQUE (name, number))",
    "CREATE TABLE metrics (version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE, name TEXT NOT NULL, "
    "value REAL NOT NULL)",
    "CREATE TABLE tensors (version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE, name TEXT NOT NULL, "
    "hash TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL, size INTEGER NOT NULL)",
    "CREATE TABLE uses (version INTEGER NOT NULL REFERENCES versions ON DELETE CASCADE, kind TEXT NOT NULL, "
    "place TEXT NOT NULL, hash TEXT NOT NULL, at TEXT NOT NULL)",
)
Rows = list[tuple[object, ...]]


class StoreIndex:
    """The index of a store, open for one reader or writer."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def versions(self) -> list[ModelVersion]:
        """All of them, by name and number."""
        rows = self._rows("SELECT id, name, number, made, promoted, origin FROM versions ORDER BY name, number")
        return [self._version(row) for row in rows]

    def hashes(self) -> set[str]:
        """The files that versions use."""
        return {str(row[0]) for row in self._rows("SELECT DISTINCT hash FROM tensors")}

    def add(
        self, name: str, made: str, origin: ModelOrigin, metrics: Mapping[str, float],
        tensors: Mapping[str, StoredTensor],
    ) -> int:  # fmt: skip
        """Add a version and return its number, which no version of this name ever had."""
        last = self._rows("SELECT last FROM names WHERE name = ?", name)
        try:
            number = _whole(last[0][0]) + 1 if last else 1
            if not 0 < number < 1 << 53:
                raise ValueError(f"the last version of {name} has the number {number - 1}")
        except ValueError as error:
            raise PlanError(f"{self._path} was changed by something else than covey: {error}") from None
        self._rows("INSERT OR REPLACE INTO names VALUES (?, ?)", name, number)
        text = msgspec.json.encode(origin).decode()
        (row,) = self._rows(
            "INSERT INTO versions (name, number, made, promoted, origin) VALUES (?, ?, ?, 0, ?) RETURNING id",
            name, number, made, text,
        )  # fmt: skip
        for metric, value in metrics.items():
            self._rows("INSERT INTO metrics VALUES (?, ?, ?)", row[0], metric, value)
        for tensor, stored in tensors.items():
            shape = msgspec.json.encode(stored.shape).decode()
            values = (row[0], tensor, stored.hash, stored.dtype, shape, stored.size)
            self._rows("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?)", *values)
        return number

    def promote(self, version: ModelVersion) -> None:
        self._id(version)
        self._rows("UPDATE versions SET promoted = (number = ?) WHERE name = ?", version.number, version.name)

    def remove(self, version: ModelVersion) -> None:
        self._rows("DELETE FROM versions WHERE id = ?", self._id(version))

    def note_use(self, version: ModelVersion, use: ModelUse) -> None:
        """Write down what was made of a version; a place has one use, the newest, and its end."""
        for kind in (use.kind, f"{use.kind} ended"):
            self._rows("DELETE FROM uses WHERE kind = ? AND place = ?", kind, use.place)
        self._rows("INSERT INTO uses VALUES (?, ?, ?, ?, ?)", self._id(version), use.kind, use.place, use.hash, use.at)

    def _id(self, version: ModelVersion) -> object:
        found = self._rows("SELECT id FROM versions WHERE name = ? AND number = ?", version.name, version.number)
        if not found:
            raise PlanError(f"{version.text} was removed meanwhile")
        return found[0][0]

    def _version(self, row: tuple[object, ...]) -> ModelVersion:
        key, name, number, made, promoted, origin = row
        tensors = self._rows("SELECT name, hash, dtype, shape, size FROM tensors WHERE version = ? ORDER BY rowid", key)
        metrics = self._rows("SELECT name, value FROM metrics WHERE version = ? ORDER BY rowid", key)
        uses = self._rows("SELECT kind, place, hash, at FROM uses WHERE version = ? ORDER BY rowid", key)
        try:
            if not NAME.fullmatch(str(name)):
                raise ValueError(f"a version has the name {str(name)[:80]!r}")
            return ModelVersion(
                name=str(name), number=_whole(number), made=str(made), promoted=bool(promoted),
                origin=origins.read(str(origin).encode(), self._path),
                metrics={str(metric): float(str(value)) for metric, value in metrics},
                tensors={
                    str(tensor): StoredTensor(str(digest), str(dtype), self._shape(shape), _whole(size))
                    for tensor, digest, dtype, shape, size in tensors
                },
                uses=[ModelUse(*map(str, use)) for use in uses],
            )  # fmt: skip
        except (WireError, ValueError, OverflowError) as error:
            raise PlanError(f"{self._path} was changed by something else than covey: {error}") from None

    def _shape(self, text: object) -> tuple[int, ...]:
        return shapes.read(str(text).encode(), self._path)

    def _rows(self, command: str, *values: object) -> Rows:
        return self._connection.execute(command, values).fetchall()


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{str(value)[:80]!r} is not a whole number")
    return value


@contextmanager
def open_index(path: Path, *, change: bool) -> Iterator[StoreIndex]:
    """The index at this path; to `change` it, which makes it if need be, nobody else does so meanwhile."""
    _check_file(path)
    try:
        connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            for setting in ("trusted_schema = OFF", "foreign_keys = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("BEGIN IMMEDIATE" if change else "BEGIN")
            if change and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _create(connection)
            _check_schema(connection, path)
            yield StoreIndex(connection, path)
            connection.execute("COMMIT")
        finally:
            connection.close()  # what is not committed is undone
    except UnicodeDecodeError:
        raise PlanError(f"{path} is not an index of models, or is damaged: its text is not UTF-8") from None
    except sqlite3.OperationalError as error:
        raise CoveyError(f"{path} cannot be used: {error}") from None
    except sqlite3.DatabaseError as error:
        raise PlanError(f"{path} is not an index of models, or is damaged: {error}") from None


def _check_file(path: Path) -> None:
    """Refuse a link, a pipe or anything else that is no plain file; also where SQLite would write beside the index."""
    for ending in ("", "-journal", "-wal", "-shm"):
        file = path.with_name(path.name + ending)
        if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
            raise PlanError(f"{file} is not a plain file, so it is not the index of a store")


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {MARK}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    for table in TABLES:
        connection.execute(table)


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse an index that has anything but the tables of covey: a trigger or a view would run what others wrote."""
    mark, form = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if mark == MARK and form != FORMAT:
        raise PlanError(f"{path} has format {form}, and this covey reads format {FORMAT}: use the covey that wrote it")
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if mark != MARK or sorted(row[0] for row in found) != sorted(TABLES):
        raise PlanError(f"{path} is not an index of models that covey made: name another folder with --store")
