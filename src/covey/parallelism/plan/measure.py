"""How long each layer of a chain takes on this machine, and what it keeps: measured on a real batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from covey.model.optimizers import MakeOptimizer
from covey.model.threads import one_thread
from covey.parallelism.chain import Chain
from covey.parallelism.plan.estimate import counted
from covey.parallelism.plan.profile import LayerCost, Profile
from covey.parallelism.stages import Stage
from covey.parallelism.trace import Inputs, undisturbed

Loss = Callable[[Any], Tensor]  # of the model's output


def measure(
    chain: Chain, inputs: Inputs, loss: Loss | None = None, *,
    repeat: int = 5, state: float = 0.0, tied: str = "refuse",
) -> Profile:  # fmt: skip
    """The median of `repeat` passes forward and backward; on a CPU the thread's own time, so that others do not count.

    Layers together take what the whole model takes: timing them one by one takes longer. With repeat=0 nothing is
    timed, but counted, which every machine does alike. The loss is part of the last layer. The inputs may have fewer
    samples than the chain was traced with. With tied="refuse" no cut is allowed between tied weights.
    """
    parts = list(chain.stages(range(len(chain.layers) - 1), tied="sum"))
    with undisturbed(chain.model), one_thread(), _gradients_left_alone(chain):
        keeping, crossing = _kept(parts, inputs)
        passes = [_timed(chain, parts, inputs, loss) for _ in range(repeat + 1 if repeat else 0)][1:]
        times = _medians(passes or [counted(parts, inputs)])
        if passes:
            times = _together(times, _whole(chain, inputs, loss, repeat))
    bound = chain.bound() if tied == "refuse" else frozenset()
    layers = []
    seen: set[int] = set()
    earlier: set[int] = set()
    for part, layer, kept, made, (forward, backward) in zip(
        parts, chain.layers, keeping, crossing, times, strict=True
    ):
        if tied == "sum":
            seen = set()  # each stage has its own copy of tied weights; otherwise they count where they come first
        trained = [p for p in part.module.parameters() if p.requires_grad]
        layers.append(
            LayerCost(
                name=layer.name,
                forward=forward,
                backward=backward,
                weights=_bytes(iter(trained), seen),
                borrowed=sum(p.nbytes for p in trained if id(p) in earlier) if tied == "sum" else 0,
                fixed=_bytes((p for p in part.module.parameters() if not p.requires_grad), seen)
                + _bytes(part.module.buffers(), seen),
                kept=kept,
                sends=sum(value.nbytes for value in made),
                returns=sum(value.nbytes for value in made if value.requires_grad),
                cuttable=part.number not in bound,
            )
        )
        earlier.update(map(id, trained))
    return Profile(tuple(layers), sum(value.nbytes for value in inputs), state, tied=bool(bound))


def time_whole(
    chain: Chain, inputs: Inputs, loss: Loss | None = None, *, repeat: int = 5
) -> tuple[float, float]:  # fmt: skip
    """Seconds forward and backward of the uncut model, as `measure` times them."""
    with undisturbed(chain.model), one_thread(), _gradients_left_alone(chain):
        return _whole(chain, inputs, loss, repeat)


def _whole(chain: Chain, inputs: Inputs, loss: Loss | None, repeat: int) -> tuple[float, float]:
    alone = list(chain.stages((), tied="sum"))
    (found,) = _medians([_timed(chain, alone, inputs, loss) for _ in range(repeat + 1)][1:])
    return found


def _medians(passes: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Forward and backward of each layer."""
    return [
        (statistics.median(ahead for ahead, _ in times), statistics.median(back for _, back in times))
        for times in zip(*passes, strict=True)
    ]


def _together(times: Sequence[tuple[float, float]], whole: tuple[float, float]) -> list[tuple[float, float]]:
    """The layers' times in their proportions, so that together they take what the whole model does."""
    ahead, back = (whole[way] / (sum(one[way] for one in times) or 1.0) for way in (0, 1))
    return [(ahead * forward, back * backward) for forward, backward in times]


def optimizer_state(make: MakeOptimizer, model: nn.Module) -> float:
    """Bytes that the optimizer keeps for each byte of weights, seen after one step on this model: it may be changed."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for _, parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = make(trained)
    optimizer.step(lambda: 0.0)
    held = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    weights = sum(p.numel() * p.element_size() for _, p in trained)
    return sum(value.numel() * value.element_size() for value in held) / max(weights, 1)


def _bytes(tensors: Iterator[Tensor], seen: set[int]) -> int:
    found = {id(tensor): tensor for tensor in tensors if id(tensor) not in seen}
    seen.update(found)
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


@contextmanager
def _gradients_left_alone(chain: Chain) -> Iterator[None]:
    kept = [(p, p.grad) for p in chain.model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def _timed(chain: Chain, parts: Sequence[Stage], inputs: Inputs, loss: Loss | None) -> list[tuple[float, float]]:
    """One pass through all layers and back; seconds forward and backward of each."""
    clock = clock_for(inputs)
    taken: list[tuple[Tensor, ...]] = []
    given: list[tuple[Tensor, ...]] = []
    forward, values = [], tuple(x.clone() for x in inputs)
    for part in parts:
        taken.append(values)
        begin = clock()
        made = part(values)
        if part is parts[-1] and loss is not None:
            made = (loss(chain.rebuild(made)),)
        forward.append(clock() - begin)
        given.append(made)
        values = tuple(x.detach().requires_grad_(x.requires_grad) for x in made)
    errors: list[Tensor | None] = [torch.ones_like(x) for x in given[-1]]
    backward = []
    for made, took in zip(reversed(given), reversed(taken), strict=True):
        pairs = [(x, e) for x, e in zip(made, errors, strict=True) if x.requires_grad and e is not None]
        begin = clock()
        if pairs:
            torch.autograd.backward([x for x, _ in pairs], [e for _, e in pairs])
        backward.append(clock() - begin)
        errors = [x.grad for x in took]
    return list(zip(forward, reversed(backward), strict=True))


def clock_for(inputs: Sequence[Tensor]) -> Callable[[], float]:
    """The thread's own time on a CPU; elsewhere the time when all that was asked for is done."""
    if all(x.device.type == "cpu" for x in inputs):
        return time.thread_time

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def _kept(parts: Sequence[Stage], inputs: Inputs) -> tuple[list[int], list[tuple[Tensor, ...]]]:
    """Bytes that each layer makes and some layer's backward needs, and the values that it gives to the next one."""
    parameters = [tensor for part in parts for tensor in (*part.module.parameters(), *part.module.buffers())]
    maker = {_storage(tensor): -1 for tensor in (*parameters, *inputs)}
    needed: dict[int, Tensor] = {}
    alive: list[Tensor] = []  # so that no memory is used twice

    def pack(tensor: Tensor) -> Tensor:
        needed[_storage(tensor)] = tensor
        return tensor

    values, given = inputs, list[tuple[Tensor, ...]]()
    for part in parts:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            values = part(values)
        alive.extend(values)
        for where in (*needed, *(_storage(x) for x in values)):
            maker.setdefault(where, part.number)
        values = tuple(x.detach().requires_grad_(x.requires_grad) for x in values)
        given.append(values)
    kept = [0] * len(parts)
    for where, tensor in needed.items():
        if maker[where] >= 0:
            kept[maker[where]] += tensor.untyped_storage().nbytes()
    return kept, given


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
