"""Which layers of a model are divided, and how: by annotation, or by what becomes of their outputs.

The model is run on a few samples, with whole values that only say how they would be divided. A layer that is given a
whole input is divided by outputs; one that is given slices of its input takes those as they are, and makes a sum. Where
a value would have to be brought together, its layer is left whole, unless it has more weights than that value numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.parallelism.tensor.annotations import BY, COMPUTED, DIMS, SplitKind, layer_kinds
from covey.parallelism.tensor.group import TensorGroup, lost_gradient
from covey.parallelism.tensor.layout import Blocks, Origin, SplitLayout, UnitBlock, length, refined
from covey.parallelism.tensor.rules import RULES
from covey.parallelism.tensor.split_tensor import SplitTensor
from covey.parallelism.trace import undisturbed

PASSES = 50  # in which a plan settles: each leaves another layer whole, or divides one in other units


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """How the parameters of a model are divided among members; those that it does not name are whole."""

    layouts: Mapping[str, SplitLayout]
    kinds: Mapping[str, SplitKind]  # of layers
    notes: list[str] = field(default_factory=list)
    turns: int = 0  # exchanges of a step
    largest: int = 0  # bytes of the largest of them, for a sample


class TrialGroup(TensorGroup):
    """Stands in for a group while its model is planned: it has all numbers, and notes what a group would do."""

    plans = True

    def __init__(self, members: int) -> None:
        super().__init__(members, RULES)
        self.inside = [""]  # the modules whose forward is under way
        self.together: list[tuple[frozenset[Origin], int, str]] = []  # what was brought together, its size, for what
        self.wishes: list[tuple[Origin, Blocks]] = []
        self.inside_functions: set[str] = set()  # parameters whose layers' outputs came there
        self.turns = self.largest = 0

    def ranges(self, blocks: Blocks) -> list[tuple[int, int]]:
        return [(0, length(blocks))]

    def everybodys(self, mine: Tensor) -> list[Tensor]:
        self.turns += 1
        self.largest = max(self.largest, mine.numel() * mine.element_size())
        return [mine]

    def copied(self, whole: Tensor) -> Tensor:
        self.turns += 1  # in backward
        return whole

    def sliced(self, whole: Tensor, layout: SplitLayout) -> Tensor:
        self.turns += 1
        return whole

    def join(self, mine: Tensor, layout: SplitLayout) -> Tensor:
        return self.everybodys(mine)[0]

    def gathered(self, local: Tensor, layout: SplitLayout, why: str) -> Tensor:
        where = f"{why} in {self.inside[-1]}" if self.inside[-1] else why
        self.together.append((layout.origins, local.numel(), where))
        return self.join(local, layout)

    def unseen(self, layout: SplitLayout) -> None:
        if not layout.origins:
            super().unseen(layout)
        self.inside_functions |= {origin.name for origin in layout.origins}

    def wish(self, layout: SplitLayout, blocks: Blocks | None) -> None:
        for origin in layout.origins if blocks else ():
            scaled = tuple(UnitBlock(block.units, block.size * origin.scale) for block in blocks or ())
            self.wishes.append((origin, scaled))


class SplitPlanner:
    """Finds the plan of one model for so many members."""

    def __init__(
        self, modules: Sequence[nn.Module], members: int, split: str, called: Mapping[str, str] | None = None
    ) -> None:
        """Of a model, or of its stages; parameters are `called` as in the whole."""
        self.modules, self.members, self.split = modules, members, split
        self.named = {name: layer for module in modules for name, layer in module.named_modules()}
        self.wanted = layer_kinds(self.named, split, members)  # None: as found best
        self.layers = {name: layer for name, layer in self.named.items() if type(layer) in BY}
        self.places = ParameterPlaces(*modules, called=called)
        self.blocks: dict[str, Blocks] = {}  # of parameters that are not dealt out number by number
        self.whole: dict[str, str] = {}  # layers that stay whole, and why
        self._passed: dict[str, SplitLayout] = {}  # as the pass under way divides them
        self._kinds: dict[str, SplitKind] = {}

    def plan(self, run: Callable[[], object], samples: int = 1) -> SplitPlan:
        """By doing a `run` of the model on so many samples for one of a batch, again and again until all fits."""
        for _ in range(PASSES):
            group = self._tried(run)
            if not self._settle(group, samples):
                break
        notes = [f"{name} stays whole: {why}" for name, why in self.whole.items() if self.wanted is None]
        seen = dict.fromkeys(f"{where} needs whole values: they are brought together" for _, _, where in group.together)
        if not self._passed and self.split != "none":
            raise PlanError(self._nothing())
        return SplitPlan(
            layouts=self._passed, kinds=self._kinds, notes=[*notes, *seen], turns=group.turns, largest=group.largest
        )

    def _tried(self, run: Callable[[], object]) -> TrialGroup:
        group = TrialGroup(self.members)
        self._passed, self._kinds = {}, {}
        with ExitStack() as around, self._hooked(group), torch.no_grad():
            for module in self.modules:
                around.enter_context(undisturbed(module))
            run()
        return group

    @contextmanager
    def _hooked(self, group: TrialGroup) -> Iterator[None]:
        handles = []
        for name, module in self.named.items():
            handles.append(module.register_forward_pre_hook(lambda _, given, name=name: self._come(group, name, given)))
            handles.append(module.register_forward_hook(lambda *_: self._leave_module(group), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self.places.restore()

    def _come(self, group: TrialGroup, name: str, given: Sequence[Any]) -> None:
        """Forward comes to a module: if it is a layer, it is divided now."""
        group.inside.append(name)
        layer = self.layers.get(name)
        if layer is None or name in self.whole or not given or name in self._kinds:
            return
        if layer._parameters.get("weight") is None:
            self.whole[name] = COMPUTED
            return
        called = self.places.called(layer, "weight")
        tied = len(self.places.at[called]) > 1
        kind = BY[type(layer)](layer, given[0], tied) if self.wanted is None else self.wanted.get(name)
        if kind is None:
            return
        dims = DIMS[kind]
        usual = self._usual(given[0], kind, self.places.parameters[called].shape[dims["weight"]])
        layout = self._passed.get(called, SplitLayout(dims["weight"], self.blocks.get(called, usual)))
        few = min(block.units for block in layout.blocks)
        if layout.dim != dims["weight"] or few < self.members:
            self.whole[name] = f"{few} units cannot be divided among {self.members} members"
            return
        for key, dim in dims.items():
            if layer._parameters.get(key) is not None:
                self._divide(self.places.called(layer, key), SplitLayout(dim, layout.blocks), group)
        self._kinds[name] = kind

    def _divide(self, called: str, layout: SplitLayout, group: TrialGroup) -> None:
        self._passed[called] = layout
        shown = SplitLayout(layout.dim, layout.blocks, frozenset([Origin(called)]))
        self.places.install(called, SplitTensor(self.places.parameters[called], shown, group))

    def _leave_module(self, group: TrialGroup) -> None:
        group.inside.pop()

    def _usual(self, given: object, kind: SplitKind, size: int) -> Blocks:
        """The units of a layer's inputs are those of what it is given, where that is divided already."""
        along = {"row": -1, "input": 1}.get(kind)
        if along is None or not isinstance(given, SplitTensor) or given.divided.dim != along % given.dim():
            return (UnitBlock(size),)
        return given.divided.blocks

    # -- what a pass has shown --------------------------------------------------------------------------------------

    def _settle(self, group: TrialGroup, samples: int) -> bool:
        """Change what did not fit; whether anything was changed."""
        before = dict(self.blocks), dict(self.whole)
        for origin, wish in group.wishes:
            blocks = refined(self.blocks.get(origin.name, self._passed[origin.name].blocks), origin.begin, wish)
            few = min(block.units for block in blocks)
            if few >= self.members:
                self.blocks[origin.name] = blocks
            else:
                self._too_few(origin.name, few)
        if self.wanted is not None and group.inside_functions:
            raise lost_gradient()
        for parameter in group.inside_functions:
            self._leave(parameter, "a torch.autograd.Function needs its whole output")
        if (self.blocks, self.whole) != before:
            return True
        if self.wanted is None:
            for origins, numbers, where in group.together:
                for origin in origins:
                    if self.places.parameters[origin.name].numel() <= numbers * samples:
                        self._leave(origin.name, f"{where} needs its whole output")
        return (self.blocks, self.whole) != before

    def _too_few(self, parameter: str, few: int) -> None:
        layer = next(name for name in self._kinds if parameter in self._called(name))
        if self.wanted is not None:
            raise PlanError(
                f"split={self.split!r}: {layer} has {few} heads or blocks, which {self.members} members cannot divide: "
                f"use tensor={few} or fewer, or leave it out of split"
            )
        self._leave(parameter, f"its {few} heads or blocks are fewer than {self.members} members")

    def _leave(self, parameter: str, why: str) -> None:
        for name in self._kinds:
            if parameter in self._called(name):
                self.whole.setdefault(name, why)

    def _called(self, layer: str) -> list[str]:
        module = self.layers[layer]
        return [self.places.called(module, key) for key, one in module._parameters.items() if one is not None]

    def _nothing(self) -> str:
        seen = "; ".join(f"{name}: {why}" for name, why in list(self.whole.items())[:5])
        more = f"{seen}. " if seen else f"its layers are {', '.join(self.layers) or 'none that can be divided'}. "
        return (
            f"mesh(tensor={self.members}) finds nothing to divide in {type(self.modules[0]).__name__}: {more}"
            "Use fewer members, say which layers with split=, or use mesh(shard=...), which divides any model"
        )


class ParameterPlaces:
    """Where each parameter stands in a model; another tensor can take its place."""

    def __init__(self, *modules: nn.Module, called: Mapping[str, str] | None = None) -> None:
        self.parameters: dict[str, nn.Parameter] = {}  # tied ones once, by the first of their names
        for module in modules:
            for name, parameter in module.named_parameters():
                self.parameters.setdefault(name if called is None else called[name], parameter)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.at: dict[str, list[tuple[nn.Module, str]]] = {}
        for inner in {id(inner): inner for module in modules for inner in module.modules()}.values():
            for key, own in inner._parameters.items():
                if own is not None:
                    self.at.setdefault(names[id(own)], []).append((inner, key))
        self._called = {(id(inner), key): name for name, places in self.at.items() for inner, key in places}

    def called(self, module: nn.Module, key: str) -> str:
        """The name in the model of what a module calls so."""
        return self._called[id(module), key]

    def install(self, name: str, instead: Tensor) -> None:
        for module, key in self.at[name]:
            module._parameters[key] = instead  # type: ignore[assignment]  # it is used as one

    def restore(self) -> None:
        for name, parameter in self.parameters.items():
            self.install(name, parameter)
