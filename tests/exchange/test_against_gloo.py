"""Every pattern against torch.distributed: a real gloo group in real processes, random sizes and groups."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from covey.exchange.collectives.by_name import PATTERNS
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import workers
from covey.vector import Vector
from tests.worlds import perform

RANKS, DTYPES = 5, (torch.float32, torch.float64, torch.int64)


class Case(NamedTuple):
    """Who sums how many numbers of which kind."""

    members: list[int]
    length: int
    dtype: torch.dtype
    seed: int

    def numbers(self, rank: int) -> Tensor:
        chance = torch.Generator().manual_seed(self.seed * RANKS + rank)
        return (1000 * torch.randn(self.length, generator=chance, dtype=torch.float64)).to(self.dtype)


def cases() -> list[Case]:
    chance = Random(3)
    members = [sorted(chance.sample(range(RANKS), size)) for size in (2, 3, 4, 5, 5)]
    return [
        Case(who, chance.choice([1, 3, 64, 501]), DTYPES[seed % len(DTYPES)], seed) for seed, who in enumerate(members)
    ]


def by_gloo(rank: int, place: Path) -> None:
    """One process of the group; the first member of each case writes down what came out."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{place}/store", timedelta(seconds=60), RANKS, rank)
    for number, case in enumerate(cases()):
        group = dist.new_group(case.members)
        if rank in case.members:
            summed = case.numbers(rank)
            dist.all_reduce(summed, group=group)
            if rank == case.members[0]:
                torch.save(summed, place / f"{number}.pt")
    dist.barrier()
    dist.destroy_process_group()


def by_covey(name: str, case: Case) -> list[Tensor]:
    group, vectors = workers(len(case.members)), [Vector([case.numbers(rank)]) for rank in case.members]

    async def run(node: Node, replica: Replica) -> None:
        await PATTERNS[name](node, vectors[node.rank], group)

    perform(*[run] * len(group))
    return [vector.parts[0] for vector in vectors]


def test_the_sums_of_gloo(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=by_gloo, args=(rank, tmp_path), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * RANKS
    for number, case in enumerate(cases()):
        theirs = torch.load(tmp_path / f"{number}.pt")
        for name in PATTERNS:
            ours = by_covey(name, case)
            assert all(torch.equal(one, ours[0]) for one in ours)
            if case.dtype.is_floating_point:
                assert torch.allclose(ours[0], theirs, rtol=1e-4, atol=1e-2 if case.dtype == torch.float32 else 1e-9)
            else:
                assert torch.equal(ours[0], theirs)
