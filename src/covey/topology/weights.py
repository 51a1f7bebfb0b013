"""Graphs from files: rows of mixing weights, or TOML with `weights = [[...], ...]`."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from covey.decoding import named_text
from covey.errors import PlanError, WireError

Weights = dict[int, dict[int, float]]


def read_weights(file: str, size: int) -> Weights:
    """The weights of a file, without the zeros; refused when they are not `size` rows of `size` sensible numbers."""
    asked = f"matrix(file={file})"
    if not file:
        raise PlanError("matrix needs file=...: rows of numbers (.csv, .txt), or TOML with weights = [[...], ...]")
    try:
        text = named_text(Path(file))
    except (OSError, UnicodeDecodeError, WireError) as error:
        raise PlanError(f"{asked}: cannot be read: {error}") from None
    rows = _from_toml(asked, text) if file.endswith(".toml") else _from_lines(asked, text)
    widths = {len(row) for row in rows}
    if len(rows) != size or widths != {size}:
        found = f"{len(rows)} rows of {' or '.join(map(str, sorted(widths)))} numbers"
        raise PlanError(f"{asked}: {found}; {size} workers need {size} rows of {size}")
    for number, row in enumerate(rows):
        for value in row:
            if not (math.isfinite(value) and value >= 0):
                raise PlanError(f"{asked}: row {number} holds {value:g}; weights are numbers from 0 on")
    return {
        rank: {peer: value for peer, value in enumerate(row) if value or peer == rank} for rank, row in enumerate(rows)
    }


def _from_lines(asked: str, text: str) -> list[list[float]]:
    """One row a line, its numbers apart by commas or blanks; what follows a # is a remark."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        try:
            rows += [[_number(word) for word in words]] if words else []
        except ValueError:
            raise PlanError(f"{asked}: line {number} is not a row of numbers: {line.strip()[:60]!r}") from None
    return rows


def _number(word: str) -> float:
    """`0.25` or `1/3`: a third cannot be written out, and every row and column has to sum to 1."""
    above, _, below = word.partition("/")
    try:
        return float(above) / float(below) if below else float(word)
    except ZeroDivisionError:
        raise ValueError(word) from None


def _from_toml(asked: str, text: str) -> list[list[float]]:
    try:
        rows: Any = tomllib.loads(text).get("weights")
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{asked}: not a TOML file: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise PlanError(f"{asked}: weights = [[...], ...] is missing: a list of rows")
    try:
        return [[_number(str(value)) for value in row] for row in rows]
    except ValueError:
        raise PlanError(f'{asked}: weights must be numbers, or fractions such as "1/3"') from None
