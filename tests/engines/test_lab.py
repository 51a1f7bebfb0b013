"""What may be asked of a lab, and what is said where none can be made; no network is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.engines.entries.lab import LabEngine
from covey.engines.lab import quota
from covey.engines.lab.name import Name, named, new
from covey.engines.lab.settings import LabSettings
from covey.errors import PlanError
from covey.run.clusters import engine_of
from covey.run.options import Options, options


def read(workers: int, written: str) -> LabSettings:
    """The settings of a lab as they are written on the command line."""
    engine = engine_of(Options(engine=f"lab({written})"))
    assert isinstance(engine, LabEngine)
    return engine.settings(workers)


def test_as_many_hosts_as_workers_with_equal_shares() -> None:
    found = read(4, "")
    assert found.hosts == ["h0", "h1", "h2", "h3"]
    assert found.rates == (None,) * 4
    assert found.cpus == (len(os.sched_getaffinity(0)) / 4,) * 4


def test_one_value_for_all_or_one_for_each() -> None:
    found = read(2, 'rate="100mbit, 100mbit,10mbit", cpu=0.5')
    assert found.rates == (12.5e6, 12.5e6, 1.25e6)
    assert found.cpus == (0.5, 0.5, 0.5)
    assert read(2, 'hosts=3, cpu="1,all,0.25"').cpus == (1.0, None, 0.25)
    assert read(2, 'rate="unshaped,1gbit"').rates == (None, 125e6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hosts=0", "from 1 to 200"),
        ("hosts=many", "hosts must be a whole number, not many"),
        ('hosts=2, rate="1mbit,2mbit,3mbit"', "3 values for 2 hosts"),
        ("rate=fast", r"lab\(rate=fast\): cannot read the rate"),
        ("rate=1kbit", "too slow"),
        ("cpu=0", "such as 0.5"),
        ("cpu=half", "such as 0.5"),
        ("latency=10ms", "It has: hosts .*, rate=unshaped, cpu="),
    ],
)
def test_what_cannot_be(given: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(2, given)


def test_only_root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(PlanError, match="only root .* sudo"):
        LabEngine(hosts=2).places(2, None)


def test_without_iproute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(PlanError, match="apt-get install iproute2"):
        LabEngine().places(2, None)


def test_a_file_of_hosts_is_for_others() -> None:
    with pytest.raises(PlanError, match="hosts=… is not for lab, .* itself: the engine 'lab.hosts=4"):
        engine_of(options({"engine": "lab", "hosts": "hosts.txt"}))


def test_an_interface_is_for_others() -> None:
    """It was refused only once the hosts were made."""
    with pytest.raises(PlanError, match="interface=… is not for lab, whose roles use its shaped links"):
        engine_of(options({"engine": "lab", "interface": "eth0"}))


def test_names_say_whose_they_are() -> None:
    name = new()
    assert named(name.host("h3")) == name and named(name.switch) == name and name.alive
    assert new() != name
    assert not Name(name.pid, name.began + 1, 0).alive, "another process had this number"
    assert len(Name(4_194_304, 0, 123_456).link) <= 15
    assert named("covey-x") is None


def test_cgroups_of_either_version(tmp_path: Path) -> None:
    one, two, mounts = tmp_path / "one", tmp_path / "two", tmp_path / "mounts"
    for root in (one, two):
        root.mkdir()
    (two / "cgroup.controllers").write_text("cpuset cpu io\n")
    mounts.write_text(f"cgroup2 {two} cgroup2 rw 0 0\n")
    assert quota.groups(mounts) == (two, 2)
    made = quota.make("covey-1-2-0", ["h0"], quota.groups(mounts))
    assert (two / "cgroup.subtree_control").read_text() == (two / "covey-1-2-0/cgroup.subtree_control").read_text()
    (made["h0"] / "cpu.max").touch()
    quota.limit(made["h0"], 0.25)
    assert (made["h0"] / "cpu.max").read_text() == "5000 20000"
    mounts.write_text(f"cgroup2 {two} cgroup2 rw 0 0\ncgroup {one} cgroup rw,cpu,cpuacct 0 0\n")
    assert quota.groups(mounts) == (one, 1)
    quota.limit(one, 0.01)
    assert ((one / "cpu.cfs_quota_us").read_text(), (one / "cpu.cfs_period_us").read_text()) == ("1000", "100000")
