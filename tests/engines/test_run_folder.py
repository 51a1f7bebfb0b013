"""The folder of a run that was killed with all of its processes goes with the next run; no other one does."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from covey.engines.process.forking import run_folder


def left(home: Path, name: str = "covey-0123abcd") -> Path:
    """What a killed run leaves."""
    folder = home / name
    run_folder.make(folder).close()
    (folder / "worker-0").touch()
    return folder


def test_the_folder_of_dead_processes_goes_and_that_of_living_ones_stays(tmp_path: Path) -> None:
    dead, living = left(tmp_path), tmp_path / "covey-89abcdef"
    with run_folder.make(living):
        run_folder.sweep(tmp_path)
        assert not dead.exists() and living.is_dir()
        assert [stat.S_IMODE(path.stat().st_mode) for path in (living, living / run_folder.LOCK)] == [0o700, 0o600]
    run_folder.sweep(tmp_path)
    assert not living.exists()


def test_a_killed_process_has_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "covey-0123abcd"
    if not (pid := os.fork()):
        held = run_folder.make(folder)
        os.kill(os.getpid(), signal.SIGKILL)
        held.close()
    os.waitpid(pid, 0)
    assert folder.is_dir()
    run_folder.sweep(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["covey-ray-0123ab", "covey-0123abcde", "covey-study-x", "other", "covey-0123ABCD"])
def test_other_names_are_left_alone(tmp_path: Path, name: str) -> None:
    folder = left(tmp_path, name)
    run_folder.sweep(tmp_path)
    assert folder.is_dir()


def test_a_folder_that_was_never_locked_is_left_alone(tmp_path: Path) -> None:
    """Of another program, or of a run that is just being made."""
    folder = tmp_path / "covey-0123abcd"
    folder.mkdir()
    (folder / run_folder.LOCKING).touch()
    (tmp_path / "covey-89abcdef").touch()
    run_folder.sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_links_are_not_followed(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", left(tmp_path, "elsewhere")
    home.mkdir()
    (home / "covey-0123abcd").symlink_to(elsewhere)
    (inside := home / "covey-89abcdef").mkdir()
    (inside / run_folder.LOCK).symlink_to(elsewhere / run_folder.LOCK)
    (beside := left(home, "covey-00000000") / "more").symlink_to(elsewhere)
    run_folder.sweep(home)
    assert sorted(elsewhere.iterdir()) == [elsewhere / run_folder.LOCK, elsewhere / "worker-0"]
    assert inside.is_dir() and (home / "covey-0123abcd").is_symlink() and not beside.parent.exists()


def test_a_pipe_in_place_of_the_lock_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "covey-0123abcd"
    folder.mkdir()
    os.mkfifo(folder / run_folder.LOCK)
    run_folder.sweep(tmp_path)


def test_the_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = left(tmp_path)
    os.chown(folder, 1, 1)
    run_folder.sweep(tmp_path)
    assert folder.is_dir()


def test_where_there_is_no_folder_nothing_is_swept(tmp_path: Path) -> None:
    run_folder.sweep(tmp_path / "missing")
