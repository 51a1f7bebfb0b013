"""A file is written whole or not at all, beside nothing that somebody else has put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey import atomic_file
from covey.errors import PlanError


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    place = tmp_path / "model"
    place.write_text("old")

    def fail() -> None:
        with atomic_file.replacing(place) as new:
            new.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert place.read_text() == "old" and os.listdir(tmp_path) == ["model"]


def test_two_writers_share_nothing(tmp_path: Path) -> None:
    with atomic_file.replacing(tmp_path / "x") as one, atomic_file.replacing(tmp_path / "x") as other:
        one.write_text("first, much longer")
        other.write_text("second")
    assert (tmp_path / "x").read_text() == "first, much longer" and os.listdir(tmp_path) == ["x"]
    assert one != other


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")  # a mistake replaces the link, and not the machine's device
    with pytest.raises(OSError, match="No space left"):
        atomic_file.write(full, "x")
    assert full.is_char_device() and os.listdir(tmp_path) == ["full"]


@pytest.mark.parametrize("name", [".", "a/b/../..", "x" * 300, "file/below"])
def test_places_that_cannot_be_written_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="--save .* (is a folder|cannot be written)"):
        atomic_file.check(tmp_path / name, f"--save {name}", "model.safetensors", makes_folders=True)


def test_a_check_makes_nothing(tmp_path: Path) -> None:
    atomic_file.check(tmp_path / "new" / "deep" / "x", "--save x", "model.safetensors", makes_folders=True)
    assert os.listdir(tmp_path) == []


def test_a_pipe_in_a_folder_of_our_own_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")
    atomic_file.write(tmp_path / "latest", "x", ours=True)
    assert (tmp_path / "latest").read_text() == "x" and os.listdir(tmp_path) == ["latest"]


def test_a_pipe_that_nobody_reads_any_more_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        atomic_file.write(tmp_path / "pipe", "x")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    atomic_file.write(tmp_path / "pipe", "x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)
