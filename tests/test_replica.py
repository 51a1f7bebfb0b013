"""One copy of the model on one role: gradients, streams, updates, shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.errors import CheckpointError, PlanError
from covey.message import Message
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.program import Node
from covey.servers.common_states import expect_losses
from covey.vector import Piece, Vector
from tests.worlds import CLUSTER, adam, perform, sgd, vector


def network(width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
    ).double()


DATA = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def training(module: nn.Module, during: Callable[[], None] = lambda: None) -> Callable[[int], Batch]:
    """A source as a task makes it; `during` happens between forward and backward."""

    def source(step: int) -> Batch:
        for parameter in module.parameters():
            parameter.grad = None
        loss = module(DATA).square().mean()
        during()
        loss.backward()
        return Batch(loss.item(), len(DATA))

    return source


def trained(module: nn.Module, optimizer: object = None, **more: object) -> Replica:
    return Replica(module, optimizer or sgd(), BatchSource(own=training(module)), **more)  # type: ignore[arg-type]


def double(vector: Vector) -> None:
    vector.mul_(2)


def plain_gradient(module: nn.Module) -> Tensor:
    """The same by hand; the module's numbers are those of `network`."""
    module.zero_grad()
    module(DATA).square().mean().backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def steps(replica: Replica, program: Callable[[Node, Replica], object], count: int = 1) -> None:
    perform(program, replicas=[replica], steps=count)  # type: ignore[arg-type]


# -- gradients --------------------------------------------------------------------------------------------------------


