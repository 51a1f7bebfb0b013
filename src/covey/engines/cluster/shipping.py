"""Sends a task's file, with the Python code beside it, to hosts that do not have it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from covey.engines.cluster.site_messages import SiteConfig
from covey.errors import PlanError
from covey.names import task_file

MOST = 32 << 20  # bytes of code; more is no code


def with_code(configs: Sequence[SiteConfig]) -> list[SiteConfig]:
    """The configs, with the task's code for hosts that may not have it."""
    code = packed(configs[0].task) if configs[0].task else b""
    return [msgspec.structs.replace(config, code=code) for config in configs]


def packed(task: str) -> bytes:
    """The file of `path/file.py:name`, the modules beside it and the packages below, as a zip."""
    folder = task_file(task).parent
    data, size = io.BytesIO(), 0
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in code_in(folder):
            size += path.stat().st_size
            if size > MOST:
                raise PlanError(
                    f"{folder} holds more than {MOST >> 20} MB of Python code: move the task into a folder of its own"
                )
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes())  # same bytes each time
    return data.getvalue()


def code_in(folder: Path) -> Iterator[Path]:
    """Python files of a folder, and of the packages in it."""
    yield from sorted(path for path in folder.glob("*.py") if path.is_file())
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        yield from code_in(inner)


def settled(config: SiteConfig, handed: bytes, folder: Path) -> tuple[SiteConfig, bytes]:
    """The config, and what was handed over, for this host: if it lacks the task's file, with the one that came along.

    The folder is one that goes with the run.
    """
    if not config.code:
        return config, handed
    path = task_file(config.task)
    with zipfile.ZipFile(io.BytesIO(config.code)) as code:
        if path.is_file() and path.read_bytes() == code.read(path.name):
            return config, handed  # with the data that may lie beside it
        code.extractall(folder)  # zipfile keeps every name inside the folder
    task = str(folder / path.name) + config.task.removeprefix(str(path))
    from covey.engines import handover  # imports torch, which other sites need not

    parcel = msgspec.structs.replace(handover.opened(handed), file=task)
    return msgspec.structs.replace(config, task=task), handover.closed(parcel)
