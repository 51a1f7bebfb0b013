"""A long fuzz under atheris, which CI does not install: `python -m tests.safety.fuzz messages -runs=1000000 CORPUS`.

Without a folder it begins with the seeds of `tests/safety/corpus`, and keeps what it finds in memory only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["covey", "tomllib"]):
    from tests.safety.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


def mark() -> Callable[[], None]:
    """A place in the code of its own, so that passing it is news to the fuzzer."""

    def passed() -> None:
        pass

    return atheris.instrument_func(passed)  # type: ignore[no-any-return]


MARKS = [mark() for _ in range(1024)]


def run(name: str, data: bytes) -> None:
    for line in TARGETS[name](data):
        MARKS[crc32(re.sub("[0-9]+", "", line).encode(errors="replace")) % len(MARKS)]()


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    seeds = [] if any(not word.startswith("-") for word in given) else [str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *given, *seeds], lambda data: run(name, data))
    atheris.Fuzz()
