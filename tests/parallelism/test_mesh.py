"""A cut model in virtual time: what it learns is what the uncut model, or the paper's recurrence, would learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import covey
from covey.catalog import resolve
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.decentral.gossip.gosgd import Gossip
from covey.errors import PlanError
from covey.message import Address
from covey.model import build
from covey.model.randomness import seed_of
from covey.parallelism.pipeline.stage_replica import StageReplica
from covey.parallelism.pipeline.stage_worker import Back, StageWorker
from covey.parallelism.plan.timetable import Move
from covey.program import Node
from covey.report import gantt
from covey.report.pipelines import timetable_of
from covey.simulate import Cluster, Link
from covey.simulate.units import Seconds
from covey.spec import SpecError
from covey.task import Task
from covey.task.data import check_data
from covey.vector import Vector, chunk
from tests.worlds import run

RATE = 0.05
IMAGES, LABELS = covey.data.digits(train=True).tensors
TEST = [(image.double(), label) for image, label in covey.data.digits(train=False)]


def mlp() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 24), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(24, 24), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(24, 10))


class Residual(nn.Module):
    """Convolutions with batch-norm, a connection that skips, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 4, 3)
        self.norm, self.other = nn.BatchNorm2d(6), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.one(x.view(-1, 1, 8, 8))).relu()
        x = self.other(self.three(self.drop(self.two(x)) + x)).relu()
        return self.head(self.drop(x.flatten(1)))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.all, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(self.norm(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.outer(self.inner(x).relu())


class Transformer(nn.Module):
    """Eight rows of a digit as words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 12), nn.Linear(12, 10)
        self.blocks = nn.Sequential(*(Attention(12) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x.view(-1, 8, 8))).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "Residual": Residual, "Transformer": Transformer}


def task(model: Callable[[], nn.Module] = mlp, **given: Any) -> Task:
    """The digits in float64, so that only the order of additions can make a difference: 1e-15 of a number, not 1e-7."""
    return Task(
        model=lambda: model().double(), data=(IMAGES.double(), LABELS), loss=nn.functional.cross_entropy,
        **{"batch_size": 16, "optimizer": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9), **given},
    )  # fmt: skip


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


class Alone:
    """One process and a plain loop over the very micro-batches: what a cut model has to be equal to."""

    def __init__(self, task: Task, parts: int = 1) -> None:
        self.task, self.parts = task, parts
        self.deal = Shards(check_data(build.data_of(task)), 1, task.batch_size, 0)
        self.feed, self.module = Feed(build.data_of(task), self.deal, 0), build.model(task, 0)
        self.losses: list[float] = []

    def micro(self, step: int, part: int) -> tuple[Any, float]:
        """A micro-batch, its chance drawn, and what it counts."""
        numbers = self.deal.indices(0, step)
        start, stop = chunk(len(numbers), self.parts, part)
        torch.manual_seed(seed_of(0, 0, step, part if self.parts > 1 else None))
        return self.feed.take(numbers[start:stop]), (stop - start) / len(numbers)

    def train(self, steps: int) -> dict[str, Tensor]:
        optimizer = self.task.optimizer(iter(list(self.module.named_parameters())))
        for step in range(steps):
            optimizer.zero_grad()
            loss = 0.0
            for part in range(self.parts):
                batch, share = self.micro(step, part)
                found = self.task.forward(self.module, batch) * share
                found.backward()
                loss += found.item()
            self.losses.append(loss)
            optimizer.step()
        return {name: value.detach() for name, value in self.module.state_dict().items()}


SHORT = [("plain", 3, "mlp"), ("gpipe", 4, "Residual"), ("1f1b", 2, "Transformer"), ("1f1b", 3, "Residual")]
EVERY = [(name, stages, model) for name in ("plain", "gpipe", "1f1b") for stages in (2, 3, 4) for model in MODELS]


@pytest.mark.parametrize(
    ("timetable", "stages", "named"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.full) for case in EVERY],
)
def test_a_cut_model_learns_what_the_uncut_one_learns(timetable: str, stages: int, named: str) -> None:
    model, parts = MODELS[named], 1 if timetable == "plain" else 4
    alone = Alone(task(model), parts)
    expected = alone.train(50)
    world = run(task(model), f"allreduce with mesh(stage={stages}, timetable={timetable})", stages, steps=50)
    assert farthest(expected, world.scored) < 1e-10
    told = [note.value for note in world.log.notes if note.kind == "loss"]
    assert told == pytest.approx(alone.losses, abs=1e-10)


def test_micro_batches_of_unequal_length_count_their_samples() -> None:
    """Of 18 samples in 4 parts two have 4 and two have 5: in the gradient, and in the loss that is told."""
    uneven = task(batch_size=18)
    alone = Alone(uneven, 4)
    expected = alone.train(6)
    world = run(uneven, "allreduce with mesh(stage=2, timetable=gpipe)", 2, steps=6)
    assert farthest(expected, world.scored) < 1e-10
    assert world.log.values("loss") == pytest.approx(alone.losses, abs=1e-10)


def test_what_a_task_draws_behind_its_model_is_what_it_draws_uncut() -> None:
    def noisy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        shift = torch.randn(10).double()
        output = model(batch[0])
        return nn.functional.cross_entropy(output + shift + torch.randn_like(output), batch[1])

    drawing = replace(task(Residual), step=noisy, loss=None)
    expected = Alone(drawing, 4).train(4)
    world = run(drawing, "allreduce with mesh(stage=2, timetable=gpipe)", 2, steps=4)
    assert farthest(expected, world.scored) < 1e-10


class Nested(nn.Module):
    """A module of several layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())  # type: ignore[no-any-return]


def test_a_cut_at_a_module_is_behind_all_of_its_layers() -> None:
    world = run(task(Nested), "allreduce with mesh(stage=2, cut=body, timetable=plain)", 2, steps=1)
    held = [world.replicas[Address("worker", rank)].flat.numel for rank in range(2)]
    assert held == [64 * 8 + 8 + 8 * 8 + 8, 8 * 10 + 10]


class TwoTypes(nn.Module):
    """Its second stage begins with another type than the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 8), nn.Linear(8, 8).double(), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x.flatten(1)).double()).tanh().float())  # type: ignore[no-any-return]


def test_a_model_of_two_types_is_put_together_again() -> None:
    two = replace(task(), model=TwoTypes, data=(IMAGES, LABELS))
    world = run(two, "allreduce with mesh(stage=2, cut=first, timetable=plain)", 2, steps=4)
    assert farthest(Alone(two).train(4), world.scored) < 1e-5


def test_each_stage_of_a_hogwild_has_a_vector_of_its_own() -> None:
    plain = task(optimizer=lambda p: torch.optim.SGD(p, lr=RATE))
    world = run(plain, "hogwild with mesh(replica=2, stage=2, timetable=plain)", 4, steps=4)
    places = [world.replicas[Address("worker", rank)].flat.parts[0].data_ptr() for rank in range(4)]
    assert places[0] == places[2] != places[1] == places[3]


def test_weights_stay_while_a_batch_under_way_needs_them() -> None:
    """A run that is kept then sets it out again, with the weights that it had."""
    line = object.__new__(StageWorker)
    line.stage_schedule = SimpleNamespace(oldest=5)  # type: ignore[assignment]
    for flying, oldest in (({}, 5), ({Move("F", 4): 3, Move("F", 5): 4}, 3), ({Move("F", 7): 6}, 5)):
        line.flying = flying
        assert line.oldest == oldest


def test_what_was_told_before_a_restart_is_not_taken() -> None:
    """It lies in the mailbox that was kept, and is computed and told again."""
    line = object.__new__(StageWorker)
    line.since = 5
    old, new = (Back(7, since, Vector([torch.full((1,), float(since))])) for since in (3, 5))
    mail = [old, new]

    class Restarted:
        async def receive(self, kind: type[Back], **of: Any) -> Back:
            return mail.pop(0)

    with pytest.raises(StopIteration) as ended:
        line.take(Restarted(), Back, 1, 7).send(None)  # type: ignore[arg-type]
    assert ended.value.value is new


@pytest.mark.parametrize("model", [mlp, Residual])
def test_interleaved_and_recomputed_too(model: Callable[[], nn.Module]) -> None:
    expected = Alone(task(model), 4).train(20)
    for mesh in ("timetable=interleaved", "timetable=gpipe, recompute=true", "timetable=1f1b, recompute=true"):
        world = run(task(model), f"allreduce with mesh(stage=2, {mesh})", 2, steps=20)
        assert farthest(expected, world.scored) < 1e-10, mesh


class Versions:
    """PipeDream's recurrence by hand: each stage's weights after every update, and a gradient at a mix of them."""

    def __init__(self, task: Task, parts: int, borders: Sequence[int]) -> None:
        self.alone = Alone(task, parts)
        named = dict(self.alone.module.named_parameters())
        self.stage = {name: sum(int(name.split(".")[0]) > border for border in borders) for name in named}
        self.kept = [{name: value.detach().clone() for name, value in named.items()}]

    def step(self, version: Callable[[int], int]) -> None:
        """One update; `version` says which weights stage k uses for this batch."""
        number = len(self.kept) - 1
        mixed = {
            name: self.kept[max(0, version(stage))][name].clone().requires_grad_()
            for name, stage in self.stage.items()
        }  # fmt: skip
        for part in range(self.alone.parts):
            (x, y), share = self.alone.micro(number, part)
            output = functional_call(self.alone.module, mixed, (x,))
            (nn.functional.cross_entropy(output, y) * share).backward()  # type: ignore[no-untyped-call]
        newest = self.kept[-1]
        self.kept.append({name: newest[name] - RATE * mixed[name].grad for name in newest})  # type: ignore[operator]


def plain_sgd(**given: Any) -> Task:
    return task(optimizer=lambda p: torch.optim.SGD(p, lr=RATE), **given)


CUT = {2: [4], 3: [2, 6]}  # after these layers of the mlp


def cut(stages: int) -> str:
    return ":".join(map(str, CUT[stages]))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("vertical", [False, True])
def test_pipedream_is_its_recurrence(stages: int, vertical: bool) -> None:
    """Backward with the very weights of forward: with the newest ones, or with equal ones on all stages, it differs."""
    hand = Versions(plain_sgd(), 1, CUT[stages])
    for number in range(24):
        hand.step(lambda stage, t=number: t - (stages - 1) + (0 if vertical else stage))
    mesh = f"mesh(stage={stages}, timetable=pipedream, vertical={str(vertical).lower()}, cut={cut(stages)})"
    world = run(plain_sgd(), f"allreduce with {mesh}", stages, steps=24)
    assert farthest(hand.kept[-1], world.scored) < 1e-10
    ages = [world.log.values("staleness", Address("worker", stage))[-1] for stage in range(stages)]
    assert ages == [stages - 1 if vertical else stages - 1 - stage for stage in range(stages)]


def test_pipedream_of_one_stage_is_plain_training() -> None:
    world = run(plain_sgd(), "allreduce with mesh(stage=1, timetable=pipedream)", 1, steps=12)
    assert farthest(Alone(plain_sgd()).train(12), world.scored) < 1e-10


@pytest.mark.parametrize("stages", [2, 3])
def test_2bw_is_one_update_late_everywhere(stages: int) -> None:
    hand = Versions(plain_sgd(), 4, CUT[stages])
    for number in range(16):
        hand.step(lambda stage, t=number: t - 1)
    world = run(plain_sgd(), f"allreduce with mesh(stage={stages}, timetable=2bw, cut={cut(stages)})", stages, steps=16)
    assert farthest(hand.kept[-1], world.scored) < 1e-10
    assert set(world.log.values("staleness")) == {0.0, 1.0}


INSTANT = Cluster(compute=Seconds(0.3), link=Cluster().link.__class__(bandwidth=math.inf, latency=Seconds(0.0)))


@pytest.mark.parametrize(
    ("timetable", "stages", "parts", "bubble"),
    [
        ("plain", 3, 1, 2 / 3), ("gpipe", 2, 4, 1 / 5), ("gpipe", 3, 8, 2 / 10), ("1f1b", 3, 4, 2 / 6),
        ("1f1b", 2, 8, 1 / 9), ("interleaved", 2, 4, 1 / 9),
    ],
)  # fmt: skip
def test_the_bubble_is_the_formulas(timetable: str, stages: int, parts: int, bubble: float) -> None:
    chunks = 2 if timetable == "interleaved" else 1
    micro = "" if timetable == "plain" else f", microbatches={parts}"
    load = ":".join(["1"] * stages * chunks)
    mesh = f"mesh(stage={stages}, timetable={timetable}{micro}, load={load})"
    world = run(task(), f"allreduce with {mesh}", stages, cluster=INSTANT, steps=3)
    busy = sum(end - begin for begin, end, _ in world.log.computes)
    assert 1 - busy / (stages * world.outcome.seconds) == pytest.approx(bubble)


def test_a_pipeline_that_never_flushes_has_no_bubble_but_its_ends() -> None:
    world = run(task(), "allreduce with mesh(stage=2, timetable=pipedream, load=1:1)", 2, cluster=INSTANT, steps=40)
    busy = sum(end - begin for begin, end, _ in world.log.computes)
    assert busy / (2 * world.outcome.seconds) > 0.97


class Tied(nn.Module):
    """What turns words into numbers turns them back."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.inner, self.head = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(self.turn(x.flatten(1)).tanh()).tanh()
        return self.head(nn.functional.linear(h, self.turn.weight.t()).tanh())


class Turning(Tied):
    """The first layer's weight is the last one's, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.inner(self.turn(x.flatten(1)).tanh()).tanh(), self.turn.weight.t())


@pytest.mark.parametrize("stages", [2, 3])
def test_tied_weights_that_leave_no_cut_are_named(stages: int) -> None:
    with pytest.raises(PlanError, match="or allow cuts between its tied weights: tied=sum adds up their gradients"):
        covey.fit(task(Turning), f"allreduce with mesh(stage={stages})", stages, engine="simulated", steps=1)


def test_tied_weights_are_refused_or_summed() -> None:
    with pytest.raises(PlanError, match="tied"):
        run(task(Tied), "allreduce with mesh(stage=2, cut=inner)", 2, steps=1)
    world = run(task(Tied), "allreduce with mesh(stage=2, cut=inner, tied=sum)", 2, steps=20)
    assert farthest(Alone(task(Tied), 4).train(20), world.scored) < 1e-10
    with pytest.raises(PlanError, match="tied"):
        run(task(Tied), "allreduce with mesh(stage=2, timetable=pipedream, cut=inner, tied=sum)", 2, steps=1)


UNEVEN = Cluster(
    compute=Seconds(0.01), jitter=0.3, links={f"worker {rank}": Link(latency=Seconds(0.05)) for rank in (0, 3)}
)  # fmt: skip


SHARING = ("easgd(period=4)", "asynchronous", "ssp", "gosgd", "local_sgd(period=4)", "sliced")


@pytest.mark.parametrize("strategy", [SHARING[0], *(pytest.param(s, marks=pytest.mark.full) for s in SHARING[1:])])
def test_a_tied_weight_has_one_owner(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each stage pulls at a centre of its own, over uneven links, copies of one weight would drift apart."""
    used: dict[tuple[int, int], list[Tensor]] = {}
    announce = StageReplica.announce

    async def spying(self: StageReplica, node: Node) -> None:
        weights = [p for module in self.layout.modules for n, p in module.named_parameters() if n == "turn.weight"]
        used.setdefault((node.rank, node.step), []).extend(weight.detach().clone() for weight in weights)
        await announce(self, node)

    monkeypatch.setattr(StageReplica, "announce", spying)
    adam = task(Tied, optimizer=lambda p: torch.optim.Adam(p, lr=0.01))
    mesh = "mesh(replica=2, stage=2, cut=inner, tied=sum, microbatches=2)"
    world = run(adam, f"{strategy} with {mesh}", 4, steps=40, cluster=UNEVEN)
    assert len(used) == 2 * 40 and all(len(both) == 2 and torch.equal(*both) for both in used.values())
    owners = [who for who, replica in world.replicas.items() if "turn.weight" in replica.layout.parameters]
    assert owners and all(who.rank % 2 == 0 for who in owners), "no role of the second stage has it in its vectors"


def test_the_stages_of_a_replica_draw_alike() -> None:
    """Else the parts of one model would gossip with parts of different ones."""
    mesh = "mesh(replica=3, stage=2, timetable=plain)"
    log = run(task(mlp), f"gosgd(probability=0.5) with {mesh}", 6, steps=8).log
    peers: dict[int, list[int]] = {rank: [] for rank in range(6)}
    for sent in log.kinds(Gossip):
        peers[sent.sender.rank].append(sent.to.rank // 2)
    assert all(peers[2 * replica] == peers[2 * replica + 1] for replica in range(3))
    assert sum(map(len, peers.values())) > 12


class HeadFirst(Tied):
    """The weight is called after the end of the model, and owned by its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._modules = {"back": nn.Linear(64, 32, bias=False), **self._modules}
        self.back.weight = self.turn.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(self.turn(x.flatten(1)).tanh()).tanh()
        return self.head(nn.functional.linear(h, self.back.weight.t()).tanh())


def test_a_tied_weight_has_the_name_that_it_has_in_the_whole_model() -> None:
    named: list[str] = []

    def sgd(params: Any) -> torch.optim.Optimizer:
        pairs = list(params)
        named.extend(name for name, _ in pairs)
        return torch.optim.SGD(pairs, lr=RATE, momentum=0.9)

    whole = Alone(task(HeadFirst, optimizer=sgd), 4).train(20)
    expected = set(named)
    assert "back.weight" in expected and "turn.weight" not in expected
    named.clear()
    world = run(task(HeadFirst, optimizer=sgd), "allreduce with mesh(stage=2, cut=inner, tied=sum)", 2, steps=20)
    assert farthest(whole, world.scored) < 1e-10 and set(named) == expected


def test_a_stage_with_only_weights_of_another_is_refused() -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Linear(64, 64, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.turn(x.flatten(1)).tanh(), self.turn.weight)[:, :10]

    with pytest.raises(PlanError, match="stage 1 .* has nothing to train but weights of another stage"):
        run(task(Ends), "allreduce with mesh(stage=2, cut=turn, tied=sum)", 2, steps=1)


@pytest.mark.parametrize("nested", [False, True])
def test_layers_that_speak_with_other_workers_are_refused(nested: bool) -> None:
    def model() -> nn.Module:
        first = [nn.Flatten(), nn.Linear(64, 24), nn.SyncBatchNorm(24), nn.Tanh()]
        return nn.Sequential(*([nn.Sequential(*first)] if nested else first), nn.Linear(24, 10))

    with pytest.raises(PlanError, match="nn.SyncBatchNorm speaks with other workers"):
        run(task(model), "bsp with mesh(stage=2)", 2, steps=1)


def test_a_gradient_is_clipped_as_a_whole() -> None:
    clipped = task(clip_norm=0.3)
    tied = task(Tied, clip_norm=0.3)
    world = run(tied, "local_sgd(period=4) with mesh(stage=2, cut=inner, tied=sum, timetable=plain)", 2, steps=15)
    assert farthest(run(tied, "local_sgd(period=4)", 1, steps=15).scored, world.scored) < 1e-10, "counted once"
    world = run(clipped, "local_sgd(period=4) with mesh(stage=3, timetable=plain)", 3, steps=15)
    uncut = run(clipped, "local_sgd(period=4)", 1, steps=15)
    assert farthest(uncut.scored, world.scored) < 1e-10
    assert farthest(run(task(), "local_sgd(period=4)", 1, steps=15).scored, world.scored) > 1e-3
    with pytest.raises(PlanError, match="clip"):
        run(clipped, "bsp with mesh(stage=2)", 2, steps=1)


SYNCHRONOUS = ("bsp", "allreduce", "local_sgd(period=4)", "dpsgd over ring", "sliced", "ssp(bound=0)")


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_a_strategy_among_replicas_is_the_same_as_among_workers(strategy: str) -> None:
    world = run(task(), f"{strategy} with mesh(replica=2, stage=2, timetable=plain)", 4, steps=16)
    assert farthest(run(task(), strategy, 2, steps=16).scored, world.scored) < 1e-10


LEARNERS = ("bsp", "ssp", "asynchronous", "allreduce", "local_sgd", "easgd")
FEW = {("ssp", "pipedream"), ("easgd", "1f1b")}


@pytest.mark.parametrize(
    ("strategy", "timetable"),
    [
        pytest.param(strategy, timetable, marks=() if (strategy, timetable) in FEW else pytest.mark.full)
        for strategy in LEARNERS
        for timetable in ("1f1b", "pipedream")
    ],
)
def test_stages_times_replicas_learn(strategy: str, timetable: str) -> None:
    learner = task(batch_size=32, evaluate=covey.accuracy(TEST))
    mesh = f"mesh(replica=2, stage=2, timetable={timetable})"
    result = covey.fit(learner, f"{strategy} with {mesh}", workers=4, engine="simulated", epochs=4)
    assert result.history[-1]["accuracy"] > 0.3
    assert result.samples == 4 * check_data(build.data_of(learner))
    assert result.taxonomy["parallelism"] == "model + data"


CHOOSING = ("a_bsp", "specsync", "gradient_coding", "halp", "sandblaster")
LOOKING_INSIDE = ("p3", "tictac", "bytescheduler", "staggered", "poseidon")


@pytest.mark.parametrize("name", [*CHOOSING, *LOOKING_INSIDE])
def test_who_cannot_be_cut_says_so_before_anything_starts(name: str) -> None:
    with pytest.raises(SpecError, match="use"):
        resolve(f"{name} with mesh(stage=2)", 4)


@pytest.mark.parametrize(
    ("mesh", "workers", "why"),
    [
        ("mesh(stage=3)", 4, "multiple of 3"), ("mesh(replica=2, stage=2)", 3, "4 workers"), ("mesh()", 2, "stage=2"),
        ("mesh(stage=0)", 2, "at least"), ("grid(stage=2)", 2, "mesh"), ("mesh(stages=2)", 2, "did you mean 'stage'"),
        ("mesh(stage=2, timetable=plain, microbatches=4)", 2, "whole"), ("mesh(stage=2, chunks=2)", 2, "interleaved"),
        ("mesh(stage=3, timetable=2bw, microbatches=2)", 3, "at least 3"),
        ("mesh(stage=2, vertical=true)", 2, "pipedream"),
        ("mesh(stage=1, timetable=interleaved)", 1, "several stages"),
    ],
)  # fmt: skip
def test_a_mesh_that_cannot_be_is_told_what_would_work(mesh: str, workers: int, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        resolve(f"bsp with {mesh}", workers)


@pytest.mark.parametrize(
    ("mesh", "why"),
    [
        ("stage=2, cut=nowhere", "the layers are"), ("stage=2, cut=3:5", "not 2"), ("stage=2, memory=1kB", "no cut"),
        ("stage=2, cut=0", "nothing to train"), ("stage=2, microbatches=32", "use fewer"), ("stage=2, cut=99", "0 to"),
        ("stage=2, cut=equal, memory=1kB", "largest stage"), ("stage=9", "fewer stages"),
        ("stage=2, load=1:2:3", "2 parts"), ("stage=2, cut=4, load=1:2:3", "such as 50:50"),
        ("stage=2, cut=0, load=1:1", "nothing to train"), ("stage=2, load=much:more", "such as 60:40"),
        ("stage=2, cut=4, load=0:1", "2 parts"), ("stage=2, cut=4, load=1:1, memory=1kB", "largest stage"),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_is_told_what_would_work(mesh: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        run(task(), f"bsp with mesh({mesh})", int(mesh[6]), steps=1)


def test_the_spec_says_where_it_was_cut_and_gives_the_same_again() -> None:
    first = covey.fit(task(), "bsp with mesh(stage=2)", workers=2, engine="simulated", steps=3)
    assert "cut=" in first.strategy and "load=" in first.strategy
    again = covey.fit(task(), first.strategy, workers=2, engine="simulated", steps=3)
    assert again.strategy == first.strategy and str(again.history) == str(first.history)


def test_a_recording_is_a_timetable_with_its_bubble() -> None:
    result = covey.fit(
        task(), "allreduce with mesh(stage=2, timetable=gpipe, load=1:1)", workers=2, engine="simulated", steps=2,
        cluster=INSTANT, traced=True,
    )  # fmt: skip
    assert result.recording is not None
    seen = timetable_of(result.recording)
    assert str(seen.timetable.rows[0]) == "F0 F1 F2 F3 B3 B2 B1 B0 F4 F5 F6 F7 B7 B6 B5 B4"
    assert seen.bubble() == pytest.approx(1 / 5)
    drawn = gantt.draw(seen)
    assert drawn.count("class='gap'") == len(seen.gaps()) > 0 and f"bubble, {seen.bubble():.1%}" in drawn


def test_distbelief_is_stages_times_downpour() -> None:
    system = run(task(), "distbelief with mesh(replica=2, stage=2)", 4, steps=6)
    assert farthest(system.scored, run(task(), "downpour with mesh(replica=2, stage=2)", 4, steps=6).scored) == 0
    assert {event.sender.role for event in system.log.sends} == {"worker", "server"}
