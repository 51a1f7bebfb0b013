"""No file in a folder of checkpoints brings more than a refusal with its reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory, RoleState
from covey.checkpoint.files import seal_read
from covey.checkpoint.record import read_record, sealed
from covey.errors import CheckpointError
from tests.test_checkpoint import ME, Ledger, keep, run, state

Damage = Callable[[Path], object]
DEEP = "[" * 100_000


def replaced(name: str, data: str | bytes) -> Damage:
    return lambda place: (place / name).write_bytes(data.encode() if isinstance(data, str) else data)


def made(name: str, make: Callable[[Path], object]) -> Damage:
    """Something else where the file was."""

    def damage(place: Path) -> None:
        (place / name).unlink()
        make(place / name)

    return damage


def record(**changes: Any) -> Damage:
    """A record that is sealed properly, and says something else."""

    def damage(place: Path) -> None:
        found = json.loads((place / "run.json").read_text())
        found.pop("seal")
        found.update(changes)
        (place / "run.json").write_text(json.dumps({**found, "seal": sealed(found)}))

    return damage


def resealed(name: str, data: str | bytes) -> Damage:
    """A file of a role that is sealed properly."""

    def damage(place: Path) -> None:
        replaced(name, data)(place)
        checkpoints = CheckpointDirectory(place.parent)
        shutil.rmtree(checkpoints.directory / "again", ignore_errors=True)
        (place / "run.json").unlink()
        checkpoints.commit(place.rename(checkpoints.directory / "again"), run())

    return damage


def role(**changes: Any) -> Damage:
    """A role's state in which some fields are others."""
    whole = {
        "done": 3, "seconds": 1.0, "memories": {"$dict": []}, "replica": {"$dict": []}, "chance": [3, [0], None],
        "mailbox": [],
    }  # fmt: skip
    return resealed("worker-2.json", json.dumps({**whole, **changes}))


def block(**changes: Any) -> Damage:
    """A role's state with one block, of which something is wrong."""
    whole = {
        "kind": "parameter", "name": "weight", "key": "", "dtype": "float32", "shape": [0], "first": 0, "offset": 0,
        "size": 0,
    }  # fmt: skip
    return role(blocks=[{**whole, **changes}])


