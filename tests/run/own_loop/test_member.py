"""A loop of one's own with one worker: everything means what it means with several."""

from __future__ import annotations

import contextlib
import doctest
import random
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import covey
from covey.data.seeded_draws import seed_all
from covey.errors import PlanError
from covey.run.own_loop.counting import LoaderCounts, StepSamples, lacks_gradient
from covey.run.own_loop.loading import Sizes
from covey.run.own_loop.member import Member
from covey.run.own_loop.scaling import overflowed
from covey.run.own_loop.settings import replica_of
from covey.run.own_loop.trained import WaitingGradients
from covey.run.own_loop.worker_member import WorkerMember
from covey.run.own_loop.written_weights import FilledBuffers, WrittenWeights

X, Y = torch.linspace(-1, 1, 24).view(12, 2), torch.arange(12) % 3


def made(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(2, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def backward(model: nn.Module, x: torch.Tensor = X, y: torch.Tensor = Y) -> None:
    functional.cross_entropy(model(x), y).backward()


def test_the_example_of_join_runs() -> None:
    (example,) = doctest.DocTestFinder().find(covey.join, globs={"covey": covey})
    assert len(example.examples) == 4 and doctest.DocTestRunner().run(example).failed == 0


def test_a_step_is_the_optimizers_and_zeroes_gradients() -> None:
    (model, optimizer), (plain, its) = made(), made()
    with covey.join(model, optimizer) as member:
        for _ in range(3):
            backward(model)
            member.step()
            assert all(parameter.grad is None for parameter in model.parameters())
            its.zero_grad()
            backward(plain)
            its.step()
    assert torch.equal(model.weight, plain.weight)  # type: ignore[arg-type]


def test_a_step_without_any_gradient_warns() -> None:
    model, optimizer = made()
    with covey.join(model, optimizer) as member:
        with pytest.warns(UserWarning, match=r"trains nothing.*backward") as warned:
            member.step(samples=4)
        assert warned[0].filename == __file__, "the line of the loop is shown"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            backward(model)
            member.step(samples=4)


def test_accumulated_gradients_add_up() -> None:
    (model, optimizer), (plain, its) = made(), made()
    with covey.join(model, optimizer) as member:
        for number in range(4):
            with member.accumulate(number % 2 == 0):
                backward(model)
                member.step()
        with member.accumulate():
            backward(model)
        backward(model)
        member.step()
    for _ in range(3):
        its.zero_grad()
        backward(plain)
        backward(plain)
        its.step()
    assert torch.equal(model.weight, plain.weight)  # type: ignore[arg-type]


def test_what_is_stepped_on_is_clipped_once() -> None:
    (model, optimizer), (plain, its) = made(), made()
    with covey.join(model, optimizer) as member:
        for clipped in (True, False):
            backward(model)
            if clipped:
                member.clip(0.01)
            member.step()
            its.zero_grad()
            backward(plain)
            if clipped:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
            its.step()
    assert torch.equal(model.weight, plain.weight)  # type: ignore[arg-type]


def test_a_scaler_is_left_as_its_own_step_leaves_it() -> None:
    (model, optimizer), (plain, its) = made(), made()
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in range(2))
    with covey.join(model, optimizer) as member:
        for number in range(5):
            scaler.scale(functional.cross_entropy(model(X), Y)).backward()
            other.scale(functional.cross_entropy(plain(X), Y)).backward()
            if number == 1:
                model.weight.grad[0, 0] = plain.weight.grad[0, 0] = float("nan")  # type: ignore[index, union-attr]
            if number == 3:  # as loops do that look at gradients before the step
                scaler.unscale_(optimizer)
            member.step(scaler=scaler)
            scaler.update()
            other.step(its)
            other.update()
            its.zero_grad()
            assert scaler.get_scale() == other.get_scale()
            assert torch.equal(model.weight, plain.weight)  # type: ignore[arg-type]


def test_an_overflow_of_another_worker_lowers_the_scale_here_too() -> None:
    (model, optimizer), scaler = made(), torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(functional.cross_entropy(model(X), Y)).backward()
    assert overflowed(scaler, optimizer, lambda here: True)
    scaler.update()
    assert scaler.get_scale() == 4.0


def test_a_gradient_to_which_another_backward_has_added_has_not_waited() -> None:
    (first, its), (second, other) = made(0), made(1)
    waiting = WaitingGradients([its, other])
    for model in (first, second):
        backward(model)
    waiting.set_aside(its)
    waiting.give_back()
    assert waiting.used(other) and not waiting.used(its)
    backward(second)
    assert not waiting.used(other)


def test_one_of_several_optimizers_steps_and_the_others_gradients_wait() -> None:
    (first, its), (second, other) = made(0), made(1)
    with covey.join([first, second], [its, other]) as member:
        (functional.cross_entropy(first(X) + second(X), Y)).backward()
        before, waiting = second.weight.clone(), second.weight.grad.clone()  # type: ignore[operator, union-attr]
        member.step(optimizer=its)
        assert torch.equal(second.weight, before) and torch.equal(second.weight.grad, waiting)  # type: ignore[arg-type]
        member.step(optimizer=other)
        assert not torch.equal(second.weight, before)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="several optimizers: say which"):
            member.step()
        with pytest.raises(PlanError, match=r"not given to covey\.join"):
            member.step(optimizer=made()[1])