def test_gradient_and_step_are_those_of_the_plain_loop() -> None:
    replica, plain = trained(network(), sgd(0.1, momentum=0.9)), network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)

    async def program(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            gradient = await replica.gradient(node)
            assert gradient is replica.grad
            assert torch.allclose(gradient.parts[0], plain_gradient(plain), atol=1e-12)
            replica.apply(gradient)
            optimizer.step()

    steps(replica, program, count=3)
    assert torch.allclose(replica.flat.parts[0], torch.cat([p.detach().reshape(-1) for p in plain.parameters()]))


@pytest.mark.parametrize("together", [True, False])
def test_no_gradient_counts_as_one_of_zeros(together: bool) -> None:
    """In a Task: weight decay moves a parameter on which the loss of a step does not depend."""
    module, often = network(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    module.register_parameter("often", often)

    def source(step: int) -> Batch:
        module.zero_grad(set_to_none=True)
        (module(DATA).square().mean() + (0.3 * often.sum() if step == 0 else 0.0)).backward()
        return Batch(0.0, len(DATA))

    replica = Replica(module, sgd(0.1, weight_decay=0.5), BatchSource(own=source))

    async def program(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            if together:
                replica.apply(await replica.gradient(node))
            else:
                await replica.descend(node)

    steps(replica, program, count=2)
    assert torch.allclose(often, torch.full((2,), (0.95 - 0.1 * 0.3) * 0.95, dtype=torch.float64))
    assert replica.batch.samples == 5


class Idle(nn.Module):
    """Of its two layers only the first is used after the first step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.idle, self.step = nn.Linear(3, 2).double(), nn.Linear(3, 2).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return self.used(x) + self.idle(x) if self.step == 1 else self.used(x)


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("make", [network, Idle])
def test_a_step_alone_is_that_of_the_gradient(make: Callable[[], nn.Module], clip_norm: float | None) -> None:
    """Also of parameters that a batch does not use: their momentum goes on, as with a gradient of zeros."""
    optimizer = sgd(0.1, momentum=0.9, weight_decay=0.1)
    one, other = (trained(make(), optimizer, clip_norm=clip_norm) for _ in range(2))

    async def alone(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await replica.descend(node)

    async def in_two(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            replica.apply(await replica.gradient(node))

    steps(one, alone, count=3)
    steps(other, in_two, count=3)
    assert torch.equal(one.flat.parts[0], other.flat.parts[0])
    assert torch.equal(one.grad.parts[0], other.grad.parts[0]), "and whoever asks for the gradient has it"


def test_a_gradient_from_elsewhere_is_applied_and_a_scale_counts_once() -> None:
    replica = Replica(nn.Linear(2, 1, bias=False).double(), sgd(0.5))
    replica.flat.copy_(vector(1, 1))
    replica.apply(vector(1, 2), scale=0.5)
    assert replica.flat.parts[0].tolist() == [0.75, 0.5]
    replica.apply(vector(1, 2))
    assert replica.flat.parts[0].tolist() == [0.25, -0.5]
    assert replica.optimizer.param_groups[0]["lr"] == 0.5


def test_a_schedule_follows_the_samples_before_the_step() -> None:
    seen: list[float] = []

    def rate(progress: float) -> float:
        seen.append(progress)
        return 1 - progress

    replica = trained(network(), sgd(0.1), rate=rate, budget=20)

    async def program(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            replica.apply(await replica.gradient(node))

    steps(replica, program, count=6)
    assert seen == [0, 0.25, 0.5, 0.75, 1, 1]


# -- weights that change while a gradient is computed -----------------------------------------------------------------


def test_without_a_shield_writes_between_forward_and_backward_spoil_the_gradient() -> None:
    """And autograd does not notice: that is why the shield is there."""
    module = network()
    replica = Replica(module, sgd())
    replica.batch_source = BatchSource(own=training(module, during=lambda: double(replica.flat)))

    async def program(node: Node, replica: Replica) -> None:
        await replica.gradient(node)

    steps(replica, program)
    assert not torch.allclose(replica.grad.parts[0], plain_gradient(network()), atol=1e-6)


def test_a_shield_keeps_the_weights_as_they_were_when_compute_began() -> None:
    module = network()
    replica = Replica(module, sgd())
    replica.batch_source = BatchSource(own=training(module, during=lambda: double(replica.flat)))
    replica.shield()
    replica.shield()  # twice is once

    async def program(node: Node, replica: Replica) -> None:
        await replica.gradient(node)

    start = replica.flat.clone()
    steps(replica, program)
    assert torch.allclose(replica.grad.parts[0], plain_gradient(network()), atol=1e-12)
    assert torch.equal(replica.flat.parts[0], 2 * start.parts[0]), "and what was written stays written"


@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adam(0.1)], ids=["momentum", "adam"])
def test_a_shielded_replica_trains_as_any_other(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    async def program(node: Node, replica: Replica) -> None:
        for step in node.steps():
            replica.apply(await replica.gradient(node))
            if step == 2:
                replica.load(replica.flat * 0.5)

    ends = []
    for shielded in (False, True):
        replica = trained(network(), optimizer)
        if shielded:
            replica.shield()
        steps(replica, program, count=5)
        ends.append(replica.flat.parts[0])
    assert torch.equal(ends[0], ends[1])


def test_a_companion_writes_while_the_role_computes() -> None:
    """In virtual time the work runs at once; its result must not care what a companion does before it is through."""
    module = network()
    replica = trained(module)
    replica.shield()

    async def companion(node: Node, replica: Replica) -> None:
        await node.sleep(0.005)
        replica.flat.zero_()

    async def program(node: Node, replica: Replica) -> None:
        await node.spawn(companion(node, replica))
        replica.apply(await replica.gradient(node))

    steps(replica, program)
    assert torch.allclose(replica.flat.parts[0], -0.1 * plain_gradient(network()), atol=1e-12)


# -- streams ----------------------------------------------------------------------------------------------------------


def streamed(replica: Replica, bucket_bytes: int) -> tuple[list[Piece], list[float], Vector]:
    pieces: list[Piece] = []
    times: list[float] = []
    together = replica.grad.map(torch.zeros_like)

    async def program(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            async for piece in replica.stream(node, bucket_bytes):
                pieces.append(piece)
                times.append(await node.now())
                together.cut(piece).add_(replica.grad.cut(piece))

    steps(replica, program)
    return pieces, times, together


@pytest.mark.parametrize("bucket_bytes", [1, 100, 200, 10**9])
def test_a_stream_gives_every_piece_once_last_layers_first(bucket_bytes: int) -> None:
    replica = trained(network())
    pieces, times, together = streamed(replica, bucket_bytes)
    assert torch.allclose(together.parts[0], plain_gradient(network()), atol=1e-12), "each piece once, when complete"
    starts = [piece[0][0] for piece in pieces]
    assert starts == sorted(starts, reverse=True)
    assert pieces[0][0][1] == replica.flat.numel and pieces[-1][0][0] == 0
    assert len(pieces) == {1: 6, 100: 3, 200: 2, 10**9: 1}[bucket_bytes]
    assert times == sorted(times) and times[-1] == pytest.approx(CLUSTER.compute)
    assert replica.batch.samples == 5


def test_pieces_come_while_backward_still_runs() -> None:
    _, times, _ = streamed(trained(network()), 1)
    assert len(set(times)) == 6
    assert times[0] > CLUSTER.compute / 3, "forward comes first"


class Listening:
    """A role's host that looks at the gradient in the very moment in which backward says that a piece is ready."""

    def __init__(self, host: Any, replica: Replica) -> None:
        self.host, self.replica = host, replica
        self.known: list[Tensor] = []

    def post(self, message: Message, progress: float) -> None:
        self.known.append(self.replica.grad.parts[0].clone())
        self.host.post(message, progress)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


def test_a_piece_is_in_its_place_as_soon_as_it_is_announced() -> None:
    replica = trained(network())
    listening: list[Listening] = []
    pieces: list[Piece] = []

    async def program(node: Node, replica: Replica) -> None:
        listening.append(Listening(node.host, replica))
        node.host = listening[0]
        pieces.extend([piece async for piece in replica.stream(node, 1)])

    steps(replica, program)
    expected = plain_gradient(network())
    assert len(listening[0].known) == len(pieces) == 6
    for known, piece in zip(listening[0].known, pieces, strict=True):
        start, stop = piece[0]
        assert torch.allclose(known[start:], expected[start:], atol=1e-12)
        assert (known[:start] == 0).all() and stop > start, "the layers before it are not there yet"


def test_a_stream_of_parameters_that_are_not_used_shared_or_of_other_dtypes() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(3, 3, bias=False).double()
            self.idle = nn.Parameter(torch.ones(2))
            self.single = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.single(self.shared(self.shared(x)).float())
            return out

    torch.manual_seed(0)
    module = Mixed()
    replica = trained(module)
    pieces, _, together = streamed(replica, 16)
    plain = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in module.parameters()]
    by_name = {slot.name: slot.view(together) for slot in replica.layout.slots}
    module.zero_grad()
    module(DATA).square().mean().backward()
    for name, parameter in module.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(by_name[name], expected), name
    covered = replica.grad.map(torch.zeros_like)
    for piece in pieces:
        for part in covered.cut(piece).parts:
            part.add_(1)
    assert all((part == 1).all() for part in covered.parts) and len(plain) == 4


def test_a_stream_can_be_taken_step_after_step() -> None:
    streaming, whole = trained(network()), trained(network())

    async def by_pieces(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            async for _ in replica.stream(node, 64):
                pass
            replica.update()

    async def at_once(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            replica.apply(await replica.gradient(node))

    steps(streaming, by_pieces, count=4)
    steps(whole, at_once, count=4)
    assert torch.equal(streaming.flat.parts[0], whole.flat.parts[0])
    assert streaming.progress.seen == whole.progress.seen == 20


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_shards_together_step_as_one(servers: int) -> None:
    """Every server applies its piece of the gradient; together that is one step of the whole optimizer."""
    whole = Replica(network(), adam(0.1))
    gradient = Vector([torch.linspace(-1, 1, whole.flat.numel, dtype=torch.float64)])
    shards = []
    for index in range(servers):
        shard = Replica(network(), adam(0.1))
        shard.keep(shard.pieces(servers)[index], buffers=index == 0)
        shards.append(shard)
    for _ in range(3):
        whole.apply(gradient)
        for shard in shards:
            shard.apply(gradient.cut(shard.trained))
    together = torch.cat([shard.flat.cut(shard.trained).parts[0] for shard in shards])
    assert torch.equal(together, whole.flat.parts[0])
    start = Replica(network(), adam(0.1)).flat.parts[0]
    for shard in shards:
        begin, end = shard.trained[0]
        outside = torch.cat([shard.flat.parts[0][:begin], shard.flat.parts[0][end:]])
        assert torch.equal(outside, torch.cat([start[:begin], start[end:]])), "it wrote outside of its piece"


def test_parameters_are_split_only_for_elementwise_optimizers() -> None:
    assert Replica(network(), sgd()).pieces(2) == [((0, 23),), ((23, 46),)]
    whole = Replica(network(), lambda pairs: torch.optim.Adafactor([p for _, p in pairs], lr=0.1))
    assert whole.pieces(2) == [((0, 16),), ((16, 46),)]  # after the first layer: 12 + 4 of 46 numbers


def test_an_optimizer_can_say_that_it_is_elementwise() -> None:
    class Mine(torch.optim.SGD):
        elementwise = True

    assert Replica(network(), lambda pairs: Mine(pairs, lr=0.1)).pieces(2) == [((0, 23),), ((23, 46),)]


def test_an_optimizer_gets_names_and_whole_shapes() -> None:
    given: list[tuple[str, torch.Size]] = []

    def make(pairs: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        listed = list(pairs)
        given.extend((name, p.shape) for name, p in listed)
        return torch.optim.SGD(listed, lr=0.1)

    Replica(network(), make)
    assert given == [(name, p.shape) for name, p in network().named_parameters()]


def test_a_server_without_parameters_and_an_optimizer_that_is_none() -> None:
    tiny = Replica(nn.Linear(1, 1, bias=False), sgd())
    with pytest.raises(PlanError, match="use fewer servers"):
        tiny.keep(tiny.pieces(2)[0], buffers=True)
    with pytest.raises(PlanError, match="must return a torch Optimizer; it returned a list"):
        Replica(network(), list)  # type: ignore[arg-type]


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_a_snapshot_stays_as_it_was() -> None:
    replica = Replica(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), sgd())
    snapshot = replica.snapshot()
    kept = snapshot.params.parts[0].clone()
    replica.flat.zero_()
    replica.buffers.mul_(9)
    assert torch.equal(snapshot.params.parts[0], kept)
    assert snapshot.buffers.parts[0].tolist() == [0, 0, 1, 1]
    assert snapshot.weight == 1


def test_only_the_server_that_keeps_the_buffers_shows_them() -> None:
    replica = Replica(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), sgd())
    replica.keep(replica.pieces(2)[1], buffers=False)
    assert replica.snapshot().buffers.parts == ()
    assert replica.snapshot().params.numel == 5


def test_state_goes_on_where_it_was_kept() -> None:
    def program_of(replica: Replica) -> None:
        async def program(node: Node, replica: Replica) -> None:
            for _ in node.steps():
                replica.apply(await replica.gradient(node))

        steps(replica, program, count=3)

    through, first, second = (trained(network(), adam(0.1)) for _ in range(3))
    program_of(through)
    program_of(through)
    program_of(first)
    second.restore(first.state())
    program_of(second)
    assert torch.equal(second.flat.parts[0], through.flat.parts[0])
    assert second.progress.seen == through.progress.seen == 30


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="0.weight \\(5, 3\\) float64 where this has 0.weight \\(4, 3\\) float64"):
        Replica(network(4), sgd()).restore(Replica(network(5), sgd()).state())


def test_statistics_of_the_scored_model_count_as_its_parameters_do() -> None:
    """A replica with three times the weight: of gosgd and sgp, whose weights differ."""
    score = ScoredModel(nn.BatchNorm1d(2), None)
    replicas = [Replica(nn.BatchNorm1d(2), sgd(0.1)) for _ in range(2)]
    for replica, weight in zip(replicas, (1.0, 3.0), strict=True):
        replica.weigh(weight)
        for held in (replica.flat, replica.buffers):
            held.zero_().parts[0].add_(weight)
    score.assemble([replica.snapshot() for replica in replicas])
    assert score.module.state_dict()["weight"].tolist() == [2.5, 2.5]
    assert score.module.state_dict()["running_mean"].tolist() == [2.5, 2.5]


def test_a_gradient_comes_back_from_where_backward_left_it() -> None:
    """So that a sum which a loss breaks off costs no copy of it."""
    replica = Replica(nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2)), sgd())
    used, _ = replica.module
    data = torch.ones(4, 3)

    def batch() -> Batch:
        for parameter in replica.module.parameters():
            parameter.grad = None
        loss = used(data).square().mean()
        loss.backward()
        return Batch(loss.detach(), 4)

    replica.compute.run(batch)
    assert replica.compute.undo() is None, "nobody asked for it"
    expect_losses(replica)
    replica.compute.run(batch)
    before, undo = replica.grad.clone(), replica.compute.undo()
    assert undo and before.norm() > 0
    replica.grad.parts[0].fill_(7)
    undo()
    assert replica.grad.parts[0].equal(before.parts[0]), "also zeros where there was no gradient"
    assert replica.compute.undo() is None, "it is gone with the round"
    replica.compute.run(lambda: (used(data).square().mean().backward(), Batch(0.0, 4))[1])
    assert replica.compute.undo() is None, "backward added to the vector itself"


