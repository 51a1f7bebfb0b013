from __future__ import annotations

import json
import re
import resource
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey import doctor
from covey.cli import app
from covey.engines.entries import ENGINES, engine, mpi, spark
from covey.engines.entries.lab import LabEngine
from covey.engines.entries.trouble import State, Trouble
from covey.errors import PlanError
from covey.names import option


def test_this_machine_can_train(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "doctor.json"
    shown = runner.invoke(app, ["doctor", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "ready to train" in shown.stdout
    found = {one["name"]: one for one in json.loads(file.read_text())}
    assert list(found) == [*doctor.CHECKS, *ENGINES], "each engine has its line"
    assert found["processes"]["state"] == "ok"


def test_dependencies_are_those_of_the_package() -> None:
    wanted = tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    assert dict(one.split(">=") for one in wanted) == doctor.DEPENDENCIES


@pytest.mark.parametrize("name", [name for name, kind in ENGINES.items() if kind.needs])
def test_a_missing_extra_comes_with_its_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package = ENGINES[name].needs
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(Trouble, match=f"{package} is not installed") as raised:
        ENGINES[name].check()
    assert raised.value.fix.endswith(f"pip install 'covey[{name}]'")
    assert any(one.startswith(package) for one in extras[name])
    with pytest.raises(
        PlanError, match=re.escape(f"{option('engine', name)} needs {package}: pip install 'covey[{name}]'")
    ):
        covey.fit("examples/digits.py", engine=name)


def test_spark_wants_a_new_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(engine, "find_spec", lambda name: True)
    with pytest.raises(Trouble, match="Java 11.0.2; PySpark needs 17") as raised:
        spark.SparkEngine.check()
    assert "openjdk-17" in raised.value.fix
    java.unlink()
    with pytest.raises(Trouble, match="no Java at"):
        spark.SparkEngine.check()


def test_mpi_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(code: str) -> str:
        raise Trouble("RuntimeError: cannot load MPI library", "")

    monkeypatch.setattr(engine, "find_spec", lambda name: True)
    monkeypatch.setattr(mpi, "in_child", broken)
    with pytest.raises(Trouble, match="finds no MPI library") as raised:
        mpi.MpiEngine.check()
    assert "pip install 'covey[mpi]'" in raised.value.fix


def test_a_lab_wants_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Trouble, match="only root") as raised:
        LabEngine.check()
    assert "sudo" in raised.value.fix


def test_a_missing_dependency_comes_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEPENDENCIES", {"rich": "13", "covey-does-not-exist": "2", "typer": "999"})
    with pytest.raises(Trouble) as raised:
        doctor.dependencies()
    assert raised.value.fix == "pip install 'covey-does-not-exist>=2' 'typer>=999'"


def test_a_long_temporary_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(Trouble, match="no socket can be made") as raised:
        doctor.sockets()
    assert "TMPDIR" in raised.value.fix


def test_how_many_files_may_be_open_decides_only_where_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(resource.RLIM_INFINITY, resource.RLIM_INFINITY), (64, 512)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.pop(0))
    assert doctor.open_files() == "as many as wanted"
    with pytest.raises(Trouble, match="at most 64 at once") as raised:
        doctor.open_files()
    assert raised.value.fix == "ulimit -n 512"


def test_a_child_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CHILD", "raise SystemExit('zmq is broken here')")
    monkeypatch.setattr(doctor, "PATIENCE", 1.0)
    with pytest.raises(Trouble, match="did not answer") as raised:
        doctor.processes()
    assert "zmq is broken here" in raised.value.fix


@pytest.mark.parametrize("state", ["missing", "failed"])
@pytest.mark.parametrize(("essential", "code"), [(True, 1), (False, 0)])
def test_only_the_essential_decides(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, essential: bool, code: int, state: State
) -> None:
    def broken() -> str:
        raise Trouble("it is broken", "mend it", state)

    def surprising() -> str:
        raise RuntimeError("nobody expected this")

    checks = {"python": (True, doctor.python), "thing": (essential, broken), "other": (False, surprising)}
    monkeypatch.setattr(doctor, "checks", lambda: checks)
    shown = runner.invoke(app, ["doctor"])
    assert shown.exit_code == code
    assert "it is broken" in shown.stdout and "mend it" in shown.stdout and "nobody expected this" in shown.stdout
    quiet = runner.invoke(app, ["doctor", "--quiet"])
    assert quiet.exit_code == code
    assert ("mend it" in quiet.output) == essential
