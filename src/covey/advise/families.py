"""The survey's selection criteria (Langer et al. 2020, Table 2) as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from covey.strategy import Taxonomy

Repeats = Literal["trivial", "easy", "medium", "hard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row of the table; numbers are its ranks, 1 the least."""

    large_data: bool  # needs a large dataset that is dealt out evenly
    balanced_model: bool  # needs a model that can be cut into equal parts
    rate: str  # what the best learning rate does as the cluster grows
    overlap: int  # how hard it is to compute and to exchange at once
    knobs: int  # further hyper-parameters
    resilience: int  # to machines that are slow or fail
    repeats: Repeats  # how easily a run is repeated exactly


def _row(large_data: bool, balanced_model: bool, rate: str, numbers: str, repeats: Repeats) -> Family:
    overlap, knobs, resilience = (int(digit) for digit in numbers)
    return Family(
        large_data=large_data, balanced_model=balanced_model, rate=rate, overlap=overlap, knobs=knobs,
        resilience=resilience, repeats=repeats,
    )  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    #                                large  balanced rate       overlap, knobs, resilience
    "model":                    _row(False, True,  "higher",       "131", "trivial"),
    "model, pipelined":         _row(False, True,  "lower",        "242", "medium"),
    "central, synchronous":     _row(False, False, "higher",       "111", "easy"),
    "central, asynchronous":    _row(True,  False, "lower",        "323", "hard"),
    "decentral, synchronous":   _row(True,  False, "likely lower", "122", "easy"),
    "decentral, asynchronous":  _row(True,  False, "lower",        "233", "hard"),
}  # fmt: skip


def name_of(place: Taxonomy) -> str:
    """The row of a strategy; what is bounded or soft lets workers drift apart, and counts as asynchronous."""
    kept = "synchronous" if place.scheduling == "synchronous" else "asynchronous"
    return f"{'central' if place.optimization == 'central' else 'decentral'}, {kept}"


def merit(family: Family, spread: float, must_repeat: bool) -> float:
    """The survey's preferences as one number, to choose between what is equally fast."""
    hard = family.repeats == "hard" and must_repeat
    return -0.1 * (family.overlap + family.knobs) + family.resilience * spread - (1.0 if hard else 0.0)
