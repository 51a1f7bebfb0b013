"""Files that others wrote are read up to a limit, and only plain ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.decoding import file_bytes, named_text
from covey.errors import WireError


def test_a_file_as_large_as_the_limit_is_read_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert file_bytes(file, 5) == b"12345"
    with pytest.raises(WireError, match="has 5 bytes; the limit is 4"):
        file_bytes(file, 4)


def test_links_and_folders_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(WireError, match="link cannot be read: it is a link, which is not followed"):
        file_bytes(tmp_path / "link")
    assert named_text(tmp_path / "link") == "12345", "where a person has named the link"
    for _ in range(3):
        before = os.listdir("/proc/self/fd")
        with pytest.raises(WireError, match="is a folder, not a plain file"):
            file_bytes(tmp_path)
        assert len(os.listdir("/proc/self/fd")) == len(before), "nothing stays open"
    with pytest.raises(FileNotFoundError):
        file_bytes(tmp_path / "nothing")
    with pytest.raises(WireError, match="cannot be read: Not a directory"):
        file_bytes(tmp_path / "file" / "inside")
