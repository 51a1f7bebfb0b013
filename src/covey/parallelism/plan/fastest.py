"""Which numbers of stages and replicas are fastest on some machines, if the batch of all replicas stays the same?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from covey.errors import PlanError
from covey.parallelism.plan.cut import best_cut
from covey.parallelism.plan.predict import predict
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.terms import CutTerms


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """Replicas of a pipeline: where its stages are cut, and the predicted seconds of a step."""

    after: tuple[int, ...]
    replicas: int
    step: float

    @property
    def stages(self) -> int:
        return len(self.after) + 1

    @property
    def machines(self) -> int:
        return self.stages * self.replicas

    def __str__(self) -> str:
        stages, replicas = "s" if self.stages > 1 else "", "s" if self.replicas > 1 else ""
        return f"{self.stages} stage{stages} x {self.replicas} replica{replicas}"


def fastest(
    profile: Profile, machines: int, microbatches: int, terms: CutTerms, replicas: Collection[int]
) -> PipelineLayout | None:  # fmt: skip
    """The layout with the shortest predicted step, of all that fit these machines; None where none does.

    Replicas, as many as one of the numbers given, divide the step's micro-batches equally; of equals the smallest
    layout is taken. `profile` is of one micro-batch, `terms` say what a machine and the network have.
    """
    found = [
        layout
        for stages in range(1, min(machines, len(profile)) + 1)
        for number in range(1, machines // stages + 1)
        if number in replicas and (layout := _predicted(profile, stages, number, microbatches, terms))
    ]
    return min(found, key=lambda layout: (layout.step, layout.machines), default=None)


def _predicted(
    profile: Profile, stages: int, replicas: int, microbatches: int, terms: CutTerms
) -> PipelineLayout | None:  # fmt: skip
    own = replace(terms.schedule, microbatches=microbatches // replicas)
    try:
        cut = best_cut(profile, replace(terms, stages=stages, machines=None, schedule=own))
    except PlanError:  # the model cannot be cut so often, or a stage does not fit
        return None
    together = replace(terms, schedule=replace(own, microbatches=microbatches))
    # in turn, the machines of a stage take the micro-batches of a step, and sum their gradients: as replicas do
    step = predict(profile, replace(cut, machines=(replicas,) * stages), together).step
    return PipelineLayout(cut.after, replicas, step)
