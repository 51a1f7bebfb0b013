"""How a task's file comes to a host that does not have it: with the Python code beside it, and nothing else."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from covey.engines import handover
from covey.engines.cluster.words import Letter
from covey.errors import PlanError

MOST = 32 << 20  # bytes of code; more is no code


def packed(task: str) -> bytes:
    """The file of `path/file.py:name`, the modules beside it and the packages below, as a zip."""
    if not task:
        return b""
    folder = file_of(task).parent
    data, size = io.BytesIO(), 0
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in code_in(folder):
            size += path.stat().st_size
            if size > MOST:
                raise PlanError(f"{folder} holds more than {MOST >> 20} MB of Python code: give the task a folder")
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes())  # same bytes each time
    return data.getvalue()


def code_in(folder: Path) -> Iterator[Path]:
    """Python files of a folder, and of the packages in it."""
    yield from sorted(path for path in folder.glob("*.py") if path.is_file())
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        yield from code_in(inner)


def unpacked(archive: bytes, folder: Path) -> Path:
    """The folder with the code in it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as code:
        code.extractall(folder)  # zipfile keeps every name inside the folder
    return folder


def same_here(task: str, archive: bytes) -> bool:
    """Whether this host has the very file at the very place."""
    path = file_of(task)
    with zipfile.ZipFile(io.BytesIO(archive)) as code:
        return path.is_file() and path.read_bytes() == code.read(path.name)


def moved(letter: Letter, handed: bytes, folder: Path) -> tuple[Letter, bytes]:
    """The letter and the parcel for a host where the task's file is in this folder."""
    path = file_of(letter.task)
    task = str(folder / path.name) + letter.task.removeprefix(str(path))
    parcel = msgspec.structs.replace(handover.opened(handed), file=task)
    return msgspec.structs.replace(letter, task=task), handover.closed(parcel)


def file_of(task: str) -> Path:
    """The file in `path/file.py:name`."""
    path, colon, name = task.rpartition(":")
    return Path(path) if colon and name.isidentifier() else Path(task)
