"""A moment of the fuzz that `tests/safety/fuzz.py` does at length, from the same seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.safety.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
SEEDS = {name: [path.read_bytes() for path in sorted((CORPUS / name).iterdir())] for name in TARGETS}
SMALL = 64 << 10  # bytes of all seeds together


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with bytes changed, cut out, repeated or put in; or two of them, one behind the other."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 16)))
        data[at:end] = draw(st.sampled_from([bytes(data[at:end]) * 2, b""]) | st.binary(max_size=8))
    return bytes(data) + draw(st.sampled_from([b"", *seeds]))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=400, deadline=None)
@given(draw=st.data())
def test_nothing_breaks(name: str, draw: st.DataObject) -> None:
    TARGETS[name](draw.draw(st.binary(max_size=300) | damaged(SEEDS[name])))


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_reach_what_they_should(name: str) -> None:
    """Fuzzing from seeds that are refused at the door would prove little."""
    stories = [TARGETS[name](seed) for seed in SEEDS[name]]
    if name in ("messages", "says"):
        assert all(any(word.isidentifier() for word in story) for story in stories)


def test_the_corpus_is_small() -> None:
    assert sum(len(seed) for seeds in SEEDS.values() for seed in seeds) < SMALL
