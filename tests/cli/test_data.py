"""covey data: pack, verify, show."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from covey.cli import app
from covey.model.build import data_of
from covey.task import load_task

DIGITS = "examples/digits.py"


def told(runner: CliRunner, *words: str | Path, code: int = 0) -> str:
    done = runner.invoke(app, ["data", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def test_pack_show_verify(runner: CliRunner, tmp_path: Path) -> None:
    place = tmp_path / "shards"
    told(runner, "pack", DIGITS, place, "--format", "tar", "--shard-size", "100kB", "--json", tmp_path / "packed.json")
    packed = json.loads((tmp_path / "packed.json").read_text())
    assert packed["format"] == "tar" and packed["shards"] > 2 and packed["samples"] > 1000
    shown = told(runner, "show", place, "--sample", "3")
    x, y = data_of(load_task(DIGITS))[3]
    first = ", ".join(f"{number:.4g}" for number in x.flatten()[:6].tolist())
    assert f"column x.npy float32 (8, 8): {first}, …" in shown and f"column y.cls int {int(y)}" in shown
    assert "damaged      0" in told(runner, "verify", place)

    told(runner, "pack", place, tmp_path / "other", "--format", "mds")
    assert "column y.cls int " in told(runner, "show", tmp_path / "other", "--format", "mds", "--sample", "3")

    file = place / "shard.00001.tar"
    data = bytearray(file.read_bytes())
    data[3000] ^= 1
    file.write_bytes(data)
    said = told(runner, "verify", place, code=1)
    assert "shard 'shard.00001.tar' is damaged, or changed" in said and "1 of" in said


def test_an_index_is_written_for_shards_that_have_none(runner: CliRunner, tmp_path: Path) -> None:
    place = tmp_path / "shards"
    told(runner, "pack", DIGITS, place, "--format", "safetensors")
    kept = (place / "shards.json").read_bytes()
    (place / "shards.json").unlink()
    assert "with hashes  0" in told(runner, "verify", place, "--format", "safetensors")
    assert "with hashes  1" in told(runner, "verify", place, "--format", "safetensors", "--write-index")
    assert (place / "shards.json").read_bytes() == kept


def test_damaged_shards_are_not_written_into_an_index_as_sound_ones(runner: CliRunner, tmp_path: Path) -> None:
    place = tmp_path / "shards"
    told(runner, "pack", DIGITS, place, "--format", "tar")
    index, shard = place / "shards.json", place / "shard.00000.tar"
    kept, data = index.read_bytes(), bytearray(shard.read_bytes())
    data[3000] ^= 1
    shard.write_bytes(data)
    assert "cannot be trained on" in told(runner, "verify", place, "--write-index", code=1)
    assert index.read_bytes() == kept
    told(runner, "verify", place, code=1)


def test_what_cannot_be_done_is_said(runner: CliRunner, tmp_path: Path) -> None:
    told(runner, "pack", DIGITS, tmp_path / "shards", "--format", "safetensors")
    assert "--sample 5000: there are" in told(runner, "show", tmp_path / "shards", "--sample", "5000", code=2)
    assert "is not empty" in told(runner, "pack", DIGITS, tmp_path / "shards", code=2)
    assert "is not a folder or a URL" in told(runner, "pack", DIGITS, tmp_path / "new", "--from", "tar", code=2)
    assert "unknown format 'tra'" in told(runner, "show", tmp_path / "shards", "--format", "tra", code=2)


def test_names_cannot_command_the_terminal(runner: CliRunner, tmp_path: Path) -> None:
    header = json.dumps({"\x1b]0;x\x07": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "column ?]0;x? " in told(runner, "show", tmp_path, "--format", "safetensors")
    kept = tmp_path / "cache" / ("a" * 64)
    kept.mkdir(parents=True)
    kept.parent.chmod(0o700)
    (kept / "place").write_text("\x1b]0;x\x07")
    assert "?]0;x?" in told(runner, "cache", "show", "--cache", kept.parent)


def test_a_beginning_that_several_cached_sets_have_removes_none(runner: CliRunner, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("ab", "ac", "bc"):
        (cache / name.ljust(64, "0")).mkdir(parents=True)
    cache.chmod(0o700)

    def left() -> list[str]:
        return sorted(path.name[:2] for path in cache.iterdir() if path.is_dir())

    for begin in ("a", "d"):
        said = told(runner, "cache", "clear", begin, "--cache", cache, code=2)
        assert f"{begin}: one set must have a name that begins like this" in " ".join(said.split())
        assert left() == ["ab", "ac", "bc"]
    assert "removed 1 sets" in told(runner, "cache", "clear", "ac", "--cache", cache) and left() == ["ab", "bc"]
    assert "removed 2 sets" in told(runner, "cache", "clear", "--cache", cache) and left() == []
