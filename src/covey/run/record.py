"""How is a run recorded? In a folder of its own: what was asked, a journal while it runs, the result at its end."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from covey import atomic_file, faults
from covey.errors import CheckpointError, PlanError, SaveError
from covey.names import option, task_file
from covey.observe.facts import FACTS, JOURNAL, RESULT, SCHEMA, RecordFacts, RecordKind, RunFacts
from covey.observe.journal import Journal
from covey.observe.result import Result

USUAL, VARIABLE = "runs", "COVEY_RUNS"


@dataclass(frozen=True)
class RecordFolder:
    """The folder of one record, being written."""

    path: Path
    journal: Journal
    say: Callable[[str], None] = lambda line: None

    def conclude(self, result: Result) -> None:
        """Keep the result; a disk that is full takes the record away, not the result."""
        if self.keep(result.to_json()):
            result.keep_record(self.path)
        self.journal.end(result.stopped)

    def keep(self, text: str) -> bool:
        """Write the result down; whether that was possible."""
        try:
            atomic_file.write(self.path / RESULT, text, ours=True)
        except OSError as error:
            line = f"the result is not in the record {self.path}: {error.strerror or error}"
            self.journal.say(line)
            self.say(line)
            return False
        return True


def folder_of_runs(wanted: str | os.PathLike[str] | Literal[False] | None) -> Path | None:
    """Where records go: where a person says, or into COVEY_RUNS, or into `runs`; None: nowhere."""
    if wanted is None:
        wanted = os.environ.get(VARIABLE, USUAL)
    if wanted is False or wanted == "":
        return None
    if Path(wanted).exists() and not Path(wanted).is_dir():
        raise PlanError(f"{option('runs', wanted)} is a file; name a folder")
    return Path(wanted)


@contextmanager
def recording(
    runs: Path, known: RunFacts, task: str, say: Callable[[str], None], cluster: str = "",
    kind: RecordKind = "run",
) -> Iterator[RecordFolder | None]:  # fmt: skip
    """A new record; None where no folder can be made. Whatever is raised inside is its end; a refusal leaves none."""
    made = _made(runs, known, task, cluster, kind, say)
    if made is None:
        yield None
        return
    try:
        yield made
    except KeyboardInterrupt:
        made.journal.end("interrupted")
        raise
    except BaseException as error:
        if isinstance(error, PlanError | CheckpointError) and not made.journal.trained:
            made.journal.close()
            shutil.rmtree(made.path, ignore_errors=True)  # it was refused: there was no run
            raise
        if isinstance(error, SaveError):  # the run has a result all the same
            made.keep(error.result.to_json())
        made.journal.end("failed", faults.words(error) if isinstance(error, Exception) else type(error).__name__)
        raise
    finally:
        made.journal.close()


def _made(
    runs: Path, known: RunFacts, task: str, cluster: str, kind: Any, say: Callable[[str], None]
) -> RecordFolder | None:
    began, path = time.gmtime(), None
    try:
        runs.mkdir(parents=True, exist_ok=True)
        word = _word(known.strategy) if kind == "run" else kind
        path = runs / f"{time.strftime('%Y%m%d-%H%M%S', began)}-{word}-{secrets.token_hex(3)}"
        path.mkdir()
        source, commit = origin_of_task(task)
        written = RecordFacts(
            schema=SCHEMA, id=path.name, began=time.strftime("%Y-%m-%dT%H:%M:%SZ", began), kind=kind, run=known,
            source=source, commit=commit, cluster=cluster,
        )  # fmt: skip
        text = msgspec.json.format(msgspec.json.encode(written), indent=1).decode()
        atomic_file.write(path / FACTS, f"{text}\n", ours=True)
    except OSError as error:
        say(f"this run is not recorded: {runs}: {error.strerror or error}")
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        return None
    return RecordFolder(path, Journal(path / JOURNAL, say), say)


def _word(strategy: str) -> str:
    """The strategy's name, as a part of a file's name."""
    found = re.match(r"[a-z][a-z0-9_]*", strategy)
    return found[0][:40] if found else "run"


def origin_of_task(task: str) -> tuple[str, str]:
    """The hash of the task's file, and the commit that it belongs to; empty where there is none."""
    if not task:
        return "", ""
    file = task_file(task)
    return hashlib.sha256(file.read_bytes()).hexdigest(), _commit(file.resolve().parent)


def _commit(folder: Path) -> str:
    """What HEAD is, read from git's own files; a worktree's `.git` is a file that names its folder."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.is_file():
            git = place / git.read_text().removeprefix("gitdir:").strip()
        if (git / "HEAD").is_file():
            head = (git / "HEAD").read_text().strip()
            return _resolved(git, head.removeprefix("ref:").strip()) if head.startswith("ref:") else head
    return ""


def _resolved(git: Path, ref: str) -> str:
    common = git / (git / "commondir").read_text().strip() if (git / "commondir").is_file() else git
    if (common / ref).is_file():
        return (common / ref).read_text().strip()
    packed = (common / "packed-refs").read_text().splitlines() if (common / "packed-refs").is_file() else []
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
