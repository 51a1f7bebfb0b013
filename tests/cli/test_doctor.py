from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import doctor
from covey.cli import app
from covey.doctor import engines


def test_this_machine_can_train(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    shown = runner.invoke(app, ["doctor", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "ready to train" in shown.stdout
    found = {one["name"]: one for one in json.loads(file.read_text())}
    assert list(found) == list(doctor.CHECKS)
    assert found["processes"]["state"] == "ok"


def test_dependencies_are_those_of_the_package() -> None:
    wanted = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    assert dict(one.split(">=") for one in wanted) == doctor.DEPENDENCIES


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("spark", "pyspark"), ("mpi", "mpi4py")])
def test_a_missing_extra_comes_with_its_command(monkeypatch: pytest.MonkeyPatch, engine: str, package: str) -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(doctor.Trouble, match=f"{package} is not installed") as raised:
        doctor.CHECKS[engine][1]()
    assert raised.value.fix.endswith(f"pip install 'covey[{engine}]'")
    assert any(one.startswith(package) for one in extras[engine])


def test_every_engine_has_its_line() -> None:
    from covey.run.clusters import CLUSTERS

    assert set(CLUSTERS) <= set(doctor.CHECKS)


def test_spark_wants_a_new_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(engines, "_installed", lambda package, extra: None)
    with pytest.raises(doctor.Trouble, match="Java 11.0.2; PySpark needs 17") as raised:
        engines.spark()
    assert "openjdk-17" in raised.value.fix
    java.unlink()
    with pytest.raises(doctor.Trouble, match="no Java at"):
        engines.spark()


def test_mpi_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(code: str) -> str:
        raise doctor.Trouble("RuntimeError: cannot load MPI library", "")

    monkeypatch.setattr(engines, "_installed", lambda package, extra: None)
    monkeypatch.setattr(engines, "_in_child", broken)
    with pytest.raises(doctor.Trouble, match="finds no MPI library") as raised:
        engines.mpi()
    assert "pip install 'covey[mpi]'" in raised.value.fix


def test_a_lab_wants_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(doctor.Trouble, match="only root") as raised:
        engines.lab()
    assert "sudo" in raised.value.fix


def test_a_missing_dependency_comes_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEPENDENCIES", {"rich": "13", "covey-does-not-exist": "2", "typer": "999"})
    with pytest.raises(doctor.Trouble) as raised:
        doctor.dependencies()
    assert raised.value.fix == "pip install 'covey-does-not-exist>=2' 'typer>=999'"


def test_a_long_temporary_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(doctor.Trouble, match="no socket can be made") as raised:
        doctor.sockets()
    assert "TMPDIR" in raised.value.fix


def test_a_child_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CHILD", "raise SystemExit('zmq is broken here')")
    monkeypatch.setattr(doctor, "PATIENCE", 1.0)
    with pytest.raises(doctor.Trouble, match="did not answer") as raised:
        doctor.processes()
    assert "zmq is broken here" in raised.value.fix


@pytest.mark.parametrize(("essential", "code"), [(True, 1), (False, 0)])
def test_only_the_essential_decides(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, essential: bool, code: int
) -> None:
    def broken() -> str:
        raise doctor.Trouble("it is broken", "mend it")

    def surprising() -> str:
        raise RuntimeError("nobody expected this")

    checks = {"python": (True, doctor.python), "thing": (essential, broken), "other": (False, surprising)}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == code
    assert "it is broken" in shown.stdout and "mend it" in shown.stdout and "nobody expected this" in shown.stdout
    quiet = runner.invoke(app, ["doctor", "--quiet"])
    assert quiet.exit_code == code
    assert ("mend it" in quiet.output) == essential
