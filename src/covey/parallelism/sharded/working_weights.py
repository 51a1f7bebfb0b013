"""The module's own parameters, on which it computes: whole, put together from the rows of all owners."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from covey.errors import PlanError
from covey.model.compute_shares import in_backward, in_forward
from covey.model.flat import Flat
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.layer_parameters import LayerParameters, bundles_of
from covey.parallelism.sharded.row_exchange import TURNS, RowExchange, WantedRows
from covey.parallelism.sharded.row_owners import RowOwners, rows_of
from covey.parallelism.sharded.shard_messages import ParameterRows
from covey.program import Node
from covey.vector import Vector

EARLY = -1  # no layer


@dataclass(frozen=True, slots=True)
class SavedView:
    """What autograd saves of a parameter that is let go: which, and how it was looked at."""

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class WatchedParameters(dict[str, nn.Parameter | None]):
    """The parameters that a module holds itself; whoever asks for one finds it brought together."""

    def __init__(self, given: Mapping[str, nn.Parameter | None], bring: Callable[[], None]) -> None:
        super().__init__(given)
        self._bring = bring

    def __getitem__(self, name: str) -> nn.Parameter | None:
        self._bring()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._bring()
        return super().get(name, default)

    def items(self) -> ItemsView[str, nn.Parameter | None]:  # type: ignore[override]  # as a module reads it
        self._bring()
        return super().items()

    def values(self) -> ValuesView[nn.Parameter | None]:  # type: ignore[override]
        self._bring()
        return super().values()


class WorkingWeights:
    """Brings parameters together before they are used: before a step, or each layer's when its turn comes."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], owners: RowOwners, layout: Flat, me: int,
        layers: Sequence[LayerParameters], root: nn.Module, sums: GradientSums | None = None,
    ) -> None:  # fmt: skip
        """What is in no layer is brought together before a step."""
        self.parameters, self.owners, self.layout, self.me, self.layers = parameters, owners, layout, me, layers
        self.root = root
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.layer_of = {name: number for number, layer in enumerate(layers) for name in layer.names}
        self.bundles = bundles_of(layers, parameters)
        self.bundle_of = {number: place for place, numbers in enumerate(self.bundles) for number in numbers}
        self.early = [name for name in parameters if name not in self.layer_of]
        self._names: dict[int, str] = {}  # of those that are there, by where their numbers lie
        self._versions: dict[str, int] = {}  # of those that are there, as they were brought
        self._brought: dict[int, list[str]] = {}  # what the forward of each layer has brought itself
        self._unused: set[str] = set()  # what came with another layer, and whose own forward has not come
        self.exchange = RowExchange(owners, me, self._own, sums)
        self._node: Node | None = None

    def let_go(self, every: bool = False) -> None:
        """Keep no parameter of a layer but the own rows, or `every` one: what is used then is not a number."""
        for name in self.parameters if every else self.layer_of:
            self._drop(name)

    # -- before a step ------------------------------------------------------------------------------------------------

    async def bring_early(self, node: Node) -> None:
        """Everybody's rows of what no layer brings together."""
        if not self.early:
            return
        step = node.step * TURNS if self.layer_of else node.step
        mine = self.owners.views(self.layout.seen, self.me)
        rows = Vector(mine[name].view(-1) for name in self._early_of(self.me))
        rows = rows if self.layer_of else self.owners.rows_in(self.layout.seen, self.me)  # all, in one piece
        for member in self._others():
            await node.send(self.owners.peer(member), ParameterRows(step, EARLY, rows))
        self._fill(self.me, {name: mine[name] for name in self._early_of(self.me)})
        for member in self._others():
            came = (await node.receive(ParameterRows, sender=self.owners.peer(member), step=step)).rows
            some = zip(self._early_of(member), came.parts, strict=False)
            self._fill(member, dict(some) if self.layer_of else self.owners.views(came, member))
        self._versions = {name: self.parameters[name]._version for name in self.early}

    def _early_of(self, member: int) -> list[str]:
        return [name for name in self.early if name in self.owners.rows[member]]

    def check_unchanged(self) -> None:
        """Refuse a model that writes into its parameters while it computes: only copies of others' rows change."""
        for name, version in self._versions.items():
            if self.parameters[name]._version != version:
                raise PlanError(
                    f"{name} is written to while the model computes (as nn.Embedding(max_norm=...) does), and with "
                    "shards its rows belong to several workers: omit mesh(...), or do it in the optimizer"
                )

    def _fill(self, member: int, rows: Mapping[str, Tensor]) -> None:
        for name, (first, stop) in self.owners.rows[member].items():
            if name in rows:
                there = rows_of(self.parameters[name].data)[first:stop]
                there.copy_(rows[name].view_as(there))

    # -- each layer in its turn ---------------------------------------------------------------------------------------

    @contextmanager
    def one_by_one(self, node: Node) -> Iterator[None]:
        """(On the compute thread) Meanwhile a layer's parameters are there only while they are used."""
        self._node = node
        self.exchange.begin(1 if self.early else 0)
        with self._hooked(), self._watched():
            try:
                with saved_tensors_hooks(self._pack, self._unpack):
                    yield
                if self.exchange.foresees:
                    node.consult(self.exchange.pass_over(node), in_backward(1.0))
            finally:
                self.let_go()
                self._node = None

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Bring a layer's parameters together before its forward, and let them go after it."""
        handles: list[RemovableHandle] = [self.root.register_forward_hook(lambda *_: self.let_go())]
        for number, layer in enumerate(self.layers):
            handles.append(layer.module.register_forward_pre_hook(lambda *_, number=number: self._come(number)))
            handles.append(layer.module.register_forward_hook(lambda *a, number=number: self._leave(number, a[-1])))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """The same for whoever uses a layer's parameters without its forward, as `self.places.weight[:5]` does."""
        before = [(layer.module, layer.module._parameters) for layer in self.layers]
        for number, layer in enumerate(self.layers):
            vars(layer.module)["_parameters"] = WatchedParameters(
                layer.module._parameters, partial(self._gather, number)
            )
        try:
            yield
        finally:
            for module, parameters in before:
                vars(module)["_parameters"] = parameters

    def _come(self, number: int) -> None:
        """Forward comes to a layer."""
        before = self._versions.keys() - self._unused
        self._gather(number)
        self._brought[number] = [name for name in self.layers[number].names if name not in before]
        self._unused.difference_update(self.layers[number].names)

    def _leave(self, number: int, made: object) -> None:
        """Forward is through with a layer; backward brings its parameters again if it needs them.

        Those that were there before stay, and those that the layer has given away.
        """
        shown = _place(made) if isinstance(made, Tensor) else None
        for name in self._brought.pop(number, ()):
            if _place(self.parameters[name]) != shown:
                self._drop(name)

    def _gather(self, number: int) -> None:
        """Bring a layer's parameters together where they are not, and those of the layers in its bundle."""
        node, own = self._node, self.layers[number].names
        if node is None or all(name in self._versions for name in own):
            return
        bundle = self.bundle_of[number]
        names = dict.fromkeys(name for one in self.bundles[bundle] for name in self.layers[one].names)
        wanted = WantedRows(bundle, tuple(name for name in names if name not in self._versions))
        share = min(1.0, self.exchange.turn / (2 * len(self.bundles)))
        progress = in_forward(2 * share) if share <= 0.5 else in_backward(2 * share - 1)
        try:
            node.consult(self._exchange(node, wanted), progress)
        except BaseException:
            self._node = None  # whoever looks at the model to say what went wrong must not ask the others for it
            raise
        self._unused.update(name for name in wanted.names if name not in own)

    async def _exchange(self, node: Node, wanted: WantedRows) -> None:
        """Put together the own rows and everybody else's."""
        came = await self.exchange.take(node, wanted)
        for name in wanted.names:
            self.parameters[name].data = self.parameters[name].new_empty(self.shapes[name])
            self._names[_place(self.parameters[name])] = name
            self._versions[name] = self.parameters[name]._version
        self._fill(self.me, self.owners.views(self.layout.seen, self.me, wanted.names))
        for member, rows in came.items():
            there = [name for name in wanted.names if name in self.owners.rows[member]]
            self._fill(member, dict(zip(there, rows.parts, strict=True)))

    def _own(self, names: Iterable[str]) -> Vector:
        mine = self.owners.views(self.layout.seen, self.me, names)
        return Vector(rows.view(-1) for rows in mine.values())

    def _drop(self, name: str) -> None:
        parameter = self.parameters[name]
        self.check_unchanged()
        self._versions.pop(name, None)
        self._unused.discard(name)
        self._names.pop(_place(parameter), None)
        parameter.data = parameter.new_full((), nan).expand(self.shapes[name])  # autograd asks for the shape

    def drop_after_backward(self, name: str) -> None:
        """(In backward) This parameter has its gradient, and nobody needs it any more."""
        if name in self.layer_of:
            self._drop(name)

    def _pack(self, tensor: Tensor) -> Tensor | SavedView:
        if tensor.layout is not torch.strided or (name := self._names.get(_place(tensor))) is None:
            return tensor
        if tensor.dtype != self.parameters[name].dtype or tensor.is_conj() or tensor.is_neg():
            return tensor  # it is seen as something else: it stays until backward has used it
        return SavedView(name, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _unpack(self, saved: Tensor | SavedView) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        self._gather(self.layer_of[saved.name])
        whole = self.parameters[saved.name].data
        return whole.as_strided(saved.size, saved.stride, saved.offset)

    def _others(self) -> Iterator[int]:
        return (member for member in range(self.owners.members) if member != self.me)


def _place(tensor: Tensor) -> int:
    """Where its numbers lie."""
    return tensor.untyped_storage().data_ptr()
