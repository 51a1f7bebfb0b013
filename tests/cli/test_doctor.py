from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import doctor
from covey.cli import app


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


def test_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in ("ray", "pyspark", "mpi4py"):
        try:
            doctor.CHECKS[package][1]()
        except doctor.Trouble as trouble:
            named = re.search(r"covey\[(\w+)\]", trouble.fix)
            assert named and any(one.startswith(package) for one in extras[named[1]])


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
