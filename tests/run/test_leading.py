"""One launcher at a time has a run and writes its log; what others have left there is read, or refused by name."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from covey.checkpoint import CheckpointDirectory, RunRecord
from covey.checkpoint import etcd_log as etcd_logs
from covey.checkpoint.etcd_client import absent, place_of, put
from covey.checkpoint.etcd_log import EtcdLog
from covey.checkpoint.file_log import NAME
from covey.checkpoint.launcher_log import KEEP, LogEntry, entry, read_entries
from covey.errors import AnotherLeads, CheckpointError, CoveyError, LeadLost, PlanError
from covey.run.leading.lead import Lead
from covey.run.leading.standby import stand_by
from covey.run.options import Options, check, options
from tests.etcd import etcd, needs_etcd
from tests.safety.mutating import damaged

RUN: dict[str, Any] = {
    "strategy": "bsp", "workers": 1, "servers": 1, "seed": 0, "samples": 8, "batch_size": 4, "limits": [3],
}  # fmt: skip


def lead_of(folder: Path, keeper: str = "file", **given: Any) -> Lead:
    asked = options({"checkpoint": str(folder), "keeper": keeper, **given})
    return Lead.of(asked, CheckpointDirectory(folder))


def standby(folder: Path, keeper: str = "file", **given: Any) -> tuple[Lead, Options]:
    return stand_by(options({"checkpoint": str(folder), "keeper": keeper, "standby": True, **given}), lambda: None)


def whats(lead: Lead) -> list[tuple[int, str, str]]:
    return [(one.generation, one.what, one.text.partition(":")[0]) for one in lead.log.entries()]


def checked_until_lost(lead: Lead) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        lead.check()


def keep(checkpoints: CheckpointDirectory) -> Path:
    with checkpoints.writing() as place:
        (place / "worker-0.json").write_text("{}")
        kept = checkpoints.commit(place, RunRecord(**RUN))
    checkpoints.told(kept)
    return kept


def test_the_file_has_every_generation(tmp_path: Path) -> None:
    host = os.uname().nodename
    with lead_of(tmp_path) as lead:
        assert lead.checkpoints and keep(lead.checkpoints).name == "checkpoint-000001"
    with lead_of(tmp_path, resume=str(tmp_path)) as lead:
        assert whats(lead) == [(1, "begin", host), (1, "checkpoint", "checkpoint-000001"), (2, "lead", host)]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_two_launchers_cannot_have_one_folder(tmp_path: Path) -> None:
    with lead_of(tmp_path), pytest.raises(AnotherLeads, match="another run keeps its checkpoints in"):
        lead_of(tmp_path).__enter__()


def test_a_torn_last_line_is_dropped_and_others_are_refused(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        assert lead.checkpoints
        keep(lead.checkpoints)
    file = tmp_path / NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    with lead_of(tmp_path) as lead:
        assert [what for _, what, _ in whats(lead)] == ["begin", "begin"]
    file.write_bytes(b"{}\n" + whole)
    with pytest.raises(CheckpointError, match=r"entry 1 of .*log.jsonl cannot be read .*: move that file away"):
        lead_of(tmp_path).__enter__()
    with CheckpointDirectory(tmp_path):
        pass  # a refused launcher does not keep the lock


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"schema": "covey.log/9", "new": 1}) + "\n")
    with pytest.raises(CheckpointError, match="of the format 'covey.log/9', and this covey reads 'covey.log/1'"):
        lead_of(tmp_path).__enter__()


def test_nothing_but_a_plain_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(CheckpointError, match="is not a plain file"):
        lead_of(tmp_path).__enter__()


def test_damaged_lines_are_read_or_refused(tmp_path: Path) -> None:
    rng, lines = Random(3), [msgspec.json.encode(entry(1, "checkpoint", "checkpoint-000001"))] * 3
    refused = 0
    for _ in range(600):
        hurt = [damaged(rng, line) if rng.random() < 0.5 else line for line in lines]
        try:
            assert all(isinstance(one, LogEntry) for one in read_entries(hurt, "log", "", torn=True))
        except CheckpointError:
            refused += 1
    assert 50 < refused < 550


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    with lead_of(tmp_path) as lead:
        for number in range(2 * KEEP + 5):
            lead.log.write(entry(lead.generation, "checkpoint", f"checkpoint-{number:06d}"))
        found = lead.log.entries()
    newest = range(2 * KEEP + 5)[-len(found) :]
    assert KEEP <= len(found) <= 2 * KEEP and [one.text for one in found] == [f"checkpoint-{n:06d}" for n in newest]


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        (tmp_path / NAME).write_bytes(msgspec.json.encode(entry(7, "lead", "other:1")) + b"\n")
        with pytest.raises(LeadLost, match="of generation 7: this one stops"):
            lead.check()
        assert lead.checkpoints
        with pytest.raises(OSError, match="of generation 7"), lead.checkpoints.writing() as place:
            lead.checkpoints.commit(place, RunRecord(**RUN))
    assert not lead.checkpoints.all()


def test_a_full_disk_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with lead_of(tmp_path) as lead:
        monkeypatch.setattr(lead, "_say", said.append)
        monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        lead._write("checkpoint", "checkpoint-000001")
        lead._write("checkpoint", "checkpoint-000002")
        monkeypatch.undo()
        lead._write("checkpoint", "checkpoint-000003")
        assert whats(lead)[-1][2] == "checkpoint-000003"
    assert said == ["the launcher's log cannot be written (No space left on device); the run goes on"]


def test_a_line_that_a_full_disk_has_torn_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A file that takes half of a line."""

        def __init__(self, handle: int, mode: str) -> None:
            self.handle = handle

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.handle)

        def write(self, line: bytes) -> None:
            os.write(self.handle, line[: len(line) // 2])
            raise OSError(28, "No space left on device")

    with lead_of(tmp_path) as lead:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdopen", Full)
            lead._write("checkpoint", "checkpoint-000001")
        for number in (2, 3):
            lead._write("checkpoint", f"checkpoint-{number:06d}")
        assert [text for _, _, text in whats(lead)][1:] == ["checkpoint-000002", "checkpoint-000003"]


def test_a_log_that_was_touched_is_still_ones_own(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        os.utime(tmp_path / NAME, (1.0, 1.0))
        lead.check()


@pytest.mark.parametrize(("stopped", "last"), [("interrupted", "begin"), ("budget", "end")])
def test_a_run_that_was_interrupted_is_not_over_for_others(tmp_path: Path, stopped: Any, last: str) -> None:
    result: Any = SimpleNamespace(stopped=stopped, strategy="bsp", samples=8, seconds=1.0, history=[])
    with lead_of(tmp_path) as lead:
        lead.finish(result)
        assert whats(lead)[-1][1] == last


@pytest.mark.parametrize(("what", "kept"), [("end", True), ("failed", True), ("failed", False)])
def test_who_stands_by_ends_as_the_run_did(tmp_path: Path, what: Any, kept: bool) -> None:
    said: list[str] = []

    class Watcher:
        def update(self, progress: Any) -> None: ...
        def say(self, line: str) -> None:
            said.append(line)

    with lead_of(tmp_path) as lead:
        if kept:
            assert lead.checkpoints
            keep(lead.checkpoints)
        lead._write(what, "as it did")
    further = f'go on without standby=True, with resume="{tmp_path}"' if kept else "go on without standby=True"
    with pytest.raises(SystemExit if what == "end" else CoveyError) as ended:
        standby(tmp_path, watcher=Watcher())
    if what == "end":
        assert (ended.value.code, said) == (0, [f"the run is over: as it did; to train longer, {further}"])
    else:
        assert str(ended.value) == f"the run failed under another launcher: as it did; once that is mended, {further}"
    with CheckpointDirectory(tmp_path):
        pass  # it does not keep the lock


def test_a_failure_is_logged_and_a_refusal_is_not(tmp_path: Path) -> None:
    for error, last in ((CheckpointError("does not fit"), "begin"), (ValueError("wrong\nnumber"), "failed")):
        lead = lead_of(tmp_path)
        with pytest.raises(type(error)), lead:
            raise error
        assert whats(lead)[-1][1] == last


def test_who_stands_by_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        assert lead.checkpoints
        keep(lead.checkpoints)
    lead, given = standby(tmp_path)
    assert given.checkpoints.resume == str(tmp_path)
    with lead:
        assert whats(lead)[-1][:2] == (2, "lead")


def test_what_an_earlier_run_of_the_name_kept_is_not_missed_by_a_new_one(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        lead.log.write(entry(lead.generation, "checkpoint", "checkpoint-000007"))
    with lead_of(tmp_path) as lead:
        assert whats(lead)[-1][:2] == (2, "begin")
    lead, given = standby(tmp_path)
    lead.close()
    assert given.checkpoints.resume is None, "the new run has no checkpoint yet"


def test_a_folder_behind_its_log_is_refused(tmp_path: Path) -> None:
    with lead_of(tmp_path) as lead:
        assert lead.checkpoints
        keep(lead.checkpoints)
        lead._write("checkpoint", "checkpoint-000004")
    with pytest.raises(CheckpointError, match=r"kept in checkpoint-000004, which .* does not hold: name the folder"):
        standby(tmp_path)


def test_a_folder_may_be_ahead_of_its_log(tmp_path: Path) -> None:
    """Entries are lost while etcd is away or a disk is full, and the checkpoint that the log names may be removed."""
    with lead_of(tmp_path) as lead:
        assert lead.checkpoints
        keep(lead.checkpoints)
        lead.checkpoints.told = lambda kept: None
        for _ in range(3):
            keep(lead.checkpoints)
        assert [place.name for place in lead.checkpoints.all()] == ["checkpoint-000003", "checkpoint-000004"]
    lead, given = standby(tmp_path)
    assert given.checkpoints.resume == str(tmp_path)
    lead.close()


def test_a_log_may_name_anything_as_a_checkpoint(tmp_path: Path) -> None:
    for name in ("..", "checkpoint-" + "9" * 5000, "checkpoint-\0"):
        with lead_of(tmp_path) as lead:
            lead.log.write(entry(lead.generation, "checkpoint", name))
        standby(tmp_path)[0].close()


@pytest.mark.parametrize("given", [{"standby": True}, {"keeper": "etcd:127.0.0.1:2379/a"}])
def test_without_checkpoints_there_is_nothing_to_take_over(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"needs checkpoint=.DIR."):
        check(options(given), "local", None)


HOSTS = ["etcd:a..b:1/a", f"etcd:{'a' * 64}:1/a", "etcd:a\x01b:1/a"]  # which no resolver takes


@pytest.mark.parametrize(
    "text", ["etcd", "etcd:h/a", "etcd:h:99999/a", "etcd:h:1/", "etcd:h:1/a b", "redis:h:1/a", *HOSTS]
)
def test_a_keeper_that_cannot_be(text: str) -> None:
    with pytest.raises(PlanError, match="write file, or etcd:HOST:PORT/NAME, such as"):
        check(options({"keeper": text, "checkpoint": "kept"}), "local", None)


def test_an_etcd_that_is_not_there_is_refused(tmp_path: Path) -> None:
    nowhere, words = "etcd:127.0.0.1:1/a", "etcd at 127.0.0.1:1 does not answer: .*refused; start etcd there, or omit"
    for begin in (lead_of(tmp_path / "a", nowhere).__enter__, lambda: standby(tmp_path, nowhere)):
        with pytest.raises(CheckpointError, match=words):
            begin()


@needs_etcd
def test_etcd_has_one_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: who lost the lease writes neither an entry nor a checkpoint; a lease that cannot be renewed is no lease."""
    monkeypatch.setattr(etcd_logs, "SAFE", 1.0)
    monkeypatch.setattr(etcd_logs, "RENEWED", 0.2)
    folder = tmp_path / "kept"
    with etcd(tmp_path / "etcd") as found:
        first = lead_of(folder, found.keeper())
        with first:
            assert isinstance(first.log, EtcdLog) and first.checkpoints
            keep(first.checkpoints)
            with pytest.raises(AnotherLeads, match=rf"{os.uname().nodename}:{os.getpid()} leads 'digits' of etcd at"):
                lead_of(folder, found.keeper()).__enter__()
            with lead_of(tmp_path / "other", found.keeper("another")):
                pass
            first.log.settle()
            with first.checkpoints.writing() as place:  # it is in the middle of a checkpoint
                found.revoke(first.log.lease)
                second, given = standby(folder, found.keeper())
                assert given.checkpoints.resume == str(folder)
                with second:
                    with pytest.raises(OSError, match="the lease of 'digits' .* is over|No such file"):
                        first.checkpoints.commit(place, RunRecord(**RUN))
                    with pytest.raises(LeadLost):
                        checked_until_lost(first)
                    assert [what for _, what, _ in whats(second)] == ["begin", "checkpoint", "lead"]
                    assert second.checkpoints and keep(second.checkpoints).name == "checkpoint-000002"
                    found.process.send_signal(signal.SIGSTOP)
                    time.sleep(1.2)
                    with pytest.raises(LeadLost, match=r"has not renewed the lease of 'digits' for 1.\d s, and"):
                        second.check()
                    found.process.send_signal(signal.SIGCONT)
        assert [place.name for place in first.checkpoints.all()] == ["checkpoint-000001", "checkpoint-000002"]


@needs_etcd
def test_entries_of_etcd_are_bounded_and_hostile_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_logs, "KEEP", 5)
    with etcd(tmp_path / "etcd") as found:
        with lead_of(tmp_path, found.keeper()) as lead:
            for number in range(20):
                lead._write("checkpoint", str(number))
            lead.log.settle()
            assert [one.text for one in lead.log.entries()] == ["15", "16", "17", "18", "19"]
        client, name = place_of(found.keeper())
        assert client.put_if(absent("anything"), put(f"covey/{name}/log/9", b"{"))
        with pytest.raises(CheckpointError, match="entry 6 of 'digits' of etcd at .* cannot be read .*: use another"):
            lead_of(tmp_path, found.keeper()).__enter__()


def test_a_stopped_launcher_cannot_finish_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one seizes the folder between its last look and the rename of the checkpoint."""
    old, new = CheckpointDirectory(tmp_path), CheckpointDirectory(tmp_path)
    old.seize("etcd")
    with old:
        keep(old)

        def stopped(self: Path, to: Any) -> Path:
            monkeypatch.undo()
            new.seize("etcd")
            return self.rename(to)

        monkeypatch.setattr(CheckpointDirectory, "_remove_partial", lambda self: None)  # which renames, too
        monkeypatch.setattr(Path, "rename", stopped)
        with pytest.raises(FileNotFoundError):
            keep(old)
        assert new.newest()[0].name == "checkpoint-000001" and keep(new).name == "checkpoint-000002"
        with pytest.raises(OSError, match="another run keeps its checkpoints in"):
            keep(old)
        new.__exit__()


def test_only_a_launcher_of_the_same_keeper_loses_its_folder(tmp_path: Path) -> None:
    with CheckpointDirectory(tmp_path), pytest.raises(AnotherLeads):
        CheckpointDirectory(tmp_path).seize("etcd")
    first = CheckpointDirectory(tmp_path)
    first.seize("etcd")
    with pytest.raises(AnotherLeads):
        CheckpointDirectory(tmp_path).seize("another")
    first.__exit__()
    with CheckpointDirectory(tmp_path), pytest.raises(AnotherLeads):  # whose lock says nothing of etcd any more
        CheckpointDirectory(tmp_path).seize("etcd")


def test_a_lock_that_was_taken_anew_still_names_the_keeper(tmp_path: Path) -> None:
    first = CheckpointDirectory(tmp_path)
    first.seize("etcd")
    with first:
        (tmp_path / ".lock").unlink()
        keep(first)
        CheckpointDirectory(tmp_path).seize("etcd")


def test_nor_make_it_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same between the two renames: what the new launcher has kept meanwhile stays the newest."""
    old, new, replaced = CheckpointDirectory(tmp_path), CheckpointDirectory(tmp_path), os.replace
    old.seize("etcd")
    with old:
        keep(old)

        def stopped(source: Any, to: Any) -> None:
            monkeypatch.undo()
            new.seize("etcd")
            keep(new)
            replaced(source, to)

        monkeypatch.setattr(os, "replace", stopped)
        with pytest.raises(FileNotFoundError):
            keep(old)
        assert new.newest()[0].name == "checkpoint-000003"
        new.__exit__()
