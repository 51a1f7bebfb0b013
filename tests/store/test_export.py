"""Exports: what other tools compute with them is what the model computes; what is not so is not written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.data.fashion import DEBIAN as FASHION
from covey.errors import PlanError
from covey.store.export import onnx_file
from covey.store.export.loaded import LoadedModel, load_version
from covey.store.model_store import ModelStore
from tests.late_imports import needs

needs("onnxruntime", "onnxscript")

TRAINED = {"digits": 200, "unbalanced": 60, "lasso": 300, "characters": 60, "fashion": 100, "hospitals": 200}
"""Steps after which the model of an example has learned something."""


def trained(name: str, folder: Path) -> tuple[ModelStore, LoadedModel]:
    covey.fit(
        f"examples/{name}.py", "bsp", 1, engine="simulated", steps=TRAINED[name], scores=0, register=name, store=folder,
        runs=False,
    )  # fmt: skip
    store = ModelStore(folder)
    return store, load_version(store, store.named(name))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelStore, LoadedModel]:
    return trained("digits", tmp_path_factory.mktemp("store"))


def exported(store: ModelStore, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["models", "export", *words, "--store", str(store.folder)])
    assert done.exit_code == code, done.output
    return done.output


def check(model: LoadedModel, folder: Path, tolerance: float = 0.01) -> None:
    plain = onnx_file.write_onnx(model, folder / "plain.onnx")
    assert plain.largest <= 1e-4 and plain.samples > 0
    assert plain.before.keys() == plain.after.keys() != set()
    small = onnx_file.write_int8(model, folder / "plain.onnx", folder / "int8.onnx", tolerance)
    assert small.worst()[1] <= tolerance and small.largest > 0
    assert (folder / "int8.onnx").stat().st_size < (folder / "plain.onnx").stat().st_size or model.version.size < 20_000


def test_onnx_of_the_digits_within_1e_4_and_int8_within_a_point(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path
) -> None:
    check(digits[1], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", ["unbalanced", "characters", "fashion", "hospitals"])
def test_onnx_of_every_other_example_within_1e_4_and_int8_within_a_point(name: str, tmp_path: Path) -> None:
    if name == "fashion" and not Path(FASHION).is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    check(trained(name, tmp_path / "store")[1], tmp_path)


@pytest.mark.full
def test_onnx_of_the_lasso_within_1e_4_and_int8_is_refused_unless_more_than_a_point_is_allowed(tmp_path: Path) -> None:
    """Its score is a mean square error of sums of 200 products, which rounding to 8 bits raises by 0.0106."""
    model = trained("lasso", tmp_path / "store")[1]
    check(model, tmp_path, 0.012)
    with pytest.raises(PlanError, match=r"error was 0\.09\d+ and is 0\.10\d+; --tolerance 0\.01 allows less"):
        check(model, tmp_path)


def test_every_example_with_a_task_is_exported() -> None:
    tasks = re.compile(r"^task = covey\.Task", re.MULTILINE)
    assert {path.stem for path in Path("examples").glob("*.py") if tasks.search(path.read_text())} == set(TRAINED)


def test_the_file_answers_batches_of_any_size(digits: tuple[ModelStore, LoadedModel], tmp_path: Path) -> None:
    store, model = digits
    shown = exported(store, "digits", "--onnx", str(tmp_path / "digits.onnx"))
    assert "outputs differ by at most" in shown and "over 360 samples" in shown
    answers = onnx_file.OnnxAnswers(tmp_path / "digits.onnx", model.module)
    for size in (1, 2, 33):
        x = covey.data.digits(train=False)[:size][0] if size > 1 else next(model.inputs(1))[:1]
        assert answers(x).shape == (size, 10)
    use = store.named("digits").uses[-1]
    assert use.kind == "onnx" and use.place == str(tmp_path / "digits.onnx")
    assert "digits:1" in CliRunner().invoke(app, ["lineage", use.place, "--store", str(store.folder)]).output


def test_a_file_that_computes_something_else_is_not_written(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter is given other weights: the check on the evaluation set finds out."""
    store, _ = digits
    export = torch.onnx.export

    def wrong(module: torch.nn.Module, *args: Any, **more: Any) -> Any:
        with torch.no_grad():
            last = list(module.parameters())[-1]
            last.add_(0.01)
            try:
                return export(module, *args, **more)
            finally:
                last.sub_(0.01)

    monkeypatch.setattr(torch.onnx, "export", wrong)
    refused = exported(store, "digits", "--onnx", str(tmp_path / "digits.onnx"), code=2)
    assert "digits:1 is not exported: outputs differ by at most 0.0" in refused
    assert list(tmp_path.iterdir()) == []


