"""covey models and covey lineage, as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from covey.cli import app
from covey.store.model_store import ModelStore
from tests.store.stored import files, origin, register


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelStore:
    """Three versions of two names."""
    monkeypatch.setenv("COVEY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "160")
    folder = tmp_path / "store"
    register(folder, fill=1.0, metrics={"accuracy": 0.8})
    register(folder, fill=2.0, metrics={"accuracy": 0.95}, strategy="easgd(period=4)", parent="digits:1")
    register(folder, "fashion", fill=3.0)
    return ModelStore(folder)


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_list_shows_what_fits(store: ModelStore) -> None:
    listed = [line.split()[0] for line in said("models", "list").splitlines()[1:]]
    assert listed == ["digits:1", "digits:2", "fashion:1"]
    found = json.loads(said("models", "list", "--where", "accuracy>0.9 and strategy=easgd", "--json", "-"))
    assert [one["version"] for one in found] == ["digits:2"] and found[0]["metrics"] == {"accuracy": 0.95}
    refused = said("models", "list", "--where", "accuracy>0.9 an strategy=easgd", code=2)
    assert "accuracy>0.9 an strategy=easgd" in refused and " " * 13 + "^ expected 'and'" in refused
    assert "no version in" in said("models", "list", "--where", "accuracy>2")


def test_show_and_lineage_name_everything(store: ModelStore) -> None:
    store.note_use(store.named("digits:2"), "onnx", "/tmp/digits.onnx", "ab" * 32)
    shown = said("models", "show", "digits")
    assert "easgd(period=4)" in shown and "layer.weight" in shown and "3 x 2" in shown
    told = said("lineage", "digits:2")
    for word in ("data", "task", "strategy", "run", "record-a", "parent", "digits:1", "onnx", "/tmp/digits.onnx"):
        assert word in told
    found = json.loads(said("lineage", "digits:1", "--json", "-"))
    assert found["children"] == ["digits:2"] and found["ancestors"] == []


def test_diff_says_what_differs_and_by_how_much(store: ModelStore) -> None:
    shown = said("models", "diff", "digits:1", "digits:2")
    assert "2 tensors are equal, 1 are not" in shown and "layer.weight: moved by 1 of its norm" in shown
    assert "bsp" in shown and "easgd(period=4)" in shown and "workers" not in shown
    store.register("digits", {"layer.weight": torch.ones(2, 2), "new": torch.ones(1)}, origin("a"), {})
    found = json.loads(said("models", "diff", "digits:1", "digits:3", "--json", "-"))
    how = {change["name"]: change["how"] for change in found["changes"]}
    assert how["layer.weight"] == "float32 [3, 2] became float32 [2, 2]" and how["new"] == "only in digits:3"
    assert how["layer.bias"] == "only in digits:1" and found["equal"] == 0


def test_promote_takes_the_newest_and_only_what_fits(store: ModelStore) -> None:
    refused = said("models", "promote", "digits", "--where", "accuracy>0.96", code=2)
    assert "digits:2 is not promoted: it does not fit" in refused
    assert not any(version.promoted for version in store.versions())
    said("models", "promote", "digits", "--where", "accuracy>0.9")
    assert store.named("digits").number == 2
    said("models", "promote", "digits:1")
    assert store.named("digits").number == 1
    said("models", "promote", "digits")
    assert store.named("digits").number == 2, "the newest, and not the one that was promoted"
    assert "no version has 'acc'" in said("models", "promote", "digits", "--where", "acc>1", code=2)


def test_rm_needs_a_number_and_collects(store: ModelStore) -> None:
    assert "say which version to remove" in said("models", "rm", "digits", code=2)
    assert "no version 9" in said("models", "rm", "digits:1", "digits:9", code=2)
    assert len(store.versions()) == 3, "all or none"
    assert "removed digits:1, digits:2" in said("models", "rm", "digits:1", "digits:2")
    assert len(files(store.folder)) == 2


def test_without_a_store_there_is_none_made(tmp_path: Path) -> None:
    assert "no models in" in said("models", "list", "--store", str(tmp_path / "none"))
    assert "there are no models in" in said("lineage", "digits", "--store", str(tmp_path / "none"), code=2)
    assert not (tmp_path / "none").exists()


def test_run_refuses_a_name_before_torch_is_imported(tmp_path: Path) -> None:
    assert "a name of a model has up to 64" in said("simulate", "no.py", "--register", "a/b", code=2)


def test_simulate_registers_and_says_so(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    kept = ["--register", "mine", "--store", place, "--no-record"]
    shown = said("simulate", "examples/digits.py", "--steps", "2", *kept)
    assert "version" in shown and "mine:1" in shown
    assert "mine:1" in said("models", "list", "--store", place)


@pytest.mark.parametrize(("words", "message"), [
    (["nosuch", "--store", "store"], "there are no models in"),
    (["nosuch.safetensors"], "there is no file nosuch.safetensors"),
    (["--also", "other", "nosuch", "--store", "store"], "there are no models in"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_refused_before_torch_is_imported(
    words: list[str], message: str, tmp_path: Path
) -> None:
    code = "import sys; from covey.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, "serve", *words]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert found.returncode == 2 and message in found.stderr and "Traceback" not in found.stderr, found.stderr
