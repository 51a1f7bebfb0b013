"""Which model is scored? Every role shows its part of it; the parts make one model, which is evaluated and saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from covey.atomic_file import replacing
from covey.faults import in_task
from covey.model.flat import Flat
from covey.observe.progress import MEASURED
from covey.scoring import eval_mode
from covey.task import scores
from covey.vector import Piece, Vector, mean_

NOTHING = Vector(())
AVERAGED = "ema_"  # begins the names of the averaged model's metrics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A role's part of the scored model: a piece of the parameters, the buffers, and how much they count.

    Pieces are of the whole model, whatever part of it the role has.
    """

    piece: Piece
    params: Vector
    buffers: Vector  # the float ones, which are averaged
    weight: float
    counters: Vector = NOTHING  # the others, of a role that has seen batches
    floats: Piece | None = None  # which of the float buffers; None: all
    counts: tuple[int, ...] | None = None  # which of the counters; None: all
    averages: tuple[Vector, Vector] | None = None  # of these parameters and buffers, where the run averages them

    def averaged(self) -> Snapshot:
        """The same part of the averaged model."""
        params, buffers = self.averages or (self.params, self.buffers)
        return replace(self, params=params, buffers=buffers, averages=None)


class WeightAverage:
    """The exponential average of what a role shows, taken after each update; the first update is where it begins.

    As torch.optim.swa_utils.AveragedModel does it with get_ema_multi_avg_fn and use_buffers. A role's average is linear
    in what it shows, so that the mean of several roles' averages is the average of their mean.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.due = False  # an update is done that is not in it
        self.params: Vector | None = None
        self.buffers = NOTHING

    def take(self, params: Vector, buffers: Vector) -> None:
        self.due = False
        if self.params is None:
            self.params, self.buffers = params.clone(), buffers.clone()
        else:
            self.params.lerp_(params, 1 - self._decay)
            self.buffers.lerp_(buffers, 1 - self._decay)

    def state(self) -> dict[str, Any]:
        return {} if self.params is None else {"ema": {"params": self.params, "buffers": self.buffers}}

    def restore(self, kept: Mapping[str, Any], model: Vector, floats: Vector) -> None:
        """Take over an average of what has the form of these; a role that shows no buffers has none of them."""
        params, buffers = kept["params"], kept["buffers"]
        if not params.like(model) or (buffers.parts and not buffers.like(floats)):
            raise ValueError("the average of the weights has other numbers than the model")
        self.params, self.buffers = params.clone(), buffers.clone()


class ShownModel:
    """What a role shows of the scored model: its own weights, or others that its program names."""

    def __init__(self, layout: Flat) -> None:
        self._layout = layout
        self.instead: Vector | None = None  # parameters and float buffers that a program keeps beside its own
        self.weight = 1.0  # how much it counts
        self.buffers = True  # whether it shows float buffers: one of several servers does
        self.average: WeightAverage | None = None  # where the task wants one

    @property
    def model(self) -> Vector:
        return self._layout.model if self.instead is None else self.instead

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Meanwhile show the model as it is now, though it changes in place."""
        before, self.instead = self.instead, self.model.clone() if self.instead is None else self.instead
        try:
            yield
        finally:
            self.instead = before

    def average_now(self, piece: Piece) -> None:
        """What is shown now is the model after an update."""
        if self.average:
            self.average.take(*self._parts(piece))

    def _parts(self, piece: Piece) -> tuple[Vector, Vector]:
        """The parameters in a piece of the model, and the float buffers if they are shown."""
        parts, count = self.model.parts, len(self._layout.params.parts)
        return Vector(parts[:count]).cut(piece), Vector(parts[count:]) if self.buffers else NOTHING

    def snapshot(self, piece: Piece | None, counts: bool) -> Snapshot:
        """A `piece` of the model as it is now, if any; buffers that are no floats where the role `counts` batches."""
        others = self._layout.others().values() if counts else ()
        counters = Vector(buffer.detach().reshape(-1).clone() for buffer in others)
        count = len(self._layout.params.parts)
        if piece is None:
            return Snapshot(((),) * count, NOTHING, NOTHING, self.weight, counters)
        params, buffers = self._parts(piece)
        found = Snapshot(piece, params.clone(), buffers.clone(), self.weight, counters)
        if self.average is None or self.average.params is None:
            return found
        if self.average.due:
            self.average.take(params, buffers)
        return replace(found, averages=(self.average.params.clone(), self.average.buffers.clone()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it; another number of workers may go on from that."""
        other = {} if self.instead is None else {"shown": self.instead}
        return {"buffers_kept": self.buffers, **other, **({} if self.weight == 1 else {"weight": self.weight})}


class ScoredModel:
    """The model that a strategy names, put together from the snapshots of its roles."""

    def __init__(
        self, module: nn.Module, evaluate: Callable[[nn.Module], Mapping[str, float]] | None, average: bool = False
    ) -> None:
        self.averaged = ScoredModel(deepcopy(module), evaluate) if average else None
        self.flat, self._evaluate = Flat(module), evaluate
        self._apart: float | None = None
        self.module = module

    def assemble(self, snapshots: Sequence[Snapshot]) -> None:
        """Each piece becomes the weighted mean of what the roles hold of it, and so do the float buffers.

        The other buffers (counters of batches) are those of the first role that has computed.
        """
        pieces: dict[Piece, list[Snapshot]] = {}
        for snapshot in snapshots:
            pieces.setdefault(snapshot.piece, []).append(snapshot)
        with torch.no_grad():
            for piece, group in pieces.items():
                if any(weights := [snapshot.weight for snapshot in group]):  # else the model stays as it was
                    mean_(self.flat.params.cut(piece), [snapshot.params for snapshot in group], weights)
            self._apart = self._distance([(piece, group) for piece, group in pieces.items() if len(group) > 1])
            floats: dict[Piece | None, list[Snapshot]] = {}
            for snapshot in snapshots:
                if snapshot.buffers.parts:
                    floats.setdefault(snapshot.floats, []).append(snapshot)
            for place, group in floats.items():
                mine = self.flat.buffers if place is None else self.flat.buffers.cut(place)
                if any(weights := [snapshot.weight for snapshot in group]):
                    mean_(mine, [snapshot.buffers for snapshot in group], weights)
            self._count(snapshots)
        if self.averaged:
            self.averaged.assemble([snapshot.averaged() for snapshot in snapshots])

    def _distance(self, groups: Sequence[tuple[Piece, Sequence[Snapshot]]]) -> float | None:
        """How far replicas are from their mean; None where each piece is held once.

        Kong et al. 2021, "Consensus control": the root of the mean square over replicas.
        """
        total = 0.0
        for piece, group in groups:
            mean, weight = self.flat.params.cut(piece), sum(snapshot.weight for snapshot in group)
            total += sum(one.weight * (mean - one.params).norm() ** 2 for one in group) / weight if weight else 0.0
        return math.sqrt(total) if groups else None

    def _count(self, snapshots: Sequence[Snapshot]) -> None:
        """Take each counter over from the first role that has it."""
        counters = list(self.flat.others().values())
        known: set[int] = set()
        for snapshot in snapshots:
            if snapshot.counters.parts:
                places = range(len(counters)) if snapshot.counts is None else snapshot.counts
                for place, theirs in zip(places, snapshot.counters.parts, strict=True):
                    if place not in known:
                        known.add(place)
                        counters[place].copy_(theirs.view(counters[place].shape))

    def evaluate(self) -> Mapping[str, float]:
        if self._evaluate is None:
            return {}
        found = self.measure()
        if self.averaged:
            found |= {f"{AVERAGED}{name}": value for name, value in self.averaged.measure().items()}
        return found | ({} if self._apart is None else {f"{MEASURED}consensus": self._apart})

    def measure(self) -> dict[str, float]:
        """What the task's evaluate says of this model."""
        assert self._evaluate is not None
        with in_task("evaluate(model)"), eval_mode(self.module):
            return scores(self._evaluate(self.module))

    def score(self, snapshots: Sequence[Snapshot]) -> Mapping[str, float]:
        self.assemble(snapshots)
        return self.evaluate()

    def state(self) -> dict[str, Tensor]:
        """A state dict of its own memory, for the plain module."""
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.module.state_dict().items()}

    def write(self, file: str) -> None:
        save(self.state(), Path(file))
        if self.averaged:
            save(self.averaged.state(), averages_beside(Path(file)))


def averages_beside(file: Path) -> Path:
    """Where the averaged model is written when the model goes to this file."""
    return file.with_name(f"{file.stem}.ema{file.suffix}")


def read(file: Path) -> dict[str, Tensor]:
    """The weights that `ScoredModel.write` wrote."""
    return load_file(file)


def save(weights: Mapping[str, Tensor], to: Path, about: dict[str, str] | None = None) -> None:
    """Write a model as safetensors, whole or not at all; `about` it the file may say something."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as new:
        new.touch()
        mode = new.stat().st_mode  # what the umask leaves: some versions of safetensors write for the owner only
        try:
            save_file(dict(weights), new, about)
        except SafetensorError as error:  # it tells so of a full disk, too
            raise OSError(str(error)) from None
        new.chmod(mode)
