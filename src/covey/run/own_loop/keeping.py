"""What a checkpoint, or another worker, needs of a custom training loop: position, settings, chance, schedulers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from covey.checkpoint.packing import check_keepable
from covey.data.seeded_draws import seed_all
from covey.decoding import UNREADABLE
from covey.errors import CheckpointError, PlanError
from covey.model.randomness import seed_of
from covey.model.replica import Replica
from covey.observe.tally import MOST
from covey.run.own_loop.position import Position, SavedPosition
from covey.run.own_loop.trained import WaitingGradients
from covey.run.own_loop.written_weights import WrittenFrozen
from covey.task.arguments import describe


@runtime_checkable
class Stateful(Protocol):
    """A scheduler, a GradScaler, or anything else whose state a run must not lose."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class LoopState:
    """Reads the loop's state while the loop waits in a step, and puts it back when a resumed loop is there again."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], past: Any = None, saves: bool = False,
        elastic: bool = False,
    ) -> None:  # fmt: skip
        """`elastic`: a lost worker is replaced by one whose loop goes on where this one is."""
        self.models, self.optimizers, self.past = models, optimizers, past
        self.saves = saves or elastic or past is not None
        self.keep: list[Stateful] = []
        kept = _read(past, elastic) if past else None
        self.position = Position(kept, self.restore, self._rewind)
        self.buffers: list[torch.Tensor] = []
        self.frozen = WrittenFrozen(models, self.saves)
        self.waiting = WaitingGradients(optimizers)
        self.restored = False

    def add(self, things: Iterable[Stateful]) -> None:
        """Keep these too; where the loop is back already where it was, they get their state back at once."""
        for thing in things:
            check_stateful("keep", thing)
            if self.saves:
                check_state(thing)
            self.keep.append(thing)
            if self.restored:
                with _reading():
                    self._load(len(self.keep) - 1)

    def check(self) -> None:
        """(At the first step) Refuse a loop that would lose something."""
        if self.position.resumed and len(self.past["keep"]) != len(self.keep):
            raise CheckpointError(
                f"the checkpoint holds the state of {len(self.past['keep'])} objects (keep), and this script names "
                f"{len(self.keep)}: name the same ones, in the same order"
            )
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        if self.saves and any("initial_lr" in group for group in groups) and not any(map(is_scheduler, self.keep)):
            raise PlanError(
                "the optimizer has a learning-rate scheduler, whose state a resumed run would lose: name it, "
                "member.keep(scheduler) before the first step, or covey.join(model, optimizer, keep=[scheduler])"
            )

    def state(self) -> dict[str, Any]:
        """(While the loop waits in a step)"""
        return {
            "position": msgspec.to_builtins(self.position.here(), str_keys=True),
            "settings": [_settings(group) for optimizer in self.optimizers for group in optimizer.param_groups],
            "keep": [thing.state_dict() for thing in self.keep], "chance": _chance(), "frozen": self.frozen.state(),
            "waiting": self.waiting.state(),
        }  # fmt: skip

    def common(self, under_way: bool) -> dict[str, Any]:
        """(While the loop waits in a step) The same without what is this worker's own; or before that step."""
        position = msgspec.to_builtins(self.position.here(under_way), str_keys=True)
        own = ("chance", "waiting")
        return {name: value for name, value in self.state().items() if name not in own} | {"position": position}

    def follow(self, past: dict[str, Any]) -> None:
        """(Before the loop begins) Go on where the loop of another worker is."""
        kept = _read({**past, "chance": {}}, numbered=True)
        self.past, self.position = past, Position(kept, self.restore, self._rewind)

    def begin(self) -> None:
        """The weights are there: what the batches of a round that was taken already do to buffers is undone later."""
        if self.past:
            self.buffers = [buffer.clone() for model in self.models for buffer in model.buffers()]
            if not self.position.replays and not self.position.pending:
                self.restore()

    def restore(self) -> None:
        """The loop is where it was: from here on, everything is as it was."""
        with _reading():
            self._restore()
        self.restored = True

    def _restore(self) -> None:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, settings in zip(groups, self.past["settings"], strict=True):
            group.update(settings)
        for number in range(len(self.keep)):
            self._load(number)
        if not self.position.kept.asked:
            self._rewind()
        self.frozen.restore(self.past.get("frozen", {}))  # older checkpoints have neither
        self.waiting.restore(self.past.get("waiting", {}))
        if "chance" in self.past:  # another worker's is not given
            _restore_chance(self.past["chance"])

    def _rewind(self) -> None:
        """Undo what batches that are gone through again have done to buffers."""
        with torch.no_grad():
            live = [buffer for model in self.models for buffer in model.buffers()]
            for buffer, before in zip(live, self.buffers, strict=True):
                buffer.copy_(before)

    def _load(self, number: int) -> None:
        if number < len(self.past["keep"]):
            thing = self.keep[number]
            thing.load_state_dict(_like(thing.state_dict(), self.past["keep"][number]))


