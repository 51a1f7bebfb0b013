"""Whoever can write into the folder of a store decides neither what covey runs nor which files it touches."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from covey.errors import CoveyError, PlanError
from covey.store.model_store import ModelStore
from covey.store.versions import check_name, parse_reference
from tests.store.stored import origin, register, weights

HOSTILE = ["", "../x", "a/b", ".hidden", "-rf", "a b", "a:b", "ä", "x" * 65, "a\n", "\x1b[2J", "a\0b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="a name of a model has"):
        check_name(name, "--register")
    with pytest.raises(PlanError, match="a name of a model has"):
        ModelStore(tmp_path / "store").register(name, weights(), origin("a"), {})
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("which", ["", "0", "-1", "1e3", "01", "1:2", str(10**30), "newest "])
def test_hostile_references_are_refused(which: str) -> None:
    with pytest.raises(PlanError, match="write the number of a version"):
        parse_reference(f"digits:{which}")


def changed(folder: Path, *commands: str) -> ModelStore:
    connection = sqlite3.connect(folder / "index.sqlite")
    for command in commands:
        connection.execute(command)
    connection.commit()
    connection.close()
    return ModelStore(folder)


@pytest.mark.parametrize("command", [
    "CREATE TRIGGER t AFTER INSERT ON versions BEGIN DELETE FROM versions; END",
    "CREATE VIEW v AS SELECT 1",
    "CREATE INDEX i ON versions (made)",
    "ALTER TABLE versions ADD COLUMN more TEXT",
    "PRAGMA application_id = 7",
])  # fmt: skip
def test_an_index_with_anything_but_the_tables_of_covey_is_refused(tmp_path: Path, command: str) -> None:
    register(tmp_path)
    store = changed(tmp_path, command)
    with pytest.raises(PlanError, match="not an index of models that covey made"):
        store.versions()
    with pytest.raises(PlanError, match="not an index of models that covey made"):
        register(tmp_path)


def test_an_index_of_a_later_version_is_refused(tmp_path: Path) -> None:
    register(tmp_path)
    with pytest.raises(PlanError, match="has format 2, and this covey reads format 1"):
        changed(tmp_path, "PRAGMA user_version = 2").versions()


@pytest.mark.parametrize(("command", "said"), [
    ("UPDATE tensors SET hash = '../../../../etc/passwd'", "is not the hash of a tensor"),
    ("UPDATE tensors SET hash = ''", "is not the hash of a tensor"),
    ("UPDATE tensors SET shape = '[2, 3]' WHERE name = 'layer.weight'", "another tensor than the index says"),
    ("UPDATE tensors SET dtype = 'int64' WHERE name = 'layer.weight'", "another tensor than the index says"),
    ("UPDATE tensors SET size = 3", "is damaged: it has"),
    ("UPDATE tensors SET size = 'x'", "changed by something else"),
    ("UPDATE tensors SET shape = 'x'", "changed by something else"),
    ("UPDATE versions SET origin = 'x'", "changed by something else"),
    ("UPDATE versions SET origin = '{}'", "changed by something else"),
    ("UPDATE versions SET name = '../x'", "changed by something else"),
    ("UPDATE versions SET number = 'x'", "changed by something else"),
    ("UPDATE metrics SET value = 'x'", "changed by something else"),
])  # fmt: skip
def test_values_that_covey_never_wrote_are_refused(tmp_path: Path, command: str, said: str) -> None:
    register(tmp_path)
    store = changed(tmp_path, command)
    with pytest.raises(PlanError, match=said):
        store.weights(store.named("digits:1"))


def test_rm_with_a_hostile_hash_removes_nothing_outside(tmp_path: Path) -> None:
    folder, outside = tmp_path / "store", tmp_path / ("0" * 64 + ".safetensors")
    register(folder)
    outside.write_text("mine")
    (folder / "tensors" / "note.txt").write_text("mine")
    (folder / "tensors" / "zz").symlink_to(tmp_path)
    store = changed(folder, "UPDATE tensors SET hash = '../../x'")
    store.remove(store.named("digits:1"))
    assert outside.read_text() == "mine" and (folder / "tensors" / "note.txt").exists()


@pytest.mark.parametrize("kind", ["garbage", "link", "pipe", "folder", "truncated"])
def test_an_index_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "store"
    register(folder)
    index = folder / "index.sqlite"
    data = index.read_bytes()
    index.unlink()
    match kind:
        case "garbage":
            index.write_bytes(os.urandom(5000))
        case "link":
            (tmp_path / "real").write_bytes(data)
            index.symlink_to(tmp_path / "real")
        case "pipe":
            os.mkfifo(index)
        case "folder":
            index.mkdir()
        case "truncated":
            index.write_bytes(data[:-4096])
    with pytest.raises(CoveyError):
        ModelStore(folder).named("digits")


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
def test_a_link_where_sqlite_would_write_is_refused(tmp_path: Path, ending: str) -> None:
    folder, mine = tmp_path / "store", tmp_path / "mine"
    register(folder)
    mine.write_text("mine")
    (folder / f"index.sqlite{ending}").symlink_to(mine)
    with pytest.raises(PlanError, match="not a plain file"):
        register(folder)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_tensor_that_is_no_plain_file_is_not_followed(tmp_path: Path, kind: str) -> None:
    store = ModelStore(tmp_path / "store")
    version = register(tmp_path / "store")
    place = store.tensors.path(version.tensors["layer.weight"].hash)
    data = place.read_bytes()
    place.unlink()
    match kind:
        case "link":
            (tmp_path / "real").write_bytes(data)
            place.symlink_to(tmp_path / "real")
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
    with pytest.raises(PlanError):
        store.weights(version)


def test_a_folder_in_the_place_of_a_tensor_is_refused(tmp_path: Path) -> None:
    place = ModelStore(tmp_path).tensors.path(register(tmp_path).tensors["layer.weight"].hash)
    place.unlink()
    place.mkdir()
    with pytest.raises(PlanError, match="is a folder, where a store keeps a tensor"):
        register(tmp_path)


def test_a_metric_that_is_no_finite_number_is_left_out(tmp_path: Path) -> None:
    version = register(tmp_path, metrics={"huge": 10**400, "none": None, "whole": 3, "lost": float("nan")})
    assert version.metrics == {"whole": 3.0}


def test_an_index_with_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    register(tmp_path)
    index = tmp_path / "index.sqlite"
    whole, damaged = b"tablemetricsmetrics", b"table\xf0\xfftricsmetrics"
    data = index.read_bytes()
    at = data.index(whole)
    rest = data[at + len(whole) :].replace(b"CREATE TABLE", b"CREATE TAXLE", 1)
    index.write_bytes(data[:at] + damaged + rest)
    with pytest.raises(PlanError, match="index.sqlite is not an index of models, or is damaged"):
        ModelStore(tmp_path).versions()


def test_folders_that_are_no_store_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "net.py").write_text("")
    with pytest.raises(PlanError, match="is no store of models"):
        ModelStore(tmp_path / "code").check("--store code")
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="is a file"):
        ModelStore(tmp_path / "file").check("--store file")
    ModelStore(tmp_path / "new" / "store").check("--store new")
    assert not (tmp_path / "new").exists()


def test_a_folder_of_tensors_that_leads_elsewhere_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / "tensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlanError, match="is a link"):
        register(tmp_path / "store")
    assert not any(path.is_file() for path in (tmp_path / "elsewhere").rglob("*"))


def test_text_of_a_store_cannot_move_a_terminal(tmp_path: Path) -> None:
    from covey.cli.tables.console import printable

    version = register(tmp_path, metrics={"\x1b[2J": 1.0})
    shown: Any = printable("  ".join(version.metrics))
    assert "\x1b" not in shown
