"""What is released runs without the repository: the wheel, in an environment of its own, in an empty folder."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from covey.version import __version__

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with a wheel that is built from the sdist as a stranger would."""
    folder = tmp_path_factory.mktemp("built")
    builder = folder / "builder"
    run(sys.executable, "-m", "venv", str(builder))
    run(str(builder / "bin" / "python"), "-m", "pip", "install", "--quiet", "build", "hatchling")
    run(str(builder / "bin" / "python"), "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


def run(*words: str, cwd: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which would find the repository
    done = subprocess.run(words, check=False, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def clean(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with the wheel; what it depends on is lent, as torch is large."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    places = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(places) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_package_says_what_it_is(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        told = email.message_from_bytes(archive.read(name))
        held = archive.namelist()
    assert told["Version"] == __version__ and told["License-Expression"] == "Apache-2.0"
    assert told["Description-Content-Type"] == "text/markdown" and "# covey" in told.get_payload()
    assert told["Author"] or told["Author-email"]
    assert "Programming Language :: Python :: 3.13" in told.get_all("Classifier")
    assert "covey/py.typed" in held and "covey/cli/demo/task.py" in held
    assert not [name for name in held if name.startswith("tests")]


def test_the_source_archive_has_what_it_takes_to_test_it(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        held = {name.partition("/")[2] for name in file.getnames()}
    assert {"Makefile", "constraints.txt", "README.md", "CHANGELOG.md", "LICENSE", "website/mkdocs.yml"} <= held
    assert {"tests/test_package.py", "examples/digits.py", "docs/index.md"} <= held


def test_the_demo_runs_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    told = json.loads(run(str(clean), "-m", "covey", "demo", "--json", "-", cwd=tmp_path))
    assert len(told["strategies"]) == 5 and told["verdict"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    where = run(str(clean), "-c", "import covey; print(covey.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where, "the wheel was tried, not the repository"