def test_the_state_of_an_optimizer_moves_where_others_can_read_it() -> None:
    rooms: list[Vector] = []

    def house(numbers: Vector) -> Vector:
        rooms.append(numbers.clone())
        return rooms[-1]

    replica, plain = (Replica(nn.Linear(3, 2), adam()) for _ in range(2))
    plain.flat.copy_(replica.flat)
    expect_losses(replica)
    replica.updates.house = house
    for one in (replica, plain):
        for number in range(3):
            one.apply(one.flat * (number + 1))
    (room,) = rooms
    held = [value for kept in replica.optimizer.state.values() for value in kept.values() if value.dim()]
    assert [value.data_ptr() for value in held] == [part.data_ptr() for part in room.parts] and len(held) == 4
    assert replica.flat.parts[0].equal(plain.flat.parts[0])
    plain.apply(plain.flat * 4)
    replica.restore(plain.state())
    replica.updates.own_state()
    held, theirs = (
        [value for kept in one.optimizer.state.values() for value in kept.values() if value.dim()]
        for one in (replica, plain)
    )
    assert [value.data_ptr() for value in held] == [part.data_ptr() for part in room.parts] and len(rooms) == 1
    assert all(map(torch.equal, held, theirs)), "what came is in the same room"


def test_those_that_take_one_state_share_no_number_of_its_optimizer() -> None:
    class Remembering(torch.optim.Adam):
        """Torch's own keep no lists."""

    donor, first, second = (Replica(nn.Linear(3, 2), partial(Remembering, lr=0.01)) for _ in range(3))
    donor.apply(donor.flat)
    for kept in donor.optimizer.state.values():
        kept["history"] = [torch.zeros(2)]
    given = donor.state()
    for one in (first, second):
        one.restore(given)
        one.updates.own_state()
    held = [
        {value.data_ptr() for kept in one.optimizer.state.values() for value in (kept["step"], *kept["history"])}
        for one in (donor, first, second)
    ]
    assert not (held[0] & held[1] | held[0] & held[2] | held[1] & held[2])
    for one in (first, second):
        one.apply(one.flat)
        assert [float(kept["step"]) for kept in one.optimizer.state.values()] == [2, 2]