FILES = ("run.json", "worker-2.json", "worker-2.safetensors")
WRONG: dict[str, Damage] = {
    **{f"{name} is gone": lambda place, name=name: (place / name).unlink() for name in FILES},
    **{f"{name} is empty": replaced(name, b"") for name in FILES},
    **{f"{name} is noise": replaced(name, os.urandom(500)) for name in FILES},
    **{f"{name} is cut": lambda place, name=name: os.truncate(place / name, 9) for name in FILES},
    **{f"{name} is a link out": made(name, lambda path: path.symlink_to("/etc/passwd")) for name in FILES},
    **{f"{name} is a link to itself": made(name, lambda path: path.symlink_to(path)) for name in FILES},
    **{f"{name} is a folder": made(name, Path.mkdir) for name in FILES},
    **{f"{name} is a pipe": made(name, os.mkfifo) for name in FILES},
    **{f"{name} is endless": made(name, lambda path: path.symlink_to("/dev/zero")) for name in FILES},
    "a file more": replaced("worker-9.json", "{}"),
    "a folder more": lambda place: (place / "more").mkdir(),
    "no files": record(files={}),
    "files elsewhere": record(files={"../../etc/passwd": [1, "a"]}),
    "files of null": record(files=None),
    "seals of words": record(files={"worker-2.json": ["long", 3]}),
    "workers: nan": record(workers=float("nan")),
    "workers: huge": record(workers=10**400),
    "limits: words": record(limits=["five"]),
    "strategy: list": record(strategy=[]),
    "schema: 1": record(schema="covey.checkpoint/1"),
    "schema: long": record(schema="x" * 10_000),
    "schema: null": record(schema=None),
    "record: list": replaced("run.json", "[1, 2]"),
    "record: null": replaced("run.json", "null"),
    "record: deep": replaced("run.json", DEEP),
    "record: digits": replaced("run.json", "9" * 10_000),
    "record: unsealed": replaced("run.json", '{"schema": "covey.checkpoint/3"}'),
    "record: unsealed, of before": replaced("run.json", '{"schema": "covey.checkpoint/2"}'),
    "record: other bytes": replaced("run.json", b"\xff\xfe{}"),
    "state: deep": resealed("worker-2.json", DEEP),
    "state: list": resealed("worker-2.json", "[]"),
    "state: null": resealed("worker-2.json", "null"),
    "state: other bytes": resealed("worker-2.json", b"\xff\x00"),
    "state: unknown field": role(more=1),
    "state: done nan": role(done=float("nan")),
    "state: done negative": role(done=-1),
    "state: seconds infinite": role(seconds=float("inf")),
    "state: seconds word": role(seconds="long"),
    "state: mailbox of numbers": role(mailbox=[1]),
    "state: unknown message": role(mailbox=[{"$message": "no.such", "fields": {}}]),
    "state: message without a sender": role(mailbox=[{"$message": "shard.pull", "fields": {"step": 1}}]),
    "state: message of a list": role(mailbox=[{"$message": "shard.pull", "fields": []}]),
    "state: tensor that is not there": role(memories={"$dict": [["a", {"$tensor": "77"}]]}),
    "state: vector of words": role(memories={"$dict": [["a", {"$vector": ["b"]}]]}),
    "state: dict of ones": role(memories={"$dict": [1]}),
    "state: keys that are lists": role(memories={"$dict": [[[], 1]]}),
    "state: memories in a list": role(memories=[]),
    "state: replica of none": role(replica=None),
    "blocks: null": role(blocks=None),
    "blocks: words": role(blocks=["weight"]),
    "blocks: of another kind": block(kind="weights"),
    "blocks: without a size": role(blocks=[{"kind": "parameter", "name": "weight"}]),
    "blocks: more than is known": block(more=1),
    "blocks: unknown numbers": block(dtype="float31"),
    "blocks: numbers that are no numbers": block(dtype="nn"),
    "blocks: beyond the end": block(shape=[9], size=36),
    "blocks: before the beginning": block(offset=-4),
    "blocks: a negative size": block(size=-4),
    "blocks: half a number": block(shape=[9], size=2),
    "blocks: more than the shape has": block(size=4),
    "blocks: outside the tensor": block(first=1),
    "blocks: a negative side": block(shape=[-1, -1]),
    "blocks: an endless side": block(shape=[10**400]),
    "blocks: listed twice": role(
        blocks=[{"kind": "buffer", "name": "a", "dtype": "int8", "shape": [0], "offset": 0, "size": 0}] * 2
    ),
    "tensors: header too long": resealed("worker-2.safetensors", b"\xff" * 8 + b"{}"),
    "tensors: header deep": resealed("worker-2.safetensors", (2000).to_bytes(8, "little") + b"[" * 2000),
    "tensors: beyond the end": resealed(
        "worker-2.safetensors",
        (61).to_bytes(8, "little") + b'{"0":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}      ',
    ),
}


def read(checkpoints: CheckpointDirectory) -> RoleState:
    return RoleState.read(checkpoints.newest()[0], ME)


@pytest.mark.parametrize("damage", WRONG.values(), ids=WRONG)
def test_a_hostile_file_is_refused_with_its_reason(tmp_path: Path, damage: Damage) -> None:
    place = keep(CheckpointDirectory(tmp_path))
    damage(place)
    with pytest.raises(CheckpointError) as refused:
        read(CheckpointDirectory(tmp_path))
    assert str(tmp_path) in str(refused.value) and len(str(refused.value)) < 600


def test_there_are_fifty_of_them() -> None:
    assert len(WRONG) >= 50


NAMES = ["../checkpoint-000001", "/etc", "", "x" * 5000, "checkpoint-1", "\x00", "é"]


@pytest.mark.parametrize("latest", NAMES, ids=lambda name: name[:20])
def test_latest_stays_inside(tmp_path: Path, latest: str) -> None:
    """One that names nothing of the kind is passed over for the newest that is there."""
    outside = keep(CheckpointDirectory(tmp_path / "outside"))
    checkpoints = CheckpointDirectory(tmp_path / "kept")
    inside = keep(checkpoints)
    shutil.copytree(outside, tmp_path / outside.name)
    (checkpoints.directory / "latest").write_text(latest)
    assert checkpoints.newest()[0] == inside
    (checkpoints.directory / "latest").unlink()
    (checkpoints.directory / "latest").symlink_to(tmp_path)
    assert checkpoints.newest()[0] == inside


