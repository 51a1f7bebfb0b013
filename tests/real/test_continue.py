"""A worker that is killed is restarted in its place, while the others go on: `--on-failure continue`."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import torch

import covey
from covey.errors import PeerLost, PlanError, RoleFailed
from covey.observe.progress import Progress
from tests.real.harness import Room, fit

AT_STEP = "time.sleep(0.005)"
SUM = "malt(barrier=true)"  # where all hear all, that is a sum of all gradients: nothing is lost


class Killer:
    """Kills a role again and again, each time after its run has come so many samples further."""

    def __init__(self, room: Room, *victims: str, every: int = 60) -> None:
        self.room, self.victims, self.every = room, list(victims), every
        self.next, self.said, self.lines = every, list[str](), 0

    def say(self, line: str) -> None:
        self.said.append(line)

    def update(self, now: Progress) -> None:
        if self.victims and now.phase == "training" and now.samples >= self.next and len(self.said) >= self.lines:
            self.room.kill(self.victims.pop(0))
            self.next, self.lines = now.samples + self.every, len(self.said) + 1


def weights(result: covey.Result) -> list[torch.Tensor]:
    return [result.weights[name] for name in sorted(result.weights)]


def check(result: covey.Result, killer: Killer, victims: list[str]) -> None:
    """Every death is told, and counted."""
    assert not killer.victims and isinstance(result.membership, list)
    assert [event.who for event in result.membership] == victims
    assert all(event.cause == "killed by signal 9" and 0 < event.stalled < 60 for event in result.membership)
    assert [event.view for event in result.membership] == list(range(1, len(victims) + 1))
    told = re.compile(r"worker \d died \(killed by signal 9\); replaced after .* s")
    said = [line for line in killer.said if told.fullmatch(line)]
    assert len(said) == len(victims)
    assert not isinstance(result.goodput, msgspec.UnsetType) and result.goodput.accepted == result.samples


@pytest.mark.parametrize("deaths", [3, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize("servers", [1, 2])
def test_bsp_ends_with_the_weights_of_a_run_that_lost_nobody(room: Room, servers: int, deaths: int) -> None:
    task, steps = room.task(before_step=AT_STEP, model="nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.2))"), 30 * deaths
    victims = [f"worker {number % 2}" for number in range(deaths)]
    killer = Killer(room, *victims)
    result = fit(task, "bsp", 2, servers=servers, steps=steps, on_failure="continue", watcher=killer)
    check(result, killer, victims)
    plain = fit(task, "bsp", 2, servers=servers, steps=steps)
    assert all(map(torch.equal, weights(result), weights(plain))) and result.samples == plain.samples
    assert result.failures == [] and plain.membership is msgspec.UNSET


@pytest.mark.parametrize("strategy", ["ssp", "asynchronous", "petuum", "downpour", "easgd(period=2)", "gosgd"])
def test_every_family_goes_on(room: Room, strategy: str) -> None:
    killer = Killer(room, "worker 1", "worker 1")
    result = fit(room.task(before_step=AT_STEP), strategy, 3, steps=60, on_failure="continue", watcher=killer)
    check(result, killer, ["worker 1", "worker 1"])
    assert result.samples == 10 * 64 and all(tensor.isfinite().all() for tensor in weights(result))


@pytest.mark.parametrize(
    "strategy",
    [
        "adpsgd", "dpsgd", *(
            pytest.param(spec, marks=pytest.mark.full)
            for spec in (
                "tree_easgd(fanout=2, up=1, down=2)", "sgp", "sgp(overlap=2)", "malt", "malt(bound=2)",
                SUM, "malt(share=model, barrier=true)",
            )
        ),
    ],
)  # fmt: skip
def test_peers_go_on(room: Room, strategy: str) -> None:
    victims = ["worker 1", "worker 0", "worker 1"]
    killer = Killer(room, *victims)
    result = fit(room.task(before_step=AT_STEP), strategy, 4, steps=80, on_failure="continue", watcher=killer)
    check(result, killer, victims)
    assert result.samples == 20 * 64 and all(tensor.isfinite().all() for tensor in weights(result))
    assert result.notes.get("lost models", result.notes.get("lost shares")) == (None if strategy == SUM else 3)


def test_large_models_travel_through_shared_memory_and_their_space_is_given_back(room: Room) -> None:
    """A lent gradient of the dead is read by the server after the new incarnation has begun to write its own."""
    task = room.task(before_step=AT_STEP, model="nn.Sequential(nn.Linear(6, 20000), nn.ReLU(), nn.Linear(20000, 3))")
    victims = ["worker 0", "worker 1", "worker 0"]
    killer = Killer(room, *victims)
    result = fit(task, "bsp", 2, servers=2, steps=90, on_failure="continue", watcher=killer)
    check(result, killer, victims)
    assert all(map(torch.equal, weights(result), weights(fit(task, "bsp", 2, servers=2, steps=90))))


class InScore(Killer):
    """Kills a worker the first times that the model is being scored."""

    def update(self, now: Progress) -> None:
        if self.victims and now.phase == "scoring" and now.samples and len(self.said) >= self.lines:
            self.room.kill(self.victims.pop(0))
            self.lines = len(self.said) + 1


def test_a_worker_that_is_lost_while_the_model_is_scored_comes_back_afterwards(room: Room) -> None:
    """Worker 0 shows the scorer its counters: the scorer does without them."""
    task = room.task(before_step=AT_STEP, before_score="time.sleep(0.3)", options="evaluate=score,")
    killer = InScore(room, "worker 0", "worker 1")
    result = fit(task, "bsp", 2, steps=40, on_failure="continue", watcher=killer)
    check(result, killer, ["worker 0", "worker 1"])
    plain = fit(task, "bsp", 2, steps=40)
    assert all(map(torch.equal, weights(result), weights(plain))) and len(result.history) == len(plain.history)


def test_a_step_that_kills_its_worker_ends_the_run(room: Room) -> None:
    """One death more in a row, without a new step between them, than is allowed; the run ends with its name."""
    task = room.task(before_step="(HERE / 'life').open('a').write('x'); CALLS[0] and os.kill(os.getpid(), 9)")
    with pytest.raises(PeerLost, match=r"worker 0 exited with signal 9.*: it died 2 times without finishing a step"):
        fit(task, "bsp", 1, steps=9, on_failure="continue", max_failures=1)
    assert (room.path / "life").read_text() == "xx"


def test_a_lost_server_ends_the_run(room: Room) -> None:
    with pytest.raises(PeerLost, match=r"^server 0 exited with signal 9, SIGKILL"):
        fit(
            room.task(before_step=AT_STEP), "bsp", 2, steps=900, on_failure="continue",
            watcher=Killer(room, "server 0"),
        )  # fmt: skip


def test_what_the_users_own_code_raises_ends_the_run(room: Room) -> None:
    task = room.task(before_step="(HERE / 'life').open('a').write('x'); 1 / 0")
    with pytest.raises(RoleFailed, match="ZeroDivisionError"):
        fit(task, "bsp", 1, steps=9, on_failure="continue")
    assert (room.path / "life").read_text() == "x"


@pytest.mark.parametrize(
    ("strategy", "options", "needed"),
    [
        ("firecaffe", {}, "firecaffe cannot go on without a lost worker; use bsp, ssp"),
        ("allreduce(bucket=4MB)", {}, "use bucket=0; or use"),
        ("allreduce(pattern=auto)", {}, "name a pattern"),
        ("local_sgd(after=3)", {}, "omit after"),
        ("allreduce + int8", {}, "omit the codec"),
        ("quorum(count=gradients)", {}, 'use count=workers; or use on_failure="restart"'),
        ("easgd(mode=synchronous)", {}, "use mode=asynchronous"),
        ("bsp + int8 + pull", {}, r"omit \+ pull"),
        ("bsp + auto", {}, r"omit \+ pull and \+ auto"),
        ("gosgd + int8", {}, "omit the codec"),
        ("bsp over proxies(groups=2)", {}, "omit 'over proxies"),
        ("bsp with mesh(stage=2)", {"engine": "simulated"}, "omit 'with mesh"),
        ("bsp", {"engine": "mpi"}, "simulated, lab and ray, not for mpi: use .*restart.* on the engine ray or lab"),
        ("bsp", {"max_failures": 0}, "max_failures=0: at least 1"),
    ],
)
def test_what_cannot_go_on_is_refused(room: Room, strategy: str, options: dict[str, Any], needed: str) -> None:
    task = room.task(model="nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))")
    with pytest.raises(PlanError, match=needed):
        covey.fit(task, strategy, 2, on_failure="continue", **options)


def test_one_worker_without_servers_is_refused(room: Room) -> None:
    with pytest.raises(PlanError, match="allreduce with 1 worker has nobody to take the model from: use 2 or more"):
        covey.fit(room.task(), "allreduce", 1, on_failure="continue")


def test_layers_that_normalize_over_all_workers_are_refused(room: Room) -> None:
    task = room.task(model="nn.Sequential(nn.Linear(6, 12), nn.SyncBatchNorm(12), nn.Linear(12, 3))")
    with pytest.raises(PlanError, match=r'nn.SyncBatchNorm.*use on_failure="restart"'):
        fit(task, "bsp", 2, steps=4, on_failure="continue")


@pytest.mark.parametrize("deaths", [3, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ("allreduce", "nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.2))"),
        ("allreduce", "nn.Sequential(nn.Linear(6, 20000), nn.ReLU(), nn.Linear(20000, 3))"),
    ],
)  # fmt: skip
def test_global_sums_end_with_the_weights_of_a_run_that_lost_nobody(
    room: Room, strategy: str, model: str, deaths: int
) -> None:
    task, steps = room.task(before_step=AT_STEP, model=model), 20 * deaths
    victims = [f"worker {number % 3}" for number in range(deaths)]
    killer = Killer(room, *victims)
    result = fit(task, strategy, 3, steps=steps, on_failure="continue", watcher=killer)
    check(result, killer, victims)
    plain = fit(task, strategy, 3, steps=steps)
    assert all(map(torch.equal, weights(result), weights(plain))) and result.samples == plain.samples
