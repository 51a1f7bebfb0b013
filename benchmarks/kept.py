"""What a benchmark has found so far, so that it can be stopped and go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey import atomic_file


class Kept:
    """Results by what was run, in a file after every run; what is there is not run again."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.found: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        self.found[key] = found
        if self.file:
            atomic_file.write(self.file, json.dumps(self.found, indent=1) + "\n")
