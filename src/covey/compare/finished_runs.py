"""Which runs of a comparison are done already? Those in the folder of `--continue`, one file each."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from covey import atomic_file
from covey.compare.cases import Case
from covey.compare.outcomes import ComparedRun, Comparison
from covey.decoding import UNREADABLE, WireFormat
from covey.errors import PlanError, WireError

FORMAT = 2  # of the runs in a folder: those of 1 were scored less often
READABLE = 100  # characters of a SPEC in the name of a file

_outcomes: WireFormat[ComparedRun] = WireFormat("outcome of a run", ComparedRun, "json")


class FinishedRuns:
    """The finished runs of one comparison in a folder; while its block lasts, no other comparison uses the folder."""

    def __init__(self, folder: Path, whole: Comparison, seed: int, options: dict[str, Any], source: str = "") -> None:
        self.folder, self._lock = folder, -1
        budget = {name: options.get(name) for name in ("epochs", "steps", "servers", "threads", "link_rate")}
        mine = {name: getattr(whole, name) for name in ("task", "workers", "engine", "until")}
        mine |= {"seed": seed, "format": FORMAT}
        mine |= {name: value for name, value in budget.items() if value is not None}
        if source:
            mine["source"] = source
        if options.get("scores", 1) > 1:
            mine["scores"] = options["scores"]
        if options.get("cluster"):
            mine["cluster"] = repr(options["cluster"])
        self.asked = mine

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
                f"--continue {self.folder} cannot hold a comparison: {error.strerror}; choose another folder"
            ) from None
        except PlanError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _check(self) -> None:
        """Refuse a folder with the runs of another comparison; an empty one becomes this one's."""
        place = self.folder / "comparison.json"
        if not place.exists():
            atomic_file.write(place, json.dumps(self.asked, indent=1) + "\n")
            return
        try:
            theirs = msgspec.convert(json.loads(place.read_bytes()), dict[str, Any])
        except UNREADABLE as error:
            raise PlanError(
                f"{place} does not say which comparison this folder holds ({error}): remove that file if its runs are "
                "of this very comparison, or choose another folder"
            ) from None
        if theirs.get("format") != FORMAT:
            raise PlanError(
                f"{self.folder} holds runs of another version of covey, which were scored differently: choose another "
                "folder"
            )
        if theirs.get("task") == self.asked["task"] and theirs.get("source") != self.asked.get("source"):
            raise PlanError(
                f"{self.folder} holds a comparison of {theirs['task']} as that file was before it changed (or of "
                "another file of that name): choose another folder, or put the file back"
            )
        for name in sorted({*self.asked, *theirs}):
            if self.asked.get(name) != theirs.get(name):
                raise PlanError(
                    f"{self.folder} holds a comparison with {name} {theirs.get(name)!r}, this one has "
                    f"{self.asked.get(name)!r}: choose another folder, or ask for the same"
                )

    def read(self, case: Case) -> ComparedRun | None:
        """A run that was finished before; one that failed, was disturbed, or whose file is torn, is done again."""
        place = self._place(case)
        with suppress(FileNotFoundError, WireError):
            outcome = _outcomes.read(place.read_bytes(), place)
            same = (outcome.spec, outcome.rate, outcome.repeat) == (case.spec, case.rate, case.repeat)
            return outcome if same and outcome.result is not None and not outcome.disturbed else None
        return None

    def write(self, case: Case, outcome: ComparedRun) -> None:
        atomic_file.write(self._place(case), msgspec.json.encode(outcome).decode())

    def _place(self, case: Case) -> Path:
        """A name that a person can read, and the digest of what it cannot hold, such as the path of a file."""
        name = re.sub(r"[^a-z0-9=.+_-]+", "_", case.spec).strip("_")[:READABLE]
        digest = hashlib.sha256(case.spec.encode()).hexdigest()[:16]
        return self.folder / f"{name}-{digest}@{case.rate!r}#{case.repeat}.json"