def test_a_scheduler_does_not_warn() -> None:
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings(), covey.join(model, optimizer) as member:
        warnings.simplefilter("error")
        backward(model)
        member.step()
        scheduler.step()


def test_a_step_that_passes_by_the_strategy_is_refused() -> None:
    model, optimizer = made()
    with covey.join(model, optimizer) as member:
        backward(model)
        with pytest.raises(PlanError, match=r"called optimizer\.step\(\).*call member\.step\(loss\)"):
            optimizer.step()
        member.step()
    optimizer.step()


def test_a_model_that_exchanges_gradients_itself_is_refused() -> None:
    _, optimizer = made()
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(PlanError, match="give covey.join the plain model"):
        covey.join(wrapped, optimizer)


@pytest.mark.parametrize(
    ("value", "how", "found"),
    [(1, "any", True), (0, "any", False), (torch.tensor(True), "all", True), (torch.tensor(2.5), "mean", 2.5)],
)
def test_one_worker_agrees_with_itself(value: Any, how: Any, found: Any) -> None:
    with covey.join(*made()) as member:
        answer = member.agree(value, how)
        assert answer == found and type(answer) is type(found)
        with pytest.raises(PlanError, match="use 'any', 'all' or 'mean'"):
            member.agree(value, "most")  # type: ignore[arg-type]


def test_a_norm_must_be_one() -> None:
    with pytest.raises(PlanError, match=r"member\.clip: max_norm must be more than 0, not 0"):
        Member(*made()).clip(0)


def test_a_loop_that_never_ends_by_itself_ends_with_the_run() -> None:
    given, after = [], False
    with covey.join(*made()) as member:
        batches = member.loader(DataLoader(TensorDataset(X, Y), 5))
        while True:
            with contextlib.suppress(Exception):  # loops that go on after any failure end too
                given.extend(batches)
            with torch.no_grad():
                assert len(list(batches)) == 3, "who only looks still sees everything"
            member._position.ended = len(given) > 5
    after = True
    assert len(given) == 6 and after


def test_other_failures_leave_the_block() -> None:
    with pytest.raises(KeyError), covey.join(*made()):
        raise KeyError


def test_what_is_kept_is_named_before_the_first_step() -> None:
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with covey.join(model, optimizer) as member:
        member.keep(scheduler)
        backward(model)
        member.step()
        with pytest.raises(PlanError, match=r"member\.keep was called after the first member\.step: call it before"):
            member.keep(scheduler)


# -- how many samples a step has ---------------------------------------------------------------------------------------


