"""One declaration per strategy: what the catalog, the documentation and the tests know of a name."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from inspect import cleandoc
from typing import Any, Literal

from covey.membership import OnLoss
from covey.strategy.traffic import TrafficFormula

MEAN_GRADIENT = "one step on the mean gradient of all workers"

Taken = Literal["", "pushes", "exchanges"]
"""What a strategy has codecs for: nothing, what goes to servers (and back with `pull`), or both ways anyway."""

FaultTrait = Literal[
    "same bits", "forces cancel", "weights sum to 1", "compressed models", "optimizers of their own",
    "models of their own", "parameters of their own",
]  # fmt: skip
"""Weights are to the bit those without faults; the centre moves by as much as its workers, in the other direction;
weight is handed on, and none is lost; models travel compressed, so that each owner of a slice holds its own exactly;
an optimizer's state, or a model, that only one worker has is lost with it; or parameters are, since their last
backup."""

FOR_STUDY = "it is for study: a practitioner does not reach for it"


@dataclass(frozen=True, slots=True)
class Entry:
    """All that is declared of a named strategy, in one place.

    Args:
        settings: The dataclass that makes it; its docstring says in one sentence what the strategy does.
        paper: Where it was published.
        use: For which task, machines or network one would choose it.
        details: What its settings do, as the documentation says it.
        codecs: What it has codecs for.
        measures: Whether `+ auto` finds out by measuring which codec pays.
        plain: Why it takes none.
        graph: The topology that it runs over unless `over` names another.
        placed: Whether it has servers, which `over` places.
        whole: Why its workers need the whole model, which then cannot be cut.
        example: What trains the digits, where the bare name's defaults are for far longer runs or refuse them.
        mathematics: What its updates are, where other strategies make the same ones at any settings: one learning
            curve then holds for all of them.
        tries: Further SPECs that `covey advise` considers: other settings, of which one may be the best.
        traffic: What it sends.
        timelines: SPECs whose first steps are kept as pictures in tests/golden/strategies.
        test: The test of covey that tells it from every other strategy: a file in tests, and a function.
        on_loss: What a run can do when it loses a worker: "continue" while it is replaced, or "restart".
        ranges: Whether the number of its workers may change while a run goes on.
        unadvised: Why `covey advise` does not consider it, if so.
        fault_traits: What checks of its runs with faults have to know of it.
        models: Which models it trains, where not every one.
    """

    settings: type[Any]
    paper: str
    use: str = ""
    details: str = ""
    codecs: Taken = ""
    measures: bool = False
    plain: str = ""
    graph: str | None = None
    placed: bool = False
    whole: str = ""
    example: str = ""
    mathematics: str = ""
    tries: tuple[str, ...] = ()
    traffic: TrafficFormula | None = None
    timelines: tuple[str, ...] = ()
    test: str = ""
    on_loss: OnLoss = "restart"
    ranges: bool = False
    unadvised: str = ""
    fault_traits: frozenset[FaultTrait] = frozenset()
    models: str = ""

    @property
    def own_state(self) -> str:
        """What only one worker has, so that it is lost with it; empty: nothing."""
        own: tuple[FaultTrait, ...] = ("optimizers of their own", "models of their own", "parameters of their own")
        return next((trait for trait in own if trait in self.fault_traits), "")

    @property
    def about(self) -> str:
        """What it does, in one sentence."""
        return cleandoc(self.settings.__doc__ or "")

    def written(self, name: str) -> str:
        """The name with all settings, and the defaults that do not follow from the number of workers."""
        given = [
            field.name if field.default in (None, MISSING) else f"{field.name}={_spoken(field.default)}"
            for field in fields(self.settings)
        ]
        return f"{name}({', '.join(given)})" if given else name


def _spoken(value: Any) -> str:
    """A default as a SPEC would say it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
