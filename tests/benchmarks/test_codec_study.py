"""What the study makes of its runs: ratios, means over seeds, and the bandwidth below which a codec pays."""

from __future__ import annotations

from pathlib import Path

from benchmarks.codec_study import CODECS, PLAIN, SUBJECTS, Kept, row, table
from covey import catalog
from covey.exchange.codecs.by_name import CODECS as KNOWN

COST = {"encode": 0.001, "decode": 0.003, "sent": 0.0, "plain": 2e6}


def kept(file: Path | None = None) -> Kept:
    found = Kept(file)
    for seed, (plain, coded) in enumerate(((0.80, 0.79), (0.82, 0.81))):
        found.keep(f"CNN | {PLAIN} | seed {seed}", {"score": plain, "bytes": 4e6})
        found.keep(f"CNN | int8 | seed {seed}", {"score": coded, "bytes": 1e6})
    found.keep("CNN | int8 | cost", COST)
    return found


def test_a_row() -> None:
    cells = row(kept(), "int8")
    assert cells[:3] == ["`int8`", "4", "80.0 ± 1.0 (-1.0)"]
    assert cells[-3:] == ["0.50", "1.50", "3 Gbit/s"], "1.5 of 2 MB are saved by 4 ms of work"
    assert row(kept(), PLAIN)[2] == "81.0 ± 1.0"


def test_it_goes_on_from_its_file(tmp_path: Path) -> None:
    kept(tmp_path / "kept.json")
    again = Kept(tmp_path / "kept.json")
    assert table(again) == table(kept()) and table(again).count("\n") == 3


def test_every_codec_is_studied() -> None:
    named = [codec.partition("(")[0] for codec in CODECS]
    assert sorted([*named, "auto"]) == sorted(KNOWN) and len(SUBJECTS) == 3
    for codec in CODECS:
        assert catalog.resolve(f"bsp + {codec}", 2).composition.codec.name == codec
