"""Forward begins before all weights are fresh: a gate before the first use of each parameter waits for its update."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from covey.central.scheduled.forward_flow import Forward, leaves
from covey.model.batches import Batch
from covey.model.compute_shares import FORWARD, in_backward, in_forward
from covey.model.replica import Replica
from covey.model.stream import refuse_repeats
from covey.program import Compute, Effect, Node
from covey.vector import Vector

Freshen = Callable[[Sequence[int]], Coroutine[Effect[Any], Any, None]]
Ready = Callable[[int, Vector, float], None]


class ParameterGates(TorchFunctionMode):
    """Every function of torch that is given a parameter passes its gate; reading or setting a gradient does not.

    Layers' own hooks would miss parameters that another layer uses (nn.MultiheadAttention does that), and a weight
    that is read too early is a wrong number.
    """

    def __init__(self, replica: Replica, open: Callable[[list[int]], None]) -> None:
        super().__init__()
        slots, parameters = replica.layout.slots, replica.layout.parameters
        self.shut = {id(parameters[slot.name]): place for place, slot in enumerate(slots)}
        self._open = open

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.shut and getattr(func, "__self__", None) is not torch.Tensor.grad:
            self.pass_through([*args, *kwargs.values()] if kwargs else args)
        return func(*args, **(kwargs or {}))

    def pass_through(self, values: Sequence[Any]) -> None:
        met = [self.shut.pop(key) for key in map(id, leaves(values)) if key in self.shut]
        if met:
            self._open(met)

    def open_all(self) -> None:
        """No gradient leaves before the weights of all parameters are those of this step."""
        rest = list(self.shut.values())
        self.shut.clear()
        if rest:
            self._open(rest)


class Gated:
    """Forward and backward of one worker, with gates in forward; gradients are handed out as backward makes them."""

    def __init__(self, node: Node, replica: Replica, fresh: Callable[[int], bool], freshen: Freshen) -> None:
        refuse_repeats(replica.batch_source, "precision='bf16', or bsp")
        self.node, self.replica, self.fresh, self.freshen = node, replica, fresh, freshen
        self.order: dict[int, int] = {}  # parameters by their first use, as the first forward found it
        self.blind = is_blind(replica)

    def urgency(self, slot: int) -> int:
        """How many parameters are used before this one."""
        return self.order.get(slot, len(self.replica.layout.slots))

    def compute(self, step: int, ready: Ready, seen: Forward | None = None) -> Compute[Batch]:
        """The batch of a step as an effect."""
        work = partial(self.work, step, ready, seen)
        return self.replica.compute.effect(self.node, self.replica.batch_source, work, talks=True)

    def work(self, step: int, ready: Ready, seen: Forward | None = None) -> Batch:
        """(On the compute thread) The batch of a step; `ready` is told of every gradient, with the progress then.

        What forward does when is left in `seen`.
        """
        slots, posted, used = self.replica.layout.slots, set[int](), [0]

        def open(met: Sequence[int]) -> None:
            for slot in met:
                self.order.setdefault(slot, len(self.order))
            if any(not self.fresh(slot) for slot in met):
                self.node.consult(self.freshen(met), in_forward(used[0], len(slots)))
            if seen:
                seen.met(self.node.consult(now(self.node), in_forward(used[0], len(slots))))
            used[0] += len(met)

        gates = ParameterGates(self.replica, open)

        def finished(slot: int, _: Tensor) -> None:
            gates.open_all()
            if seen and seen.end is None:
                seen.ended(self.node.consult(now(self.node), FORWARD))
            self.replica.layout.collect_grads([slots[slot]])
            post(slot)

        def post(slot: int) -> None:
            posted.add(slot)
            copy = Vector([slots[slot].view(self.replica.grad).detach().reshape(-1).clone()])
            ready(slot, copy, in_backward(len(posted), len(slots)))

        with self._watched(finished), nullcontext() if self.blind else gates, seen.flow if seen else nullcontext():
            batch = self.replica.differentiate(step)
        gates.open_all()
        for slot in range(len(slots)):
            if slot not in posted:  # parameters that this batch did not use
                post(slot)
        return batch

    @contextmanager
    def _watched(self, finished: Callable[[int, Tensor], None]) -> Iterator[None]:
        """Hear of each gradient as it is made; not in a user's own loop, which may make it in several parts."""
        layout, last = self.replica.layout, self.replica.batch_source.last

        def heard(place: int, gradient: Tensor) -> None:
            if last():  # else the next batch of the step adds to it
                finished(place, gradient)

        hooks = [
            layout.parameters[slot.name].register_post_accumulate_grad_hook(partial(heard, place))
            for place, slot in enumerate(layout.slots)
            if not self.blind
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


async def now(node: Node) -> float:
    return await node.now()


def is_blind(replica: Replica) -> bool:
    """Whether nobody can see which parameters forward uses when: then it begins with all of them fresh."""
    own_loop = replica.batch_source.chosen is None
    timed = any(part.is_meta for part in replica.flat.parts)
    return own_loop or timed or any(map(_compiled, replica.module.modules()))


def _compiled(module: nn.Module) -> bool:
    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return compiled or isinstance(module, torch.jit.ScriptModule)