def test_int8_that_costs_more_than_the_tolerance_is_not_written(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges that were calibrated on something else than the training data."""
    store, _ = digits
    monkeypatch.setattr(LoadedModel, "inputs", lambda self, samples: iter([torch.full((32, 8, 8), 1e-3)]))
    monkeypatch.setattr(LoadedModel, "example", lambda self: torch.zeros(32, 8, 8))
    assert next(iter(covey.data.digits(train=True)))[0].shape[-2:] == (8, 8)
    file = tmp_path / "digits.onnx"
    refused = exported(store, "digits", "--onnx", str(file), "--int8", code=2)
    assert "is not exported as int8: accuracy was" in refused and "--tolerance 0.01 allows less" in refused
    assert list(tmp_path.iterdir()) == []


def test_int8_by_the_command(digits: tuple[ModelStore, LoadedModel], tmp_path: Path) -> None:
    shown = exported(digits[0], "digits", "--onnx", str(tmp_path / "small.onnx"), "--int8", "--tolerance", "0.02")
    assert "accuracy" in shown and [path.name for path in tmp_path.iterdir()] == ["small.onnx"]


def test_the_hugging_face_layout_has_weights_configuration_and_card(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path
) -> None:
    store, _ = digits
    place = tmp_path / "hub" / "digits"
    exported(store, "digits", "--huggingface", str(place))
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    found = load_file(place / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in store.weights(store.named("digits")).items())
    config = json.loads((place / "config.json").read_text())
    assert config["covey"]["version"] == "digits:1" and config["covey"]["origin"]["data"]
    assert (place / "README.md").read_text().startswith("---\nlibrary_name: covey\n")
    assert "is not an empty folder" in exported(store, "digits", "--huggingface", str(place), code=2)
    assert [path.name for path in place.parent.iterdir()] == ["digits"]


def test_an_archive_of_torch_and_weights_are_written(digits: tuple[ModelStore, LoadedModel], tmp_path: Path) -> None:
    store, model = digits
    shown = exported(
        store, "digits", "--torch-export", str(tmp_path / "d.pt2"), "--safetensors", str(tmp_path / "d.safetensors")
    )
    assert "may hold pickles" in shown
    program = torch.export.load(tmp_path / "d.pt2")  # (a test may: it has just written it)
    x = next(model.inputs(7))[:7]
    assert torch.allclose(program.module()(x), model.module(x), atol=1e-6)
    assert load_file(tmp_path / "d.safetensors").keys() == store.named("digits").tensors.keys()


def test_mlflow_gets_a_run_and_a_registered_version(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store, _ = digits
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.chdir(tmp_path)
    exported(store, "digits", "--mlflow", uri)
    assert [path.name for path in tmp_path.iterdir()] == ["mlruns"], "and nothing where it ran"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(uri, registry_uri=uri)
    (version,) = client.search_model_versions("name='digits'")
    run = client.get_run(version.run_id)
    assert run.data.params["strategy"] == "bsp" and version.tags["covey.version"] == "digits:1"
    files = {Path(path).name for _, _, names in os.walk(tmp_path / "mlruns") for path in names}
    assert {"model.safetensors", "lineage.json"} <= files and not any(name.endswith(".pkl") for name in files)


def test_a_task_with_another_model_is_refused(digits: tuple[ModelStore, LoadedModel], tmp_path: Path) -> None:
    store, _ = digits
    refused = exported(store, "digits", "--onnx", str(tmp_path / "x.onnx"), "--task", "examples/lasso.py", code=2)
    assert "are different models: only the version has '1.weight'" in refused


def test_a_task_whose_file_has_changed_is_told(digits: tuple[ModelStore, LoadedModel], tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text(Path("examples/digits.py").read_text())
    covey.fit(str(file), "bsp", 1, engine="simulated", steps=1, register="own", store=tmp_path / "s", runs=False)
    file.write_text(file.read_text() + "\n# changed\n")
    said: list[str] = []
    store = ModelStore(tmp_path / "s")
    load_version(store, store.named("own"), say=said.append)
    assert said and "task.py is changed since" in said[0]


@pytest.mark.parametrize(("words", "said"), [
    ("", "say where to"), ("--int8 --mlflow x", "--int8 is for ONNX"),
    ("--onnx x.onnx --tolerance 0.1", "--tolerance 0.1: give a share"),
    ("--onnx x.onnx --int8 --tolerance -1", "give a share from 0 to 1"),
    ("--onnx nowhere/x.onnx", "there is no folder nowhere"),
])  # fmt: skip
def test_what_cannot_be_asked(digits: tuple[ModelStore, LoadedModel], words: str, said: str) -> None:
    assert said in exported(digits[0], "digits", *words.split(), code=2)


def test_without_the_packages_the_extra_is_named(
    digits: tuple[ModelStore, LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(PlanError, match=r"--onnx needs a package: pip install 'covey\[export\]'"):
        onnx_file.write_onnx(digits[1], tmp_path / "x.onnx")
