"""What tells sliced, bigdl and caffeonspark apart: who holds which optimizer state, and what goes over the wire."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.sliced.slice_owners import FreshSlice, GradientSlice, Owner
from covey.errors import PlanError
from covey.exchange.codecs.bits import truncated
from covey.message import Address, Message, stamped
from covey.model.flat import Form
from covey.observe.instruments import Instrument
from covey.program import Memory
from covey.servers.goodbye import Goodbye
from covey.vector import Vector, chunk
from tests.worlds import Point, World, adam, mlp, paced, quadratic, run, sgd, worker


def test_bigdl_cuts_toward_zero_on_the_wire() -> None:
    """1.00390625 + 2^-9 has more bits than 16 of float32 hold: nearest would go up, BigDL goes towards zero."""
    number = 1.00390625 + 2**-9
    for sign in (1, -1):
        vector = Vector([torch.tensor([sign * number])])
        coder = truncated().made(Form.plain(vector), 0)
        wire, _ = coder.encode(vector, None)
        assert coder.decode(wire).parts[0].item() == sign * 1.0
    log = run(mlp(), "bigdl", 3, steps=2).log
    assert {part.dtype for sent in log.kinds(GradientSlice) for part in sent.message.grad.parts} == {torch.int16}
    assert {part.dtype for sent in log.kinds(FreshSlice) for part in sent.message.params.parts} == {torch.int16}


def test_an_owner_alone_holds_the_optimizer_state_of_its_slice() -> None:
    world = run(mlp(adam()), "bigdl", 4, steps=3)
    numbers = world.replicas[worker(0)].flat.numel
    for rank in range(4):
        start, stop = chunk(numbers, 4, rank)
        states = world.replicas[worker(rank)].optimizer.state.values()
        assert sum(state["exp_avg"].numel() for state in states) == stop - start
        assert {int(state["step"]) for state in states} == {3}, "each slice is stepped once per step in the cluster"


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_caffeonspark_has_no_server_and_sends_two_slices_to_everybody(workers: int) -> None:
    """2 (n - 1) / n of the model from each node (ragged: D - own + (n - 1) own), and nobody but workers."""
    world = run(quadratic(size=11), "caffeonspark", workers, steps=4)
    assert {who.role for who in world.replicas} == {"worker"}
    for rank in range(workers):
        start, stop = chunk(11, workers, rank)
        assert world.log.bytes_from(worker(rank)) == 4 * 8 * (11 - (stop - start) + (workers - 1) * (stop - start))


@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adam()])
@pytest.mark.parametrize("samples", [128, 97])
def test_slices_are_bit_equal_to_one_server(optimizer: object, samples: int) -> None:
    """Also when worker 0 goes on alone: the others still own their slices."""
    task = mlp(optimizer, samples=samples)  # type: ignore[arg-type]
    one, many = run(task, "bsp", 4, epochs=2), run(task, "caffeonspark", 4, epochs=2)
    assert all(torch.equal(one.scored[name], many.scored[name]) for name in one.scored)
    assert len(many.log.values("update")) == len(one.log.values("update"))


@settings(max_examples=15, deadline=None)
@given(slow=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5), samples=st.integers(9, 60), seed=st.integers(0, 9))
def test_speeds_change_no_bit(slow: list[float], samples: int, seed: int) -> None:
    def once(speeds: list[float]) -> World:
        return run(quadratic(samples=samples), "sliced", len(slow), epochs=2, seed=seed, cluster=paced(speeds, 0.3))

    assert torch.equal(once(slow).scored["w"], once([1.0] * len(slow)).scored["w"])


class Norm(torch.optim.SGD):
    """Stands for optimizers that look at whole parameters."""

    elementwise = False


def test_bigdl_refuses_optimizers_that_need_whole_parameters_and_sliced_gives_them_whole_ones() -> None:
    task = mlp(lambda pairs: Norm(pairs, lr=0.1))
    with pytest.raises(PlanError, match="Norm looks at whole parameters"):
        run(task, "bigdl", 3, steps=1)
    sliced = run(task, "sliced", 3, steps=3)
    assert all(torch.equal(value, run(task, "bsp", 3, steps=3).scored[name]) for name, value in sliced.scored.items())


@pytest.mark.parametrize("codec", ["truncated", "fp16", "bf16", "twobit(threshold=0.01)"])
def test_sliced_takes_codecs(codec: str) -> None:
    task = quadratic(size=64, dtype=torch.float32)
    dense, narrow = run(task, "sliced", 2, steps=10), run(task, f"sliced + {codec}", 2, steps=10)
    assert sum(e.size for e in narrow.log.sends) <= 0.6 * sum(e.size for e in dense.log.sends)
    assert torch.isfinite(narrow.scored["w"]).all() and Point
    if "twobit" not in codec:
        assert torch.allclose(dense.scored["w"], narrow.scored["w"], atol=0.05)


class Lending(Instrument):
    """Where the tensors of slices lay when they were sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[Address, GradientSlice | FreshSlice, int]] = []

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, GradientSlice | FreshSlice):
            (part,) = message.grad.parts if isinstance(message, GradientSlice) else message.params.parts
            self.seen.append((sender, message, part.untyped_storage().data_ptr()))


@pytest.mark.parametrize("samples", [128, 97])
def test_gradients_and_fresh_slices_are_lent(samples: int) -> None:
    """Owners read gradients, and the others fresh slices, where they lie. What is copied might change too early: the
    slices of a step after which somebody ends, who may still be reading when the next update comes."""
    lending = Lending()
    world = run(mlp(samples=samples), "sliced", 4, epochs=1, watch=[lending])
    last = {world.deal.steps(rank) - 1 for rank in range(4)}
    assert {type(message) for _, message, _ in lending.seen} == {GradientSlice, FreshSlice}
    for sender, message, place in lending.seen:
        replica, is_grad = world.replicas[sender], isinstance(message, GradientSlice)
        (home,) = (replica.grad if is_grad else replica.flat).parts
        lent = place == home.untyped_storage().data_ptr()
        assert lent == (is_grad or message.step not in last)


def test_a_goodbye_that_comes_again_after_a_restart_counts_once() -> None:
    owner: Any = object.__new__(Owner)
    words = [stamped(Goodbye(), worker(rank), copy=False) for rank in (2, 1, 1)]

    async def receive_any(*kinds: Any) -> Message:
        return words.pop()

    async def broadcast(*given: Any) -> None: ...

    owner.node = SimpleNamespace(receive_any=receive_any, broadcast=broadcast, workers=3, address=worker(0))
    owner.peers, owner.done = [worker(rank) for rank in range(3)], Memory([0])
    with pytest.raises(StopIteration):
        owner.serve_the_rest().send(None)
    assert owner.done.value == [0, 1, 2] and words == []
