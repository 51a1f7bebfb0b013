"""What a loop names to be kept: when it gets its state back, and what is refused before anything is lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from covey.errors import CheckpointError, PlanError
from covey.run.own_loop.keeping import LoopState


class Counter:
    """Has a state, and is no scheduler."""

    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def keeping(past: Any = None, saves: bool = True) -> LoopState:
    model = nn.Linear(2, 1)
    return LoopState([model], [torch.optim.SGD(model.parameters(), lr=0.1)], past, saves)


def kept(*values: int, steps: int = 3) -> dict[str, Any]:
    """A checkpoint in a step, with the state of some counters."""
    whole = keeping()
    whole.add(map(Counter, values))
    for _ in range(steps):
        whole.position.stepped()
    return whole.state()


def test_state_comes_back_when_the_loop_is_where_it_was() -> None:
    one, two = Counter(), Counter()
    again = keeping(kept(4, 5))
    again.add([one])
    again.begin()
    again.add([two])
    again.check()
    while again.position.replays:
        assert (one.value, two.value) == (0, 0), "until then a script goes through its past with what it has made"
        again.position.stepped()
    assert (one.value, two.value) == (4, 5)


def test_where_nothing_is_gone_through_again_it_comes_back_at_once() -> None:
    again, late = keeping(kept(4, steps=0)), Counter()
    again.begin()
    again.add([late])
    assert late.value == 4
    again.add([Counter()])
    again.check()  # a run that was kept before its first step may not have known of all


def in_turn() -> tuple[nn.Linear, nn.Linear, LoopState]:
    """Of a loop with two optimizers, which step one after the other."""
    models = nn.Linear(2, 1), nn.Linear(2, 1)
    return *models, LoopState(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models], saves=True)


def test_a_worker_that_follows_another_has_none_of_its_gradients() -> None:
    """What waits for the second optimizer's step is of that worker's own samples; a checkpoint keeps it."""
    one, two, whole = in_turn()
    (one(torch.ones(4, 2)) + two(torch.ones(4, 2))).sum().backward()
    whole.waiting.set_aside(whole.optimizers[0])
    _, resumed, again = in_turn()
    again.follow(whole.state())
    again.begin()
    assert resumed.weight.grad is not None and resumed.weight.grad.tolist() == [[4.0, 4.0]]
    _, replacing, new = in_turn()
    new.follow(whole.common(under_way=False))
    new.begin()
    assert replacing.weight.grad is None


@pytest.mark.parametrize("named", [0, 2])
def test_a_script_names_as_many_as_were_kept(named: int) -> None:
    again = keeping(kept(4))
    again.add([Counter()] * named)
    with pytest.raises(CheckpointError, match=f"state of 1 objects.*this script names {named}"):
        again.check()


def test_what_cannot_be_saved_is_refused() -> None:
    with pytest.raises(PlanError, match="keep .Counter.: the state cannot be saved: it contains a object; use numbers"):
        keeping().add([Counter(object())])
    with pytest.raises(PlanError, match="keep takes objects with state_dict and load_state_dict, not a list of 0"):
        keeping().add([[]])  # type: ignore[list-item]
    keeping(saves=False).add([Counter(object())])


def test_a_scheduler_that_nobody_named_is_refused_in_a_run_that_is_kept() -> None:
    late = keeping()
    scheduler = StepLR(late.optimizers[0], 1)
    late.add([Counter(), torch.amp.GradScaler("cpu")])
    with pytest.raises(PlanError, match=r"member\.keep\(scheduler\) before the first step, or.*keep=\[scheduler\]"):
        late.check()
    late.add([scheduler])
    late.check()

    never = keeping(saves=False)
    StepLR(never.optimizers[0], 1)
    never.check()

    plateau = keeping()
    plateau.add([ReduceLROnPlateau(plateau.optimizers[0])])
    plateau.check()


HUGE = 10**30
HOSTILE: dict[str, list[Any]] = {
    "position": [
        None, 3, [], {"passes": "one"}, {"passes": -1}, {"steps": HUGE}, {"calls": float("nan")}, {"epoch": -2},
        {"under_way": [1]}, {"under_way": {"0": [1]}}, {"under_way": {"0": [1, -1]}}, {"under_way": {"-1": [1, 1]}},
    ],
    "settings": [None, 3, "a", [], [3], [{}, {}]],
    "keep": [None, 3, {"a": 1}, [None], [3], [{}]],
    "chance": [None, [], {}, {"torch": 3}, {"torch": torch.zeros(3), "cuda": None}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HOSTILE.items() for value in values])
def test_a_state_that_no_loop_has_kept_is_refused(name: str, value: Any) -> None:
    """Changed, and sealed again: what is read of it is refused with its reason, not with a traceback."""
    with pytest.raises(CheckpointError, match="what the checkpoint holds of the script's loop does not fit: ."):
        resume({**kept(1), name: value})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_state_that_lacks_something_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="what the checkpoint holds of the script's loop does not fit: ."):
        resume({key: value for key, value in kept(1).items() if key != name})


def resume(past: Any) -> None:
    loop = keeping(past)
    loop.add([Counter()])
    loop.begin()
    loop.restore()


def test_a_state_that_is_whole_is_taken() -> None:
    resume(kept(1))


def test_chance_goes_on_where_it_was() -> None:
    """Of everything that a script usually draws from."""

    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    past = kept()
    expected = draws()
    again = keeping(past)
    again.begin()
    while again.position.replays:
        assert draws() != expected
        again.position.stepped()
    assert draws() == expected


def teacher() -> tuple[nn.Module, LoopState]:
    """A student with a frozen average of itself, as a loop writes it."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(2, 1).requires_grad_(number == 0) for number in range(3))
    return model, LoopState([model], [torch.optim.SGD(model[0].parameters(), lr=0.1)], None, True)


def test_frozen_weights_that_the_loop_writes_come_back() -> None:
    """No role exchanges or keeps them; those that stay as the script makes them are not kept either."""
    model, state = teacher()
    with torch.no_grad():
        model[1].weight.mul_(0.9)  # type: ignore[index]
    past = state.state()
    assert list(past["frozen"]) == ["0.1.weight"]
    again, _ = teacher()
    LoopState([again], [torch.optim.SGD(again[0].parameters(), lr=0.1)], past, True).begin()  # type: ignore[index]
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    assert state.frozen.check() == "1.weight"
    past["frozen"] = {"0.1.weight": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="another shape"):
        LoopState([again], [torch.optim.SGD(again[0].parameters(), lr=0.1)], past, True).begin()  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex128, torch.int8])
def test_a_single_number_that_the_loop_writes_is_kept(dtype: torch.dtype) -> None:
    """One that no sample holds; written past autograd, so that no version counts it."""
    model = nn.Module()
    model.table = nn.Parameter(torch.zeros(100, 997, dtype=dtype), requires_grad=False)
    state = LoopState([model], [], None, True)
    assert state.state()["frozen"] == {}
    model.table.data[31, 7] = 1
    assert list(state.state()["frozen"]) == ["0.table"]
