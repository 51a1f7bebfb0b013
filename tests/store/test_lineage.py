"""Where a model came from: from its data to what was made of it, over kills, resumes and removed versions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import covey
from covey.checkpoint import CheckpointDirectory
from covey.errors import PeerLost, PlanError, SaveError
from covey.inference.served_model import ModelPlace
from covey.inference.serving import note_endpoint
from covey.observe.facts import RunOrigin
from covey.store.data_hash import data_hash
from covey.store.lineage import ancestors, lines, parent_of, sought, source_now
from covey.store.model_store import ModelStore
from tests.store.stored import origin, register, weights
from tests.worlds import mlp

DIGITS = "examples/digits.py"


def test_a_run_is_registered_with_all_that_it_came_from(tmp_path: Path) -> None:
    result = covey.fit(
        DIGITS, "easgd", 2, engine="simulated", steps=3, register="digits", store=tmp_path / "store", seed=4,
        runs=tmp_path / "runs", command="covey simulate …",
    )  # fmt: skip
    assert result.version == "digits:1" and result.record is not None
    store = ModelStore(tmp_path / "store")
    version = store.named("digits")
    found = version.origin
    assert found.run.strategy == result.strategy and found.run.seed == 4 and found.stopped == "budget"
    assert [(run.record, run.command) for run in found.runs] == [(result.record.name, "covey simulate …")]
    assert found.source == hashlib.sha256(Path(DIGITS).read_bytes()).hexdigest() and len(found.commit) == 40
    assert found.task == os.path.abspath(DIGITS) and source_now(version) == ""
    data = covey.data.digits(train=True)
    assert found.data == data_hash(mlp(data=data))[0] and found.data_from == f"all {len(data)} samples"
    assert version.metrics["accuracy"] == result.history[-1]["accuracy"]
    assert all(torch.equal(tensor, result.weights[name]) for name, tensor in store.weights(version).items())
    assert version.tensors.keys() == result.weights.keys()


def test_with_best_the_best_model_is_registered_with_its_own_scores(tmp_path: Path) -> None:
    result = covey.fit(
        DIGITS, "bsp", 2, engine="simulated", steps=60, scores=6, best="loss", register="digits", store=tmp_path,
        runs=False,
    )  # fmt: skip
    store = ModelStore(tmp_path)
    version = store.named("digits")
    assert result.best and version.metrics["loss"] == result.best.value and version.origin.best == "loss"
    assert all(torch.equal(tensor, result.best_weights[name]) for name, tensor in store.weights(version).items())


def test_the_lineage_of_a_run_that_was_killed_and_resumed_is_whole(tmp_path: Path) -> None:
    """The first run dies, a second one goes on and is interrupted by its end, a third one goes on from that."""
    kept = tmp_path / "kept"
    asked = {"engine": "simulated", "runs": tmp_path / "runs", "checkpoint": kept, "every": "30ms"}
    with pytest.raises(PeerLost):
        covey.fit(DIGITS, "bsp", 2, steps=20, faults="kill worker 1@90ms", command="first", **asked)
    first = CheckpointDirectory(kept).newest()[1].origins
    assert [run.command for run in first] == ["first"]
    store = ModelStore(tmp_path / "store")
    named = {"register": "digits", "store": store.folder}
    second = covey.fit(DIGITS, "bsp", 2, steps=20, resume=kept, command="second", **named, **asked)
    third = covey.fit(DIGITS, "bsp", 2, steps=30, resume=kept, command="third", **named, **asked)
    assert (second.version, third.version) == ("digits:1", "digits:2")
    one, two = store.versions()
    assert [run.command for run in one.origin.runs] == ["first", "second"] and one.origin.parent == ""
    assert [run.command for run in two.origin.runs] == ["first", "second", "third"]
    assert two.origin.parent == "digits:1"
    assert len({run.key for run in two.origin.runs}) == 3
    records = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {run.record for run in two.origin.runs} == records
    told = dict(lines(store, two))
    assert told["parent"] == "digits:1" and "third" in told["run"]


@pytest.mark.full
def test_a_launcher_that_is_killed_leaves_a_whole_lineage(tmp_path: Path) -> None:
    """By kill -9, on processes."""
    kept, store = tmp_path / "kept", tmp_path / "store"
    begun = [sys.executable, "-m", "covey", "run", DIGITS, "--workers", "2", "--runs", str(tmp_path / "r")]
    saved = ["--checkpoint", str(kept), "--every", "100ms", "--quiet"]
    process = subprocess.Popen([*begun, *saved, "--steps", "100000"])
    while not (kept.is_dir() and CheckpointDirectory(kept).all()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    more = ["--resume", str(kept), "--steps", "100000", "--until", "accuracy:0.5", "--register", "digits"]
    subprocess.run([*begun, *saved, *more, "--store", str(store)], check=True, timeout=120)
    (version,) = ModelStore(store).versions()
    assert len(version.origin.runs) == 2
    assert "--resume" not in version.origin.runs[0].command and "--resume" in version.origin.runs[1].command


def test_a_model_is_found_by_what_was_made_of_it(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    first, second = register(store.folder, fill=1.0), register(store.folder, fill=2.0)
    file = tmp_path / "model.onnx"
    file.write_bytes(b"onnx")
    store.note_use(first, "onnx", "/elsewhere/model.onnx", hashlib.sha256(b"onnx").hexdigest())
    store.note_use(second, "endpoint", "http://127.0.0.1:8000")
    assert sought(store, str(file)).text == "digits:1", "by its hash, wherever it lies now"
    assert sought(store, "http://127.0.0.1:8000").text == sought(store, "http://127.0.0.1:8000/").text == "digits:2"
    assert sought(store, "record-a").text == "digits:2" and sought(store, "digits:1").text == "digits:1"
    other = tmp_path / "other.onnx"
    other.write_bytes(b"other")
    with pytest.raises(PlanError, match="was not exported from"):
        sought(store, str(other))
    store.note_use(first, "endpoint", "http://127.0.0.1:8000")
    assert sought(store, "http://127.0.0.1:8000").text == "digits:1", "an endpoint answers with one version"
    store.note_use(second, "onnx", "/elsewhere/second.onnx", hashlib.sha256(b"onnx").hexdigest())
    assert sought(store, str(file)).text == "digits:2", "of equal files the newest version's"


def test_lineage_tells_when_an_endpoint_began_and_ended(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "store")
    version, address = register(store.folder, fill=1.0), "http://127.0.0.1:8000"
    place = [ModelPlace(store=str(store.folder), version=version.text)]

    def told() -> list[str]:
        return [words for what, words in lines(store, store.named("digits")) if what.startswith("endpoint")]

    note_endpoint(place, "endpoint", address)
    assert re.fullmatch(rf"{address}, began 20[-0-9T:]+Z", told()[0]) and len(told()) == 1
    note_endpoint(place, "endpoint ended", address)
    assert re.fullmatch(rf"{address}, began 20[-0-9T:]+Z, ended 20[-0-9T:]+Z", told()[0]) and len(told()) == 1
    assert sought(store, address).text == version.text, "also afterwards"
    note_endpoint(place, "endpoint", address)
    assert len(told()) == 1 and "ended" not in told()[0], "it has begun again"


@pytest.mark.full
def test_an_endpoint_that_is_told_to_end_writes_so_into_the_lineage(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store")]
    covey = [sys.executable, "-m", "covey"]
    train = [*covey, "run", "examples/digits.py", "--steps", "4", "--register", "digits", "--runs", str(tmp_path)]
    subprocess.run([*train, *store], check=True, timeout=120)
    serve = [*covey, "serve", "digits", "--port", "0", "--runs", str(tmp_path), *store]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as endpoint:
        assert endpoint.stdout is not None
        address = endpoint.stdout.readline().strip()
        endpoint.terminate()
        assert endpoint.wait(60) == 0
    (use, end) = ModelStore(tmp_path / "store").named("digits").uses
    assert (use.kind, end.kind, end.place) == ("endpoint", "endpoint ended", address) and end.at >= use.at


def test_ancestors_outlive_their_versions_and_circles_end(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.register("digits", weights(1), origin("a"), {})
    store.register("digits", weights(2), origin("a", "b", parent="digits:1"), {})
    last = store.register("digits", weights(3), origin("a", "b", "c", parent="digits:2"), {})
    assert [one.text for one in ancestors(store, last)] == ["digits:2", "digits:1"]
    store.remove(store.named("digits:2"))
    assert [(one.text, one.version) for one in ancestors(store, last)] == [("digits:2", None)]
    store.register("x", weights(), origin("d", parent="x:2"), {})
    circle = store.register("x", weights(), origin("d", parent="x:1"), {})
    assert [one.text for one in ancestors(store, circle)] == ["x:1", "x:2"]


def test_the_parent_is_the_newest_version_of_an_earlier_run(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.register("digits", weights(1), origin("a"), {})
    store.register("other", weights(2), origin("z"), {})
    runs = [RunOrigin(key=key) for key in "ab"]
    assert parent_of(store, runs) == "digits:1"
    assert parent_of(store, runs[:1]) == "", "a run is not its own parent"
    assert parent_of(store, []) == ""
    for _ in range(2):
        store.register("older", weights(3), origin("a"), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.store.model_store.now", lambda: "2999-01-01T00:00:00Z")
        store.register("newer", weights(4), origin("a"), {})
    assert parent_of(store, runs) == "newer:1", "by the time, not by the number"


def test_of_two_runs_that_went_on_from_one_neither_is_the_others_parent(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.register("first", weights(1), origin("a"), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.store.model_store.now", lambda: "2999-01-01T00:00:00Z")
        store.register("branch", weights(2), origin("a", "b"), {})
    assert parent_of(store, [RunOrigin(key=key) for key in "ac"]) == "first:1"
    assert parent_of(store, [RunOrigin(key=key) for key in "abc"]) == "branch:1"


class Numbers(Dataset[tuple[int, str]]):
    def __init__(self, first: int = 0, moving: bool = False) -> None:
        self.first, self.moving, self.asked = first, moving, 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, place: int) -> tuple[int, str]:
        self.asked += self.moving
        return place + self.first + self.asked, "text"


class Endless(IterableDataset[int]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield 1


def test_data_is_told_apart_by_its_numbers() -> None:
    x, y = torch.arange(12.0).view(6, 2), torch.arange(6)

    def of(data: object) -> str:
        return data_hash(mlp(data=data))[0]

    assert of((x, y)) == of((x.clone(), y)) == of(TensorDataset(x, y))
    changed = x.clone()
    changed[5, 1] += 1e-6 * 8
    assert len({of((x, y)), of((changed, y)), of((x.double(), y)), of((x, y.flip(0))), of((x.view(6, 1, 2), y))}) == 5
    assert of(Numbers()) == of(Numbers()) != of(Numbers(first=1))
    assert data_hash(mlp(data=Numbers())) == (of(Numbers()), "64 of 100 samples")
    assert of([{"x": 1, "y": 2}]) == of([{"y": 2, "x": 1}]) != of([{"x": 2, "y": 1}]), "keys have no order"
    assert data_hash(mlp(data=Numbers(moving=True))) == ("", "samples that change each time")
    assert data_hash(mlp(data=Endless())) == ("", "a stream")


def test_what_cannot_be_kept_is_refused_before_training(tmp_path: Path) -> None:
    asked = {"engine": "simulated", "steps": 2, "runs": False}
    with pytest.raises(PlanError, match='register="../x": a name of a model has'):
        covey.fit(DIGITS, register="../x", **asked)
    with pytest.raises(PlanError, match="is for models: name one with register=…"):
        covey.fit(DIGITS, store=tmp_path, **asked)
    (tmp_path / "taken").write_text("")
    with pytest.raises(PlanError, match="is a file: name a folder"):
        covey.fit(DIGITS, register="digits", store=tmp_path / "taken", **asked)
    with pytest.raises(PlanError, match="trains nothing"):
        covey.fit(DIGITS, register="digits", timing_only=True, **asked)
    assert not (tmp_path / "store").exists()


def test_a_store_that_fails_at_the_end_takes_nothing_else_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.store.tensors.TensorFiles.add", full)
    with pytest.raises(SaveError, match="could not be kept in .*: No space left") as raised:
        covey.fit(DIGITS, engine="simulated", steps=2, register="digits", store=tmp_path / "s", runs=tmp_path / "r")
    assert raised.value.result.weights
    (record,) = (tmp_path / "r").iterdir()
    assert json.loads((record / "result.json").read_text())["samples"] == raised.value.result.samples
