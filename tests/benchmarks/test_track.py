"""The hosts of a race have the links that their cell tells, and peers train on them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.peers.track import Cell, Peer, hosts, race
from covey.engines.lab import iproute

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]
FAST = Cell("1000mbit")
MEAN = 2 * 3 / 4 * 813_258 * 4  # bytes that one of four hosts sends for a mean of the model


def test_each_host_of_a_cell_has_its_link_and_its_group() -> None:
    with hosts(Cell("100mbit"), 2) as (lab, _, groups):
        assert [group.name for group in groups] == lab.hosts == ["h0", "h1"]
        assert all((group / "cgroup.procs").exists() for group in groups)
        shown = subprocess.check_output(["tc", "-n", lab.name.switch, "qdisc"], text=True)
        assert shown.count("tbf") == shown.count("rate 100Mbit") == 2


@pytest.mark.full
@pytest.mark.parametrize("script", ["local_sgd", "ft"])
def test_a_peer_trains_and_sends_its_model(script: str) -> None:
    peer = Peer(script, {"period": 8}, needs="torchft" if script == "ft" else "torch")
    if not peer.installed(sys.executable):
        pytest.skip(f"{peer.needs} is not installed")
    finish = race(peer, replace(FAST, course=replace(FAST.course, wanted="accuracy>=0.4")), seed=0, limit=60.0)
    assert finish.reached, finish.why
    assert finish.sent > finish.samples / (8 * 4 * 64) * MEAN
