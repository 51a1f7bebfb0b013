"""Replicas of an endpoint on the hosts of a lab, under requests of real clients."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
import torch
from torch import nn

from covey.engines.lab import iproute, running
from covey.engines.lab.iproute import batch
from covey.engines.lab.running import control
from tests.clusters.lab_parts import left
from tests.clusters.serving import losses_cost_no_answer, served
from tests.real.harness import Room

pytestmark = [pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(iproute.missing()), reason=iproute.missing())]


def test_replicas_answer_from_hosts_that_may_be_lost(room: Room) -> None:
    with served(room, "lab(hosts=2)") as endpoint:
        networks = endpoint.networks()
        assert len(networks) == 2 and os.stat("/proc/self/ns/net").st_ino not in networks
        losses_cost_no_answer(endpoint, "site h1")
        assert len(endpoint.networks()) == 1, "the host that is left has both"
    assert not left(endpoint.command.pid)


@pytest.mark.full
def test_hosts_that_are_cut_off_for_a_while_are_waited_for(room: Room) -> None:
    """All links for 9 s, and then all connections: a replica is lost each time, and no answer."""
    with served(room, "lab(hosts=2)") as endpoint:
        lab = next(one for one in running.labs() if one.name.pid == endpoint.command.pid)

        def cut() -> None:
            batch("ip", [f"link set {control(host)} down" for host in lab.hosts], lab.name.switch)
            time.sleep(9)
            for host in lab.hosts:
                lab.restore(host)

        def reset() -> None:
            for host in lab.hosts:
                words = ["ip", "netns", "exec", lab.name.host(host), "ss", "-K", "-t", "state", "established"]
                subprocess.run(words, check=True, capture_output=True)

        def told(words: str) -> int:
            return endpoint.command.written()[1].count(words)

        back = ") is heard again"
        assert set(endpoint.answers_while(cut, lambda: endpoint.standing() == (2, 2) and told(back) == 2)) == {200}
        assert told("was lost: nothing was heard of it for 5") == 2
        assert set(endpoint.answers_while(reset, lambda: endpoint.standing() == (2, 4) and told(back) == 4)) == {200}
        assert told("was lost: its connection broke") == 2
        assert len(endpoint.named("replica")) == 2, "those of an earlier incarnation have ended"


@pytest.mark.full
def test_replicas_on_hosts_come_with_the_load(room: Room) -> None:
    with served(room, "lab(hosts=2)", "--slo", "p99:8ms", "--largest-batch", "1", replicas="1:2") as endpoint:
        assert len(endpoint.networks()) == 1
        assert set(endpoint.answers_while(lambda: None, lambda: len(endpoint.networks()) == 2)) == {200}


IN_LAYERS = """
import torch
from torch import nn
import covey

task = covey.Task(
    model=lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)),
    data=(torch.ones(8, 2), torch.ones(8, 2)), loss=nn.functional.mse_loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=4,
)
"""


@pytest.mark.full
def test_replicas_in_stages_are_rows_of_a_host(room: Room) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    with served(room, "lab(hosts=2)", "--stages", "2", task=IN_LAYERS, model=model) as endpoint:
        first, second = (
            {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in endpoint.named(f"replica {rank} stage")}
            for rank in (0, 1)
        )
        assert len(first) == len(second) == 1 and first != second
        status, told = endpoint.predict(1, 2.5)
        assert status == 200 and told["output"] == pytest.approx(model(torch.tensor([1, 2.5])).tolist())
