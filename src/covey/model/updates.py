"""How does a replica step? With its optimizer, at the schedule's rate, with the settings of a loop if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from covey.faults import in_task
from covey.message import Address
from covey.model.flat import Flat
from covey.model.optimizers import MakeOptimizer, check_loaded, check_momentum, made
from covey.model.progress import TrainingProgress
from covey.program import Node
from covey.settings import FIRST, LoopSettings, Settings, SettingsUpdate, skipping
from covey.vector import Piece, Vector


class Updates:
    """A replica's optimizer and what each of its steps depends on. A task has no `settings`, only a loop has."""

    def __init__(
        self, make: MakeOptimizer, layout: Flat, whole: Piece, progress: TrainingProgress, *,
        clip_norm: float | None, settings: LoopSettings | None, trains: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._make, self.progress = make, progress
        self.optimizer = made(make, list(layout.parameters.items()))
        progress.lead(self.optimizer)
        self.shards = layout.inside(whole)  # what this role steps of each parameter
        self.trains = trains  # whether this role has batches: a loop's come after its replica
        self.clip_norm = clip_norm  # the most that the norm of a gradient may be
        self.settings = settings  # of a loop of the user's own, which may change them at every step
        self.inherited = False  # the optimizer's state is of a run that divided the parameters in another way
        self.lends = False  # whether other roles are to be able to read the optimizer's state
        self.house: Callable[[Vector], Vector] | None = None  # brings numbers there
        self._housed: Vector | None = None  # those that are there

    def keep(self, layout: Flat, piece: Piece) -> None:
        """Step only on the parameters, or slices of them, inside `piece`."""
        before, self.shards = self.optimizer, layout.inside(piece)
        inside = zip(layout.slots, self.shards, strict=True)
        self.optimizer = made(self._make, [(slot.name, shard) for slot, shards in inside for shard in shards])
        self.progress.lead(self.optimizer)
        if self.inherited:
            self._divide(before, layout, piece)

    def _divide(self, before: Optimizer, layout: Flat, piece: Piece) -> None:
        """Take over what another optimizer has kept of the whole parameters."""
        for slot, shards in zip(layout.slots, self.shards, strict=True):
            whole = layout.parameters[slot.name]
            kept = before.state.get(whole, {})
            for shard, (first, last) in zip(shards, slot.cuts(piece), strict=True):
                for key, value in kept.items():
                    each = isinstance(value, Tensor) and value.shape == whole.shape and shard is not whole
                    self.optimizer.state[shard][key] = value.reshape(-1)[first:last].clone() if each else value

    def clip_(self, grad: Vector, norm: float | None = None) -> Vector:
        """Shorten a gradient to `clip_norm`, as torch's clip_grad_norm_; a shard's owner says the `norm`."""
        if self.clip_norm is not None:
            grad.shorten_(self.clip_norm, norm)
        return grad

    def step(self, scale: float = 1.0) -> None:
        """One step of the optimizer; `scale` multiplies the learning rate for this step only."""
        assert not self._led or self.settings.applied, "whose settings? `follow` says that"  # type: ignore[union-attr]
        factor = scale * self.progress.rate
        groups = self.optimizer.param_groups if factor != 1 else []  # a rate that stays is left alone
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        absent = self.settings.absent(self._led) if self.settings else ()
        with in_task("optimizer.step()"), skipping(shard for place in absent for shard in self.shards[place]):
            self.optimizer.step()
        if self.settings and not self._led:
            self.settings.stepped = True
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.progress.end()
        if self.lends and self.house and self._housed is None and self.optimizer.state:  # made in the first step
            self.own_state()

    def own_state(self) -> None:
        """Hold the optimizer's state in memory that nobody else writes; others can read its large tensors if `house`
        brings them there.
        """
        entries = [(kept, key) for kept in self.optimizer.state.values() for key in kept]
        held = [(kept, key) for kept, key in entries if _moves(kept[key])]
        for kept, key in entries:
            if not _moves(kept[key]):
                kept[key] = copied(kept[key])
        if not held:
            return
        state = Vector(kept[key] for kept, key in held)
        if self._housed is not None and state.like(self._housed):
            self._housed.copy_(state)
        else:
            housed = self.house(state) if self.house else state
            self._housed = state.clone() if housed is state else housed
        for (kept, key), part in zip(held, self._housed.parts, strict=True):
            kept[key] = part.view(kept[key].shape)

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what an optimizer has kept; a scheduler begins anew, and is stepped to where the run is."""
        before = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state)
        check_loaded(self.optimizer, before)
        self.progress.lead(self.optimizer)

    def set_momentum(self, momentum: float) -> None:
        """Let the optimizer have this momentum, which may be negative."""
        check_momentum(self.optimizer)
        self.progress.leave_momentum(f"this strategy sets it itself, to {momentum:g}")
        for group in self.optimizer.param_groups:
            group["momentum"] = momentum
        self.pin(["momentum"], f"this strategy sets the momentum itself, to {momentum:g}: leave it as it is")

    # -- the settings of a loop of the user's own: nothing of this happens to a task's ---------------------------------

    def pin(self, keys: Iterable[str], why: str) -> None:
        """These settings are not the loop's: whoever changes one is told `why` that cannot be."""
        if self.settings:
            self.settings.pin(keys, why)

    def obey(self, check: Callable[[Optimizer], None]) -> None:
        """Refuse settings of a loop that the strategy cannot do, now and whenever they change."""
        if self.settings:
            self.settings.obey(check)

    def note(self, step: int) -> None:
        """(On the compute thread) Read the loop's settings of this step's gradient."""
        if self.settings:
            self.settings.note(step, self.clip_norm)

    @property
    def optimizer_of_loop(self) -> Optimizer | None:
        """The user's own, where a loop of the user's own holds it."""
        return self.settings.live if self.settings else None

    async def inform(self, node: Node, to: Address) -> None:
        """Before a gradient leaves: let whoever steps on it know the loop's settings, where they have changed."""
        if self.settings and (word := self.settings.due(to)):
            await node.send(to, word, priority=FIRST)

    def follow(self, node: Node, gradients: Iterable[tuple[Address, int]]) -> None:
        """Before a step: take over the settings that the loops of these workers had at these steps of theirs."""
        if self.settings:
            wanted = self._heard(node, gradients)
            if self._led:
                self.settings.apply(self.optimizer, wanted)
                self.clip_norm = wanted.clip

    def pass_on(self, node: Node, gradients: Iterable[tuple[Address, int]], step: int) -> None:
        """These gradients go on to somebody else as one, of a `step` of this role's own, and their settings with it."""
        if self.settings:
            self.settings.put(step, self._heard(node, gradients))

    def _heard(self, node: Node, gradients: Iterable[tuple[Address, int]]) -> Settings:
        assert self.settings is not None
        while word := node.receive_nowait(SettingsUpdate):
            self.settings.hear(word)
        return self.settings.of(node.address, gradients)

    @property
    def _led(self) -> bool:
        """Whether this role steps an optimizer that no loop changes, with the settings of one that some loop does."""
        return self.settings is not None and (not self.trains() or self.optimizer is not self.settings.live)


def copied(value: Any) -> Any:
    """The same numbers in memory of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(copied, value)] if isinstance(value, list) else tuple(map(copied, value))
    return deepcopy(value)


def _moves(value: object) -> bool:
    """Whether this of an optimizer's state can lie elsewhere: a counter is no use to others, and a GPU has its own."""
    return isinstance(value, Tensor) and value.numel() > 1 and value.device.type == "cpu" and value.is_contiguous()
