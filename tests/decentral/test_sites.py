"""What tells sites apart: neighbours step together at home, and one of them speaks to the other sites, rarely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey import catalog
from covey.errors import PlanError
from covey.observe.result import Result
from covey.simulate import cluster_file
from covey.systems import SYSTEMS
from tests.worlds import adam, middle, mlp, quadratic, run, worker

THIN = """
[link]
bandwidth = "10mbit"
latency = "20ms"
[local]
bandwidth = "10gbit"
[[machine]]
count = 2
cores = 8
"""


def across(links: dict[str, int], size: int = 2) -> dict[str, int]:
    """Bytes between sites, by link."""
    ends = {link: [int(who.split()[1]) // size for who in link.split("->")] for link in links}
    return {link: links[link] for link, (here, there) in ends.items() if here != there}


def test_a_site_has_one_optimizer_to_the_bit_and_all_models_agree_after_a_block() -> None:
    world = run(mlp(adam()), "diloco(period=4, local=2)", 5, steps=4)
    models = [replica.flat.parts[0] for replica in world.workers()]
    assert all(torch.equal(models[0], other) for other in models[1:])
    moments = [replica.optimizer.state_dict()["state"][0]["exp_avg"] for replica in world.workers()]
    assert torch.equal(moments[0], moments[1]) and torch.equal(moments[2], moments[3])
    assert not torch.equal(moments[0], moments[2]) and not torch.equal(moments[2], moments[4])


def test_only_the_first_of_a_site_speaks_to_other_sites_and_only_at_the_end_of_a_block() -> None:
    log = run(mlp(), "diloco(period=3, local=2)", 4, steps=6).log
    between = [sent for sent in log.sends if sent.sender.rank // 2 != sent.to.rank // 2]
    assert {(sent.sender.rank, sent.to.rank) for sent in between} == {(0, 2), (2, 0)}
    model = 8 * (6 * 8 + 8 + 8 * 3 + 3)
    assert sum(sent.size for sent in between) == 2 * 2 * model  # two blocks, a ring of two
    assert len({sent.at for sent in between}) < len({sent.at for sent in log.sends}) / 2


def test_one_site_of_all_with_a_plain_mean_is_allreduce() -> None:
    ours = run(mlp(samples=97), "diloco(period=2, rate=1, momentum=0, local=4)", 4, epochs=3)
    theirs = run(mlp(samples=97), "allreduce", 4, epochs=3)
    assert all(torch.allclose(ours.scored[name], theirs.scored[name], atol=1e-12) for name in ours.scored)


def test_a_site_of_one_worker_is_diloco() -> None:
    ours, theirs = (run(mlp(), spec, 3, steps=5) for spec in ("diloco(period=2, local=1)", "diloco(period=2)"))
    assert ours.trace == theirs.trace


def test_a_schedule_goes_by_the_samples_of_all_sites() -> None:
    asked = list[float]()
    task = replace(quadratic(samples=96), rate=lambda progress: asked.append(progress) or 1.0)
    world = run(task, "diloco(period=4, local=2)", 4, steps=6)
    assert all(replica.progress.seen == world.outcome.samples == 96 for replica in world.workers())
    assert sorted({round(6 * progress, 6) for progress in asked}) == list(range(6))


def test_a_site_counts_once_whatever_its_size() -> None:
    """Three workers in one site and one in the other: the mean is over two sites, not over four workers."""
    task = quadratic()
    world = run(task, "diloco(period=1, rate=1, momentum=0, local=3)", 4, steps=1)
    first, second, third, alone = (middle(task, world.deal, rank, 0) for rank in range(4))
    cloud = ((first + second + third) / 3 + alone) / 2
    assert torch.allclose(world.flat(worker(0)), 1 - 0.1 * (1 - cloud))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2, 3))])
def test_nebula_needs_a_tenth_of_the_bytes_of_diloco_between_sites_and_loses_at_most_a_point(seed: int) -> None:
    """Two sites of two workers, 10 Mbit/s between them; both exchange every 8 steps."""
    diloco, nebula = (trained(spec, seed) for spec in ("diloco(period=8)", "nebula(period=8)"))
    assert sum(across(nebula.traffic.by_link).values()) <= 0.1 * sum(across(diloco.traffic.by_link).values())
    assert nebula.history[-1]["accuracy"] >= diloco.history[-1]["accuracy"] - 0.01
    assert nebula.seconds < diloco.seconds


def trained(spec: str, seed: int) -> Result:
    return covey.fit(
        "examples/digits.py", spec, 4, epochs=20, seed=seed, engine="simulated", cluster=cluster_file.read(THIN)
    )


def test_the_codec_of_a_system_holds_unless_another_is_named() -> None:
    assert catalog.resolve("nebula", 4).composition.codec.name == "topk(density=0.07)"
    assert catalog.resolve("nebula + int8", 4).composition.codec.name == "int8"
    assert catalog.resolve("nebula", 4).text.startswith("nebula(") and "local=2" in SYSTEMS["nebula"].spec


@pytest.mark.parametrize("given", [{"workers": "1:2"}, {"workers": 2, "on_failure": "continue"}])
def test_the_workers_of_a_site_cannot_come_and_go(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="breaks off the sums of its site"):
        covey.fit(mlp(), "diloco(period=2, local=2)", steps=2, engine="simulated", **given)


def test_a_site_has_workers() -> None:
    with pytest.raises(PlanError, match="1 worker or more"):
        catalog.resolve("diloco(local=0)", 4)