def test_batches_of_a_step_are_counted_together() -> None:
    counts = LoaderCounts(2)
    counts.pulled(Sizes(4, 8))
    counts.pulled(Sizes(3, 5))
    assert counts.weight == 7 * 2 / 13
    taken = counts.take(None)
    assert (taken.mine, taken.everybody, taken.divided, taken.alike) == (7, 13, True, False)
    counts.pulled(Sizes(4, 8))
    assert counts.take(4).everybody == 8, "what the loop tells is what the loader knows"
    counts.pulled(Sizes(4, 8))
    assert counts.take(3).everybody is None, "the others must be asked"


def test_what_is_only_looked_at_is_of_no_step() -> None:
    counts = LoaderCounts(2)
    with torch.no_grad():
        counts.pulled(Sizes(9, 18))
    counts.pulled(Sizes(4, 8))
    assert counts.take(None).mine == 4


def test_without_a_loader_the_model_shows_the_samples() -> None:
    model, optimizer = made()
    member = Member(model, optimizer, workers=2)
    with member:
        model(X)
        model(X[:5])
        with torch.no_grad():
            model(torch.ones(99, 2))
        taken = member._counts.take(None)
        assert (taken.mine, taken.everybody, taken.divided) == (12, None, False)
        with member.accumulate():
            model(X)
            member.step()
        model(X[:5])
        assert member._counts.take(None).mine == 17
    model(X)
    with pytest.raises(PlanError, match=r"cannot see how many samples.*member\.loader.*samples=n"):
        member._counts.take(None)


def test_another_optimizers_step_with_the_same_batches_counts_the_same_samples() -> None:
    counts = LoaderCounts(2)
    counts.pulled(Sizes(3, 8))
    first = counts.take(None)
    assert counts.take(None) == first and first.mine == 3
    counts.pulled(Sizes(5, 8))
    counts.skip(None)  # the first optimizer's gradients overflowed
    assert counts.take(None).mine == 5
    counts.pulled(Sizes(4, 8))
    assert counts.take(7).mine == 7, "what the loop tells, such as tokens, overrides the loader"
    assert counts.take(None).mine == 7


def test_samples_may_be_told_of_some_batches_of_a_step() -> None:
    """Of the others the model shows them, wherever in the step they are."""
    counts = LoaderCounts(2)
    counts.add(10)
    counts.looked(4)
    assert counts.take(None).mine == 14, "told inside accumulate, and not at the step"
    counts.looked(4)
    counts.add(None)
    assert counts.take(10).mine == 14, "and the other way round"
    counts.add(10)
    taken = counts.take(None)
    assert taken.mine == 10 and taken.divided


@pytest.mark.parametrize("samples", [-1, 1.5, True])
def test_samples_are_a_number(samples: Any) -> None:
    with covey.join(*made()) as member, pytest.raises(PlanError, match=r"member\.step: samples must be "):
        member.step(samples=samples)


def test_a_loader_alone_is_the_whole_loader() -> None:
    model, optimizer = made()
    with covey.join(model, optimizer) as member:
        loader = member.loader(DataLoader(TensorDataset(X, Y), 5))
        assert len(loader) == 3
        assert torch.equal(torch.cat([x for x, _ in loader]), X)


@pytest.mark.parametrize(
    ("between", "counted"),
    [
        ("skip before the gradients are zeroed", 3), ("skip after it", 3), ("skip after zeroing in place", 3),
        ("accumulate", 7), ("no forward", 7),
    ],
)  # fmt: skip
def test_batches_that_are_skipped_do_not_count(between: str, counted: int) -> None:
    weight = nn.Parameter(torch.ones(2))
    counts = LoaderCounts(2, lambda: [weight])
    counts.pulled(Sizes(4, 10))
    if between != "no forward":
        counts.looked(4)
        weight.grad = torch.ones(2)
    if between == "skip after it":
        weight.grad = None
    elif between == "skip after zeroing in place":
        weight.grad.zero_()  # type: ignore[union-attr]
    counts.pulled(Sizes(3, 6))
    if between == "skip before the gradients are zeroed":
        weight.grad = None
    counts.looked(3)
    weight.grad = weight.grad.add_(1) if weight.grad is not None else torch.ones(2)
    found = counts.take(None)
    assert (found.mine, found.everybody) == (counted, 6 if counted == 3 else 16)


