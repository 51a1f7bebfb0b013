"""How does a replica differentiate: on which weights, with which layers that speak, and where does the gradient lie?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from covey.model.batches import Batch, BatchSource, Losses
from covey.model.flat import Flat
from covey.model.norm import NormGroup, SynchronizedNorm, together
from covey.model.slots import CollectedGrads
from covey.nn.experts import experts_in
from covey.nn.routing import RoutingNotes
from covey.program import Compute, Node
from covey.vector import Vector

DROPPED = "dropped tokens"
"""What workers with experts note: how many choices of tokens were beyond an expert's capacity."""


class WorkingCopy:
    """A second set of parameters, of a replica that has asked for one: a companion may write its own meanwhile.

    Parameters that are views of one vector defeat autograd's own check for writes, so the copy is not optional.
    """

    def __init__(self, layout: Flat) -> None:
        self._layout = layout
        self._copy: Vector | None = None

    def make(self) -> None:
        """Let the module compute on a copy from now on."""
        if self._copy is None:
            self._copy = self._layout.params.clone()
            self._layout.aim(self._copy)

    def refresh(self) -> None:
        """Bring the copy up to date: where no companion runs, and not on the compute thread."""
        if self._copy is not None:
            self._copy.copy_(self._layout.params)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the module have the replica's own parameters meanwhile, for a step of the optimizer."""
        if self._copy is not None:
            self._layout.aim(self._layout.params)
        try:
            yield
        finally:
            if self._copy is not None:
                self._layout.aim(self._copy)


class Differentiation:
    """Forward and backward of one replica, and the last batch that went through them."""

    def __init__(self, layout: Flat, norms: list[SynchronizedNorm]) -> None:
        self._layout, self.working = layout, WorkingCopy(layout)
        self.norms = norms  # layers that speak with those of the other workers
        self.experts = [layer for module in layout.modules for layer in experts_in(module).values()]
        self.batch, self.losses = Batch(float("nan"), 0), Losses()
        self.begins: Callable[[], None] = lambda: None  # hears of each work before it begins
        self._loose = False  # whether the gradient still lies where backward left it
        self.keeps = False  # whether what backward made stays until it is taken by `undo`
        self._made: CollectedGrads | None = None

    @property
    def grad(self) -> Vector:
        """The gradient, flat: put together when somebody asks for it, if that has not been done."""
        if self._loose:
            self._loose = False
            self._layout.collect_grads(self._layout.slots)
        return self._layout.grads

    def run(self, batch: Callable[[], Batch], flat: bool = True) -> Batch:
        """(On the compute thread) Forward and backward; whether the gradient is put together."""
        self._loose, self._made = False, None
        done = self.losses.of(batch)
        if flat:
            made = self._layout.collect_grads(self._layout.slots)
            self._made = made if self.keeps and made.stay else None
        else:
            self._layout.complete_grads()
        self._loose = not flat
        self._layout.collect_buffers()
        return done

    def undo(self) -> Callable[[], None] | None:
        """What makes the gradient again what backward made, without a copy of it; None where that is not there.

        To be asked for before anything changes the gradient; what backward made is gone when this is dropped.
        """
        made, self._made = self._made, None
        return made.bring if made else None

    async def tell_routing(self, node: Node) -> None:
        """Note what the routers of experts chose since this was last told."""
        notes = [layer.notes for layer in self.experts]
        for layer in self.experts:
            layer.notes = RoutingNotes()
        choices, batches = sum(note.choices for note in notes), sum(note.batches for note in notes)
        if batches:
            dropped = sum(note.dropped for note in notes)
            await node.note(DROPPED, dropped)
            node.host.measure("dropped", dropped / choices)
            node.host.measure("imbalance", sum(note.imbalance for note in notes) / batches)

    async def perform(
        self, node: Node, source: BatchSource, work: Callable[[], Batch], batch: tuple[int, int] | None = None
    ) -> None:
        """Do this work on the weights as they are now, when the step's batch is there; or `batch`, of any seat."""
        if source.arrive:
            await source.arrive(node)
        self.working.refresh()
        self.batch = await self.effect(node, source, work, batch=batch)

    def effect(
        self, node: Node, source: BatchSource, work: Callable[[], Batch], talks: bool = False,
        batch: tuple[int, int] | None = None,
    ) -> Compute[Batch]:  # fmt: skip
        """The work as an effect; for its time synchronized layers know who takes this step."""
        self.begins()
        prepares = source.prepares(node.step)
        reads = source.reads and partial(source.reads, *(batch or (node.rank, node.step)))
        if not self.norms:
            return Compute(work, 1.0, talks, prepares, reads)
        circle = NormGroup(node, source.samples, len(self.norms), source.weight)
        return Compute(partial(together, self.norms, circle, work), 1.0, True, prepares, reads)
