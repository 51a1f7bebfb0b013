"""Which runs of a comparison are done already? Those in the folder of `--continue`, one file each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import msgspec

from covey import atomic_file
from covey.compare.cases import Case
from covey.compare.outcomes import ComparedRun, Comparison
from covey.decoding import UNREADABLE, WireFormat, file_bytes
from covey.errors import PlanError, WireError
from covey.names import option
from covey.simulate import Cluster

FORMAT = 3  # of the runs in a folder: those of 1 and 2 were scored less often, and a single score counted
BUDGET = (
    "epochs", "steps", "servers", "preparers", "threads", "link_rate", "scores", "score_every", "confirm", "best",
    "patience",
)  # fmt: skip
MANY = 4  # differences that a refusal lists
LONG = 60  # characters of a value that it shows
READABLE = 100  # characters of a SPEC in the name of a file

LARGE = 1 << 20  # bytes that say which comparison a folder holds

_outcomes: WireFormat[ComparedRun] = WireFormat("outcome of a run", ComparedRun, "json")


class FinishedRuns:
    """The finished runs of one comparison in a folder; while its block lasts, no other comparison uses the folder."""

    def __init__(self, folder: Path, whole: Comparison, seed: int, options: dict[str, Any], source: str = "") -> None:
        self.folder, self._lock, self._new = folder, -1, False
        self.asked = json.loads(json.dumps(_asked(whole, seed, options, source)))

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check()
        except BlockingIOError:
            self.__exit__()
            raise PlanError(
                f"another comparison keeps its runs in {self.folder}: wait for its end, or choose another folder"
            ) from None
        except OSError as error:
            self.__exit__()
            raise PlanError(
                f"{option('folder', self.folder)} cannot hold a comparison: {error.strerror}; choose another folder"
            ) from None
        except PlanError:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if self._new and kind is not None and issubclass(kind, PlanError):
            (self.folder / "comparison.json").unlink(missing_ok=True)  # nothing ran: the folder is free for another
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _check(self) -> None:
        """Refuse a folder with the runs of another comparison; an empty one becomes this one's."""
        place = self.folder / "comparison.json"
        if not os.path.lexists(place):
            self._new = True
            atomic_file.write(place, json.dumps(self.asked, indent=1) + "\n", ours=True)
            return
        try:
            theirs = msgspec.convert(json.loads(file_bytes(place, LARGE)), dict[str, Any])
        except (WireError, *UNREADABLE) as error:
            raise PlanError(
                f"{place} does not say which comparison this folder holds ({error}): remove that file if its runs are "
                "of this very comparison, or choose another folder"
            ) from None
        if theirs.get("format") != FORMAT or "cluster" in theirs:
            raise PlanError(
                f"{self.folder} holds runs of another version of covey, which were scored differently: choose another "
                "folder"
            )
        if theirs.get("task") == self.asked["task"] and theirs.get("source") != self.asked.get("source"):
            raise PlanError(
                f"{self.folder} holds a comparison of {self.asked['task']} as that file was before it changed (or of "
                "another file of that name): choose another folder, or put the file back"
            )
        names = sorted({*self.asked, *theirs} - {"source"}, key=lambda name: (name not in self.asked, name))
        unlike = [name for name in names if self.asked.get(name) != theirs.get(name)]
        if unlike:
            pairs = [f"{_told(name)} {_told(theirs.get(name))}, now {_told(self.asked.get(name))}" for name in unlike]
            told = "; ".join(pairs[:MANY]) + (f"; and {len(pairs) - MANY} more" if pairs[MANY:] else "")
            raise PlanError(
                f"{self.folder} holds another comparison ({told}): ask for the same, or choose another folder"
            )

    def read(self, case: Case) -> ComparedRun | None:
        """A run that was finished before; one that failed, was disturbed, or whose file is torn, is done again."""
        place = self._place(case)
        with suppress(FileNotFoundError, WireError):
            outcome = _outcomes.read_file(place)
            same = (outcome.spec, outcome.rate, outcome.repeat) == (case.spec, case.rate, case.repeat)
            return outcome if same and outcome.result is not None and not outcome.disturbed else None
        return None

    def write(self, case: Case, outcome: ComparedRun) -> None:
        atomic_file.write(self._place(case), msgspec.json.encode(outcome).decode(), ours=True)

    def _place(self, case: Case) -> Path:
        """A name that a person can read, and the digest of what it cannot hold, such as the path of a file."""
        name = re.sub(r"[^a-z0-9=.+_-]+", "_", case.spec).strip("_")[:READABLE]
        digest = hashlib.sha256(case.spec.encode()).hexdigest()[:16]
        return self.folder / f"{name}-{digest}@{case.rate!r}#{case.repeat}.json"


def _asked(whole: Comparison, seed: int, options: dict[str, Any], source: str) -> dict[str, Any]:
    """What makes a comparison another one, by name."""
    mine = {name: getattr(whole, name) for name in ("task", "workers", "engine", "until")}
    mine |= {"seed": seed, "format": FORMAT}
    mine |= {name: options[name] for name in BUDGET if options.get(name) is not None}
    if source:
        mine["source"] = source
    if cluster := options.get("cluster"):
        usual = _flat("cluster", asdict(Cluster()))
        mine |= {name: value for name, value in _flat("cluster", asdict(cluster)).items() if usual.get(name) != value}
    return mine


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The numbers and words inside a value, each by its path."""
    if isinstance(value, dict):
        return {path: leaf for key, inner in value.items() for path, leaf in _flat(f"{name}.{key}", inner).items()}
    if isinstance(value, list | tuple) and any(isinstance(inner, dict) for inner in value):
        return _flat(name, dict(enumerate(value)))
    return {name: list(value) if isinstance(value, tuple) else value}


def _told(value: object) -> str:
    """A value in one short line; a folder may hold anything."""
    if value is None:
        return "not given"
    return value if isinstance(value, str) and value.isprintable() and len(value) <= LONG else f"{value!r:.{LONG}}"
