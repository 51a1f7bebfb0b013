"""What the study makes of its runs: ratios, means over seeds, and the bandwidth below which a codec pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey import catalog
from covey.exchange.codecs.by_name import CODECS as KNOWN
from tests.late_imports import LateImport

study = LateImport("benchmarks.codec_study")  # which reads data sets
COST = {"encode": 0.001, "decode": 0.003, "sent": 0.0, "plain": 2e6}


def kept(file: Path | None = None) -> Any:
    found = study.Kept(file)
    for seed, (plain, coded) in enumerate(((0.80, 0.79), (0.82, 0.81))):
        found.keep(f"CNN | {study.PLAIN} | seed {seed}", {"score": plain, "bytes": 4e6})
        found.keep(f"CNN | int8 | seed {seed}", {"score": coded, "bytes": 1e6})
    found.keep("CNN | int8 | cost", COST)
    return found


def test_a_row() -> None:
    cells = study.row(kept(), "int8")
    assert cells[:3] == ["`int8`", "4", "80.0 ± 1.0 (-1.0)"]
    assert cells[-3:] == ["0.50", "1.50", "3 Gbit/s"], "1.5 of 2 MB are saved by 4 ms of work"
    assert study.row(kept(), study.PLAIN)[2] == "81.0 ± 1.0"


def test_it_goes_on_from_its_file(tmp_path: Path) -> None:
    kept(tmp_path / "kept.json")
    again = study.Kept(tmp_path / "kept.json")
    assert study.table(again) == study.table(kept()) and study.table(again).count("\n") == 3


def test_every_codec_is_studied() -> None:
    named = [codec.partition("(")[0] for codec in study.CODECS]
    assert sorted([*named, "auto"]) == sorted(KNOWN) and len(study.SUBJECTS) == 3
    for codec in study.CODECS:
        assert catalog.resolve(f"bsp + {codec}", 2).composition.codec.name == codec