class SharedLoop:
    """One worker's loop among those that take the same steps: one that replaces a lost worker goes on there."""

    def __init__(self, keeping: LoopState, replica: Replica, rank: int, seed: int) -> None:
        self._keeping, self._replica, self._rank, self._seed = keeping, replica, rank, seed
        self.followed = False  # this loop goes on where another one is

    @property
    def samples(self) -> int:
        """Of this worker, in the steps so far."""
        told = self._keeping.position.samples
        return told[self._rank] if told else 0

    def give(self, under_way: bool) -> dict[str, Any]:
        """(While the loop waits in a step) Where it is; with `under_way` before this step, which is not done."""
        return {**self._keeping.common(under_way), "given": self._replica.compute.losses.count - under_way}

    def take(self, state: dict[str, Any]) -> None:
        """(Before the loop begins) Go on where another worker's loop is, with random numbers of its own."""
        self._keeping.follow(state)
        self._replica.compute.losses.count = int(state["given"])
        self.followed = True

    def begin(self) -> None:
        """(On the loop's thread, before it begins)"""
        if self.followed:
            seed_all(seed_of(self._seed, self._rank, 1 + self._keeping.position.kept.steps))


def _read(past: Any, numbered: bool) -> SavedPosition:
    """Where a kept loop was, if what a checkpoint has of it is of the right kinds; `numbered`: votes go on from there.

    Otherwise all workers begin to count them again.
    """
    with _reading():
        if not isinstance(past["keep"], list | tuple) or not isinstance(past["chance"], Mapping):
            raise ValueError("it is of another kind")
        kept = msgspec.convert(past["position"], SavedPosition, str_keys=True)
        counts = [kept.passes, kept.calls, kept.steps, kept.epoch or 0, kept.epoch_passes, *kept.under_way]
        counts += [number for pair in kept.under_way.values() for number in pair]
        counts += [kept.votes, kept.epoch_votes, *kept.pass_votes.values(), *kept.samples]
        if not all(0 <= count < MOST for count in counts):
            raise ValueError("no loop can be there")
        return kept if numbered else msgspec.structs.replace(kept, votes=0, epoch_votes=0, pass_votes={})


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        why = str(error) or type(error).__name__
        raise CheckpointError(f"what the checkpoint holds of the script's loop does not fit: {why}") from None


def check_stateful(place: str, thing: object) -> None:
    """Refuse what has no state to keep."""
    if not isinstance(thing, Stateful):
        raise PlanError(f"{place} takes objects with state_dict and load_state_dict, not {describe(thing)}")


def check_state(thing: Stateful) -> None:
    """Refuse what a checkpoint could not hold."""
    try:
        check_keepable(thing.state_dict())
    except CheckpointError as error:
        raise PlanError(f"keep ({type(thing).__name__}): {error}") from None


def is_scheduler(thing: Stateful) -> bool:
    """Whether it looks like a schedule of learning rates; those of other libraries have no class of torch."""
    return hasattr(thing, "step") and not isinstance(thing, GradScaler)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _like(fresh: Any, kept: Any) -> Any:
    """What was kept, with the kinds of mappings that the state has."""
    if isinstance(fresh, Mapping) and isinstance(kept, Mapping):
        found = {key: _like(fresh[key], value) if key in fresh else value for key, value in kept.items()}
        return found if type(fresh) is dict else type(fresh)(found)  # type: ignore[call-arg]
    if isinstance(fresh, list) and isinstance(kept, list) and len(fresh) == len(kept):
        return [_like(*pair) for pair in zip(fresh, kept, strict=True)]
    return kept


def _chance() -> dict[str, Any]:
    """Of everything that a loop usually draws from."""
    _, keys, *rest = np.random.get_state(legacy=True)
    numbers = [np.asarray(keys).tolist(), *rest]
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "python": random.getstate(),
        "numpy": numbers,
    }


def _restore_chance(kept: Mapping[str, Any]) -> None:
    torch.set_rng_state(kept["torch"])
    if kept["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(kept["cuda"])
    random.setstate(kept["python"])
    keys, *rest = kept["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), *rest))
