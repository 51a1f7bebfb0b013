"""Tar files that say one thing and hold another: each is read as tar reads it, or refused by name."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest

import covey
from covey.errors import ShardError
from tests.data.storage.test_hostile_shards import everything


def pax(files: dict[str, bytes], headers: dict[str, str], kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar file whose first member has these extended headers."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers, info.type = len(data), headers, kind
            made.addfile(info, io.BytesIO(data))
            headers, kind = {}, tarfile.REGTYPE
    return file.getvalue()


@pytest.mark.parametrize("form", ["gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"])
def test_a_sparse_file_is_refused_by_its_name(tmp_path: Path, form: str) -> None:
    if shutil.which("tar") is None:
        pytest.skip("no tar")
    with (tmp_path / "0.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    (tmp_path / "set").mkdir()
    how = ["--format=gnu"] if form == "gnu" else ["--format=posix", form]
    subprocess.run(["tar", "-S", *how, "-cf", "set/a.tar", "0.bin"], cwd=tmp_path, check=True)
    assert (tmp_path / "set/a.tar").stat().st_size < 1 << 19, "packed"
    with pytest.raises(ShardError, match="shard 'a.tar' has '0.bin', a sparse file"):
        everything(tmp_path / "set", "tar")


def test_a_record_of_pax_is_as_long_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(pax({"0.txt": b"7"}, {"comment": "x\n17 path=evil.cls"}))
    assert everything(tmp_path, "tar") == [{"txt": "7"}]
    whole = pax({"0.txt": b"7"}, {"comment": "xyz"})
    assert whole[512:516] == b"15 c"
    for length in (b"99", b"14", b"00", b"-1", b"1x"):
        (tmp_path / "a.tar").write_bytes(whole[:512] + length + whole[514:])
        with pytest.raises(ShardError, match="shard 'a.tar' .*its extended header has no record at byte 0"):
            everything(tmp_path, "tar")


def test_the_long_name_of_a_folder_is_not_that_of_the_next_file(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(pax({"d": b"", "0.txt": b"one"}, {"path": "long/" * 40}, tarfile.DIRTYPE))
    assert everything(tmp_path, "tar") == [{"txt": "one"}]


def test_what_a_shard_takes_grows_with_its_files_not_with_samples_times_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(pax({f"{number}.c{number}": b"" for number in range(500)}, {}))
    tracemalloc.start()
    data = covey.data.remote(tmp_path, "tar")
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == 500 and data[499] == {"c499": b""}
    assert taken < 4 << 20, "a table of 250,000 cells takes more"
