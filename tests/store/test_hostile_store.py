"""Whoever can write into a store does not decide which files covey touches, nor, unseen, which code it imports."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import CoveyError, PlanError
from covey.store.export.loaded import load_version
from covey.store.model_store import ModelStore
from covey.store.task_code import task_of
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


@pytest.mark.parametrize("last", ["'many'", "NULLIF(1.5, 0)", str(2**63 - 1), "-7"])
def test_a_hostile_number_of_the_last_version_refuses_the_next(tmp_path: Path, last: str) -> None:
    register(tmp_path)
    store = changed(tmp_path, f"UPDATE names SET last = {last}")
    with pytest.raises(PlanError, match="was changed by something else than covey"):
        store.register("digits", weights(), origin("b"), {})
    assert [version.number for version in store.versions()] == [1]


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


RAN = "the code ran"
CODE = f"print({RAN!r})\nraise SystemExit(3)\n"


@pytest.mark.parametrize("way", ["plain", "link", "dots", "through a link of the store"])
@pytest.mark.parametrize("words", [["serve", "digits", "--port", "0", "--no-record"], ["models", "export", "digits"]])
def test_code_inside_a_store_is_not_imported(tmp_path: Path, words: list[str], way: str) -> None:
    folder = tmp_path / "store"
    inside = folder / "tensors" / "t.py"
    named = {"link": tmp_path / "t.py", "dots": tmp_path / "x" / ".." / "store" / "tensors" / "t.py"}.get(way, inside)
    register(folder, task=f"{named}:task")
    inside.write_text(CODE)
    (tmp_path / "x").mkdir()
    (tmp_path / "t.py").symlink_to(inside)
    (tmp_path / "way").symlink_to(folder)
    store = tmp_path / "way" if way == "through a link of the store" else folder
    more = ["--onnx", str(tmp_path / "x.onnx")] if words[0] == "models" else []
    done = CliRunner().invoke(app, [*words, *more, "--store", str(store)])
    assert done.exit_code == 2 and f"{named}:task is inside the store" in done.output and RAN not in done.output


@pytest.mark.parametrize("place", ["", "index.sqlite"])
@pytest.mark.parametrize("why", ["belongs to another user", "can be written by other users"])
def test_a_store_of_others_needs_a_task_that_a_person_names(tmp_path: Path, place: str, why: str) -> None:
    store, named = ModelStore(tmp_path / "store"), str(tmp_path / "t.py")
    version = register(store.folder, task=named)
    assert task_of(store, version) == named
    if why.startswith("belongs") and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    if why.startswith("belongs"):
        os.chown(store.folder / place, 65534, -1)
    else:
        (store.folder / place).chmod(0o775)
    with pytest.raises(PlanError, match=f"{store.folder / place} {why}.*--task FILE"):
        task_of(store, version)
    assert task_of(store, version, "mine.py") == "mine.py"


@pytest.mark.parametrize("named", ["t.py", "../t.py:task", "/\x1b[2J.py", "/a\n.py"])
def test_a_task_that_covey_never_wrote_is_refused(tmp_path: Path, named: str) -> None:
    with pytest.raises(PlanError, match="is no task that covey has written there"):
        task_of(ModelStore(tmp_path), register(tmp_path, task=named))


def test_the_file_that_an_index_names_is_told_before_it_is_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, named, heard = ModelStore(tmp_path / "store"), tmp_path / "t.py", []
    named.write_text(CODE)
    version = register(store.folder, task=str(named))
    with pytest.raises(PlanError, match=r"called sys.exit\(3\)"):
        load_version(store, version, say=lambda line: heard.append((line, capfd.readouterr().out)))
    assert heard == [(f"importing {named}, which the index of {store.folder} names for digits:1", "")]
    assert RAN in capfd.readouterr().out


def test_a_new_store_can_be_written_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        store = ModelStore(tmp_path / "store")
        assert task_of(store, register(store.folder, task="/t.py")) == "/t.py"
    finally:
        os.umask(before)
