"""Versions are whole or not there: tensors once, numbers never again, changes at once or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.errors import PlanError
from covey.store.model_store import ModelStore, folder_of_store
from tests.store.stored import files, origin, register, weights


def test_a_version_has_the_weights_it_was_given(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    given = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.tensor(1.5).bfloat16(), "d": torch.empty(0)}
    version = store.register("digits", given, origin("a"), {"accuracy": 0.5, "loss": float("nan"), "none": None})
    assert version.text == "digits:1" and version.metrics == {"accuracy": 0.5}
    found = store.weights(store.named("digits"))
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


def test_equal_tensors_are_one_file_named_by_its_hash(tmp_path: Path) -> None:
    register(tmp_path, fill=1.0)
    assert len(files(tmp_path)) == 2, "both biases are the same numbers"
    register(tmp_path, fill=2.0)
    assert len(files(tmp_path)) == 3, "only the weight is new"
    for path in (tmp_path / "tensors").rglob("*.safetensors"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(load_file(path)) == ["tensor"]


def test_the_same_numbers_in_another_type_or_shape_are_another_tensor(tmp_path: Path) -> None:
    given = {"a": torch.zeros(4), "b": torch.zeros(2, 2), "c": torch.zeros(4, dtype=torch.int32)}
    store = ModelStore(tmp_path)
    version = store.register("digits", given, origin("a"), {})
    assert len(files(tmp_path)) == 3
    shapes = {name: tuple(found.shape) for name, found in store.weights(version).items()}
    assert shapes == {"a": (4,), "b": (2, 2), "c": (4,)}


def test_names_mean_the_promoted_version_else_the_newest(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    for fill in (1.0, 2.0, 3.0):
        register(tmp_path, fill=fill)
    assert store.named("digits").number == 3
    store.promote(store.named("digits:1"))
    assert store.named("digits").number == 1 and store.named("digits:newest").number == 3
    store.promote(store.named("digits:2"))
    assert [version.promoted for version in store.versions()] == [False, True, False]
    with pytest.raises(PlanError, match="digits has no version 7; there are 1, 2, 3"):
        store.named("digits:7")
    with pytest.raises(PlanError, match="no model 'digit' .*did you mean 'digits'"):
        store.named("digit")


def test_numbers_are_not_given_twice(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    register(tmp_path)
    store.remove(store.named("digits:1"))
    assert register(tmp_path).number == 2


def test_rm_collects_what_no_other_version_uses(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    first, second = register(tmp_path, fill=1.0), register(tmp_path, fill=2.0)
    freed = store.remove(first)
    assert freed == first.tensors["layer.weight"].size
    assert files(tmp_path) == {tensor.hash for tensor in second.tensors.values()}
    assert torch.equal(store.weights(second)["layer.weight"], torch.full((3, 2), 2.0))
    store.remove(second)
    assert files(tmp_path) == set() and store.versions() == []


def test_a_damaged_tensor_is_refused_not_promoted_and_mended_by_the_next_register(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    version = register(tmp_path)
    place = store.tensors.path(version.tensors["layer.weight"].hash)
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with pytest.raises(PlanError, match="damaged: its SHA-256"):
        store.weights(version)
    with pytest.raises(PlanError, match="digits:1 is not promoted: .*layer.weight"):
        store.promote(version)
    assert not store.named("digits:1").promoted
    register(tmp_path)
    assert torch.equal(store.weights(version)["layer.weight"], torch.ones(3, 2))


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("after", range(4))
def test_a_crash_between_any_two_files_leaves_the_store_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Three tensors, then the transaction: what was there before stays, and what is left over is collected later."""
    register(tmp_path, "old", fill=7.0)
    store, count = ModelStore(tmp_path), [0]
    add = store.tensors.add

    def dying(tensor: torch.Tensor) -> object:
        if count[0] == after:
            raise Crash
        count[0] += 1
        return add(tensor)

    monkeypatch.setattr(store.tensors, "add", dying)
    if after >= 3:
        monkeypatch.setattr("covey.store.index.StoreIndex.add", lambda *given: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        store.register("new", weights(8.0), origin("a"), {})
    monkeypatch.undo()
    fresh = ModelStore(tmp_path)
    assert [version.text for version in fresh.versions()] == ["old:1"]
    assert torch.equal(fresh.weights(fresh.named("old"))["layer.weight"], torch.full((3, 2), 7.0))
    assert register(tmp_path, "new", fill=8.0).text == "new:1"
    fresh.remove(fresh.named("new:1"))
    assert files(tmp_path) == {tensor.hash for tensor in fresh.named("old").tensors.values()}


def test_a_crash_in_the_middle_of_rm_forgets_the_version_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, "old", fill=7.0)
    register(tmp_path, "new", fill=8.0)
    store = ModelStore(tmp_path)
    monkeypatch.setattr(store.tensors, "collect", lambda used: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        store.remove(store.named("new"))
    monkeypatch.undo()
    assert [version.text for version in store.versions()] == ["old:1"]
    assert len(files(tmp_path)) == 3, "left over"
    register(tmp_path, "third", fill=9.0)
    store.remove(store.named("third"))
    assert len(files(tmp_path)) == 2, "collected with the next one"


def test_rm_collects_what_an_interrupted_process_left_and_not_what_another_is_writing(tmp_path: Path) -> None:
    first, store = register(tmp_path), ModelStore(tmp_path)
    part = store.tensors.path(first.tensors["layer.weight"].hash).parent
    for name, age in ((".covey-new", 60), (".covey-old", 2 * 86_400)):
        (part / name).mkdir()
        os.utime(part / name, (time.time() - age,) * 2)
    store.remove(first)
    assert [path.name for path in part.iterdir()] == [".covey-new"]


def test_whoever_registers_while_files_are_collected_writes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the last version with this tensor after it was found to be there."""
    other = register(tmp_path, "other", fill=5.0)
    store = ModelStore(tmp_path)
    add, done = store.tensors.add, [0]

    def meanwhile(tensor: torch.Tensor) -> object:
        found = add(tensor)
        done[0] += 1
        if done[0] == 3:
            ModelStore(tmp_path).remove(other)
        return found

    monkeypatch.setattr(store.tensors, "add", meanwhile)
    version = store.register("mine", weights(5.0), origin("a"), {})
    monkeypatch.undo()
    assert torch.equal(store.weights(version)["layer.weight"], torch.full((3, 2), 5.0))


REGISTER = """
import sys
from pathlib import Path
from tests.store.stored import register
for turn in range(5):
    register(Path(sys.argv[1]), fill=float(sys.argv[2]))
"""


def test_processes_that_register_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REGISTER, str(tmp_path)]
    running = [subprocess.Popen([*command, str(fill)], env=os.environ) for fill in (1, 2, 3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    store = ModelStore(tmp_path)
    found = store.versions()
    assert [version.number for version in found] == list(range(1, 16))
    assert len(files(tmp_path)) == 4
    assert sorted({float(store.weights(version)["layer.weight"][0, 0]) for version in found}) == [1, 2, 3]


def test_where_the_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_STORE", raising=False)
    assert folder_of_store("mine", Path("a/runs")) == Path("mine")
    assert folder_of_store(None, Path("a/runs")) == Path("a/model_store")
    monkeypatch.setenv("COVEY_STORE", "there")
    assert folder_of_store(None, Path("a/runs")) == Path("there")