def test_a_checkpoint_that_is_a_link_is_refused(tmp_path: Path) -> None:
    outside = keep(CheckpointDirectory(tmp_path / "outside"))
    checkpoints = CheckpointDirectory(tmp_path / "kept")
    keep(checkpoints).rename(tmp_path / "moved")
    (checkpoints.directory / "checkpoint-000001").symlink_to(outside)
    with pytest.raises(CheckpointError, match="its folder is a link"):
        checkpoints.newest()


def test_a_record_of_absurd_size_is_not_read_into_memory(tmp_path: Path) -> None:
    place = keep(CheckpointDirectory(tmp_path))
    readers: dict[str, Callable[[], object]] = {
        "run.json": lambda: read_record(place), "worker-2.json": lambda: RoleState.read(place, ME),
    }  # fmt: skip
    for name, read in readers.items():
        os.truncate(place / name, 2 << 30)
        with pytest.raises(CheckpointError, match=f"{name} has 2147483648 bytes; the limit is"):
            read()


def test_a_pipe_in_place_of_latest_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")
    checkpoints = CheckpointDirectory(tmp_path)
    place = keep(checkpoints)
    assert checkpoints.newest()[0] == place and (tmp_path / "latest").is_file()


def test_what_is_torn_gives_way_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    older, newer = keep(checkpoints), keep(checkpoints)
    os.truncate(newer / "worker-2.safetensors", 9)
    place, found = checkpoints.newest()
    assert place == older and len(found.torn) == 1 and f"{newer}/worker-2.safetensors is torn" in found.torn[0]
    (older / "run.json").unlink()
    with pytest.raises(CheckpointError, match="checkpoint-000002"):
        checkpoints.newest()


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        CheckpointDirectory(tmp_path / "kept"),
        pytest.raises(CheckpointError, match=r"another run keeps .* in .*kept: wait"),
    ):
        CheckpointDirectory(tmp_path / "kept").__enter__()
    with CheckpointDirectory(tmp_path / "kept"):
        pass


def test_a_run_that_is_killed_frees_its_folder(tmp_path: Path) -> None:
    """A process that holds the lock, and dies of SIGKILL with it."""
    hold = "from pathlib import Path; from covey.checkpoint import CheckpointDirectory; "
    hold += f"CheckpointDirectory(Path({str(tmp_path)!r})).__enter__(); print('held', flush=True)"
    command = [sys.executable, "-c", f"{hold}; import time; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            with pytest.raises(CheckpointError, match="another run keeps its checkpoints in"):
                CheckpointDirectory(tmp_path).__enter__()
        finally:
            holder.kill()
    assert holder.returncode == -signal.SIGKILL
    with CheckpointDirectory(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot hold checkpoints"):
        CheckpointDirectory(tmp_path / "file").__enter__()


def test_all_files_have_one_mode(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    with checkpoints:
        place = keep(checkpoints)
    files = [*place.iterdir(), tmp_path / "latest", tmp_path / ".lock"]
    assert {file.stat().st_mode & 0o7777 for file in files} == {0o600}


def test_what_is_kept_of_a_role_must_fit(tmp_path: Path) -> None:
    kept = state(memories={"ledger": Ledger()})
    kept.write(tmp_path, ME)
    back = RoleState.read(tmp_path, ME)
    back.memories["ledger"] = {"$value": {"clocks": 3}}
    with pytest.raises(CheckpointError, match="'ledger' cannot be read"):
        back.recall("ledger", Ledger())
    back.chance = [3, [1, 2], None]
    with pytest.raises(CheckpointError, match="no state of a random generator"):
        back.restore_chance(Random(0))


def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    assert seal_read(tmp_path / "plain")[0] == 1
    with pytest.raises(CheckpointError, match="cannot be read"):
        seal_read(tmp_path / "link")
