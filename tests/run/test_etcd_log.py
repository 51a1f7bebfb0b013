"""What a launcher does when etcd fails it: it stops in time, says why, and another one can go on."""

from __future__ import annotations

import http.server
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from covey.checkpoint import CheckpointDirectory
from covey.checkpoint import etcd_log as etcd_logs
from covey.checkpoint.etcd_client import _transactions, delete, has
from covey.checkpoint.etcd_log import EtcdLog
from covey.errors import AnotherLeads, CheckpointError, LeadLost
from covey.run.leading.lead import Lead
from tests.etcd import Etcd, etcd, needs_etcd
from tests.run.test_leading import checked_until_lost, keep, lead_of, standby


def log_of(lead: Lead) -> EtcdLog:
    assert isinstance(lead.log, EtcdLog)
    return lead.log


def space(found: Etcd, action: str) -> None:
    """What etcd does by itself when its space is used up: it renews leases, and refuses new keys."""
    found._ask("maintenance/alarm", {"action": action, "memberID": "0", "alarm": "NOSPACE"}, _transactions)


@needs_etcd
def test_an_etcd_without_space_ends_a_run_in_time_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_logs, "SAFE", 1.0)
    monkeypatch.setattr(etcd_logs, "RENEWED", 0.2)
    said: list[str] = []
    with etcd(tmp_path / "etcd") as found:
        with lead_of(tmp_path / "kept", found.keeper()) as lead:
            monkeypatch.setattr(lead, "_say", said.append)
            lead.log.settle()
            space(found, "ACTIVATE")
            lead._write("checkpoint", "checkpoint-000001")
            time.sleep(0.5)
            lead._write("checkpoint", "checkpoint-000002")
            lead._write("checkpoint", "checkpoint-000003")
            with pytest.raises(LeadLost, match=r"has not taken an entry .* of 'digits' for 1.\d s \(.*space.*: this"):
                lead.log.settle()
        assert len(said) == 1 and "the launcher's log cannot be written (etcd at" in said[0], said
        refused = r"refused lease/grant .*; name an etcd \(3.4 or later\) that takes new keys, or omit"
        with pytest.raises(CheckpointError, match=refused):
            lead_of(tmp_path / "kept", found.keeper()).__enter__()
        space(found, "DEACTIVATE")
        with standby(tmp_path / "kept", found.keeper())[0] as lead:
            lead.log.settle()


@needs_etcd
def test_a_leader_whose_key_is_removed_stops_though_its_lease_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_logs, "RENEWED", 0.2)
    with etcd(tmp_path / "etcd") as found, lead_of(tmp_path / "kept", found.keeper()) as lead:
        log = log_of(lead)
        log.settle()
        assert found.put_if(has(log.leader, log.token), delete(log.leader, f"{log.leader}\0"))
        with pytest.raises(LeadLost, match="another launcher may lead by now: this one stops"):
            checked_until_lost(lead)
        assert found.renew(log.lease) > 0


@needs_etcd
def test_a_leader_whose_key_is_removed_writes_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before the renewal that finds it out: each entry counts only with the key."""
    monkeypatch.setattr(etcd_logs, "RENEWED", 60.0)
    with etcd(tmp_path / "etcd") as found, lead_of(tmp_path / "kept", found.keeper()) as lead:
        log = log_of(lead)
        log.settle()
        assert found.put_if(has(log.leader, log.token), delete(log.leader, f"{log.leader}\0"))
        lead._write("checkpoint", "checkpoint-000009")
        with pytest.raises(LeadLost, match="another launcher may lead by now: this one stops"):
            log.settle()
        assert [one.what for one in log.entries()] == ["begin"]


@needs_etcd
def test_a_name_whose_run_is_in_another_folder_is_refused(tmp_path: Path) -> None:
    with etcd(tmp_path / "etcd") as found:
        with lead_of(tmp_path / "first", found.keeper()) as lead:
            lead._write("end", "as it did")
        with pytest.raises(CheckpointError, match=r"not in .*second: name their folder with .*, use another name, or"):
            standby(tmp_path / "second", found.keeper())
        (tmp_path / "first").rename(tmp_path / "moved")
        with pytest.raises(SystemExit):
            standby(tmp_path / "moved", found.keeper())
        with lead_of(tmp_path / "second", found.keeper()) as lead:  # a new run
            assert lead.checkpoints
            keep(lead.checkpoints)
        lead, given = standby(tmp_path / "second", found.keeper())
        lead.close()
        assert given.checkpoints.resume == str(tmp_path / "second")


@needs_etcd
def test_a_launcher_frozen_as_it_begins_leaves_the_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd(tmp_path / "etcd") as found, lead_of(tmp_path / "kept", found.keeper()) as leader:
        log, late = log_of(leader), log_of(lead_of(tmp_path / "kept", found.keeper()))
        log.settle()
        monkeypatch.setattr(late.etcd, "get", lambda key: {})  # it looked before the other one led, and was frozen
        monkeypatch.setattr(late.etcd, "put_if", lambda compared, *changes: True)
        monkeypatch.setattr(etcd_logs, "SAFE", -1.0)
        with pytest.raises(AnotherLeads, match="another launcher leads 'digits' of"):
            late.take()
        monkeypatch.undo()
        assert leader.checkpoints and leader.checkpoints._holds_lock()


class Slow:
    """An etcd that renews a lease when it hears of it, and answers some seconds later."""

    def __init__(self, clock: list[float], until: float) -> None:
        self.clock, self.until = clock, until

    def renew(self, lease: str) -> int:
        self.clock[0] += self.until
        return etcd_logs.LEASE

    def get(self, key: str) -> dict[str, bytes]:
        return {key: b"me"}


def test_a_launcher_leads_from_when_it_asked_for_the_lease_and_not_from_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(etcd_logs, "awake", lambda: clock[0])
    slow: Any = Slow(clock, until=4.0)
    log = EtcdLog(slow, "digits", CheckpointDirectory(tmp_path))
    log.token = "me"
    log._renew()
    clock[0] = 105.0
    log.check()
    clock[0] = 106.0
    with pytest.raises(LeadLost, match=r"has not renewed the lease of 'digits' for 6\.0 s"):
        log.check()


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Something that listens and is no etcd."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None: ...


def test_who_is_no_etcd_need_not_be_started(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            words = r"does not answer as etcd does: .*; name an etcd \(3.4 or later\) that takes new keys, or omit"
            with pytest.raises(CheckpointError, match=words):
                lead_of(tmp_path, f"etcd:127.0.0.1:{server.server_port}/a").__enter__()
        finally:
            server.shutdown()
