"""The hosts of a race have the links that their cell tells."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.peers.track import Cell, hosts
from covey.engines.lab import iproute

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]


def test_each_host_of_a_cell_has_its_link_and_its_group() -> None:
    with hosts(Cell("100mbit"), 2) as (lab, _, groups):
        assert [group.name for group in groups] == lab.hosts == ["h0", "h1"]
        assert all((group / "cgroup.procs").exists() for group in groups)
        shown = subprocess.check_output(["tc", "-n", lab.name.switch, "qdisc"], text=True)
        assert shown.count("tbf") == shown.count("rate 100Mbit") == 2