@pytest.mark.parametrize(
    ("told", "everybody", "refused"),
    [(4, 8, False), (3, 8, False), (3, None, True), (4, None, False)],  # None: the others are asked, and have 8
)
def test_layers_that_normalize_together_know_the_samples_before_the_step(
    told: int, everybody: int | None, refused: bool
) -> None:
    """Unequal batches are fine where each step uses one batch of `member.loader`."""
    member: Any = object.__new__(WorkerMember)
    model, optimizer = made()
    Member.__init__(member, model, optimizer)
    member.workers = 2
    member._replica = SimpleNamespace(compute=SimpleNamespace(norms=[object()]))
    member._vote = lambda *given: 8.0
    counted = StepSamples(mine=told, everybody=everybody, divided=True, told=True, alike=everybody is not None)
    with pytest.raises(PlanError, match=r"SyncBatchNorm.*drop_last=True") if refused else contextlib.nullcontext():
        member._weigh(optimizer, counted)


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_sample_of_4096_weights_is_compared_at_each_step(size: int) -> None:
    model = nn.Linear(size, 1, bias=False)
    replica = replica_of(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda optimizer: None)
    written = WrittenWeights(replica.layout)
    compared = sum(len(sample) for sample in written._sample())
    assert compared == min(size, 4096)
    for _ in range(3):
        written.note()
        assert written.check() is None
        with torch.no_grad():
            model.weight[0, : size // 10] += 1
        assert written.check() == "weight"


def test_weights_that_are_no_numbers_any_more_are_not_taken_for_written_ones() -> None:
    model = nn.Linear(100, 1, bias=False)
    replica = replica_of(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda optimizer: None)
    written = WrittenWeights(replica.layout)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    written.note()
    assert written.check() is None
    with torch.no_grad():
        model.weight[0, 7] = 1.0
    assert written.check() == "weight"


def test_a_compiled_model_keeps_the_names_of_its_tensors() -> None:
    """Nothing is compiled before the first batch, so this costs nothing."""
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    replica = replica_of(torch.compile(plain), torch.optim.SGD(plain.parameters(), lr=0.1), lambda optimizer: None)
    assert [*replica.layout.parameters] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_from_join_on_each_worker_draws_its_own() -> None:
    """Dropout and augmentation of two workers differ, though their scripts begin with one seed."""
    found = []
    for rank in range(3):
        member, model = object.__new__(WorkerMember), nn.Linear(2, 1)
        Member.__init__(member, model, torch.optim.SGD(model.parameters(), lr=0.1), workers=3)
        member.rank, member.seed = rank, 7
        member._turns = SimpleNamespace(start=lambda *given: None, wait=lambda: None, over=False, mine=False)  # type: ignore[assignment]
        member._keeping = SimpleNamespace(begin=lambda: None, position=member._position)  # type: ignore[assignment]
        member._shared = SimpleNamespace(begin=lambda: None)  # type: ignore[assignment]
        seed_all(7)
        member.__enter__()
        found.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        Member.__exit__(member, None, None, None)
    assert all(len({draws[kind] for draws in found}) == 3 for kind in range(3))


class TellsEpoch:
    """A sampler that orders its samples by the epoch that it is told."""

    epoch = 0

    def __init__(self, shuffle: bool = True) -> None:
        self.shuffle = shuffle

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        return iter(np.random.RandomState(self.epoch if self.shuffle else 0).permutation(12).tolist())


@pytest.mark.parametrize(("told", "shuffle"), [(True, True), (False, False), (False, True)])
def test_a_sampler_is_told_the_epoch_by_the_loop_or_covey_warns_once(told: bool, shuffle: bool) -> None:
    sampler: Any = TellsEpoch(shuffle)
    loader, orders = DataLoader(range(12), 4, sampler=sampler), []  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as warned, covey.join(*made()) as member:
        warnings.simplefilter("always")
        for epoch in range(4):
            if told:
                sampler.set_epoch(epoch)
            orders.append([number for batch in member.loader(loader) for number in batch.tolist()])
            with torch.no_grad():
                list(member.loader(loader))
    assert (orders[0] == orders[1]) is not (told and shuffle)
    assert len([one for one in warned if "set_epoch" in str(one.message)]) == (not told and shuffle)


def test_a_pass_that_only_looks_changes_no_order_of_those_that_train() -> None:
    """One worker may validate alone, and all still train on one order."""

    def orders(validates: bool) -> list[list[float]]:
        found = []
        with covey.join(*made()) as member:
            for _ in range(3):
                found += [batch[:, 0].tolist() for (batch,) in member.shard((X,), 5)]
                loader = DataLoader(TensorDataset(X), 5, shuffle=True)
                found += [batch[:, 0].tolist() for (batch,) in member.loader(loader)]
                if validates:
                    with torch.no_grad():
                        assert len(list(member.shard((X,), 5))) == len(list(member.loader(DataLoader(X, 5)))) == 3
        with torch.no_grad():
            assert len(list(member.shard((X,), 5))) == 3, "also behind the block"
        return found

    assert orders(True) == orders(False)


def test_what_needs_a_gradient_and_has_none() -> None:
    model, optimizer = made()
    assert lacks_gradient(optimizer)
    model.weight.grad = torch.zeros_like(model.weight)  # type: ignore[arg-type, assignment]
    assert not lacks_gradient(optimizer)
    model.requires_grad_(False)
    model.weight.grad = None
    assert not lacks_gradient(optimizer), "what is frozen needs none"


class Remembers(nn.Module):
    """Has a queue of samples, a table that stays, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("table", torch.ones(5))
        self.register_buffer("queue", torch.zeros(20_000, 2))
        self.register_buffer("count", torch.zeros(3, dtype=torch.long))


def test_buffers_that_a_loop_fills_are_found_but_not_those_of_torchs_own_layers() -> None:
    model: Any = nn.Sequential(Remembers())
    buffers = FilledBuffers([model])
    model[0].norm(X)
    model[0].count += 1
    assert buffers.check() is None
    model[0].queue[40:56] = 1.0
    assert buffers.check() == "0.queue"
    assert [buffers.check() for _ in range(3)] == ["0.queue", "0.queue", None], "it looks at the first steps only"
    several = FilledBuffers([model, Remembers()])
    model[0].queue.zero_()
    assert several.check() == "0.0.queue", "also where another model has a buffer of that name"


def test_an_optimizer_made_after_join_is_refused() -> None:
    """`member.step` would go on with the first one."""
    model, optimizer = made()
    plain = torch.optim.Optimizer.add_param_group
    with covey.join(model, optimizer):
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        with pytest.raises(PlanError, match=r"made a new Adam after covey.join.*param_groups\[0\]"):
            torch.optim.Adam(model.parameters())
    assert torch.optim.Optimizer.add_param_group is plain
    torch.optim.Adam(model.parameters())


def test_alone_too_an_optimizer_has_only_what_models_have() -> None:
    model, bare = nn.Linear(2, 3), nn.Parameter(torch.tensor(1.0))
    with pytest.raises(PlanError, match=r"a parameter of one number that the model.*bare nn.Parameter into"):
        covey.join(model, torch.optim.SGD([*model.parameters(), bare], lr=0.1))
    with pytest.raises(PlanError, match="a parameter of shape 3 x 2 that"):
        covey.join(nn.Linear(1, 1), torch.optim.SGD(model.parameters(), lr=0.1))


def test_alone_too_what_was_frozen_at_join_stays_so() -> None:
    model, optimizer = made()
    model.get_parameter("bias").requires_grad_(False)
    with covey.join(model, optimizer) as member:
        backward(model)
        member.step()
        model.get_parameter("bias").requires_grad_(True)
        backward(model)
        with pytest.raises(PlanError, match="bias needed no gradient at covey.join"):
            member.step()


def test_steps_are_no_iterations_where_there_are_several_optimizers() -> None:
    parts = [nn.Linear(2, 2), nn.Linear(2, 2)]
    member = covey.join(parts, [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts])
    with member, pytest.raises(PlanError, match=r"one step in each iteration.*omit it, as in range\(1000\)"):
        member.first_step()
