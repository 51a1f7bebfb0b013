"""Enrolling clients of a service, one by one, and revoking them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.engines.service.dialled_link import dialled
from covey.engines.service.guest_keys import KeyFolder, read_key
from covey.engines.service.service_port import listening_at
from covey.errors import PlanError, WireError


def test_keys_are_secret_files_and_the_list_has_only_public_halves(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    for name in ("alice", "bob"):
        folder.add(name, 50, tmp_path / f"{name}.key")
    alice, bob = read_key(tmp_path / "alice.key"), read_key(tmp_path / "bob.key")
    assert (alice.number, bob.number) == (0, 1) and alice.service == bob.service == folder.service().public
    assert alice.secret not in repr(alice)
    for file in (tmp_path / "alice.key", tmp_path / "keys" / "service.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = (tmp_path / "keys" / "guests.json").read_text()
    assert alice.public in listed and alice.secret not in listed and folder.service().secret not in listed


def test_a_name_and_a_number_belong_to_one_client_for_ever(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    folder.add("alice", 50, tmp_path / "alice.key")
    folder.revoke("alice")
    with pytest.raises(PlanError, match="for good, also after it was revoked.*use another, such as alice-2"):
        folder.add("alice", 50, tmp_path / "again.key")
    with pytest.raises(PlanError, match="alice is enrolled already"):  # also where another file would be no help
        folder.add("alice", 50, tmp_path / "alice.key")
    assert folder.add("bob", 50, tmp_path / "bob.key").number == 1
    assert [one.revoked for one in folder.guests().guests] == [True, False]
    with pytest.raises(PlanError, match="nobody is enrolled as 'carol'; there are: alice, bob"):
        folder.revoke("carol")
    with pytest.raises(PlanError, match="is there already"):
        folder.add("carol", 50, tmp_path / "bob.key")
    assert len(folder.guests().guests) == 2, "nobody is enrolled whose key could not be written"


def test_whoever_was_revoked_stays_so_when_others_are_too(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path / "keys")
    for name in ("alice", "bob", "carol"):
        folder.add(name, 50, tmp_path / f"{name}.key")
    for name in ("bob", "alice", "alice"):
        folder.revoke(name)
    assert [one.name for one in folder.guests().guests if one.revoked] == ["alice", "bob"]


@pytest.mark.parametrize(
    "changed",
    [{"number": 5}, {"name": "../x"}, {"public": "short"}, {"public": "#" * 40}, {"samples": 0}, {"samples": "many"}],
)
def test_a_list_that_covey_has_not_written_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    folder = KeyFolder(tmp_path / "keys")
    folder.add("alice", 50, tmp_path / "alice.key")
    file = tmp_path / "keys" / "guests.json"
    guest = json.loads(file.read_text())["guests"][0]
    file.write_text(json.dumps({"guests": [{**guest, **changed}]}))
    with pytest.raises(WireError):
        folder.guests()


def test_the_commands_enrol_list_and_revoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def shown(*words: str) -> str:
        found = runner.invoke(app, ["federate", "keys", *words])
        assert found.exit_code == 0, found.output
        return found.output

    assert "client 0 is alice; hand alice.key to it in secret" in shown("add", "keys", "alice", "--samples", "9")
    shown("add", "keys", "bob", "--samples", "7", "--out", "b.key")
    shown("revoke", "keys", "alice")
    assert shown("list", "keys").splitlines() == ["client 0  alice  revoked", "client 1  bob  up to 7 samples"]
    assert read_key(tmp_path / "b.key").name == "bob"
    found = runner.invoke(app, ["federate", "serve", "examples/digits.py", "--keys", "nowhere"])
    assert found.exit_code == 2 and "covey federate keys add nowhere NAME" in " ".join(found.output.split())


@pytest.mark.parametrize(("text", "found"), [(":7070", "tcp://*:7070"), ("10.0.0.1:80", "tcp://10.0.0.1:80")])
def test_where_a_service_listens(text: str, found: str) -> None:
    assert listening_at(text) == found


@pytest.mark.parametrize("text", ["7070", "host:", ":70000", "host:port"])
def test_where_nobody_can_listen_or_dial(text: str) -> None:
    with pytest.raises(PlanError, match="HOST:PORT"):
        listening_at(text)
    with pytest.raises(PlanError, match="HOST:PORT"):
        dialled(text)
