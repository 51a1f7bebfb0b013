"""The federated strategies: what clients do, how their updates become one, and what the service does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from covey.errors import PlanError
from covey.federated.aggregation import AggregationChoice, AggregationName
from covey.federated.local_training import BatchSize, LocalPlan
from covey.federated.private.private_settings import Dp, SecAgg
from covey.federated.reports.form_choice import FormChoice, Structure
from covey.federated.server_steps import ServerOptimizer, ServerStep, adaptive, momentum, plain
from covey.strategy import Scheduling, Taxonomy

MEAN, WHOLE = AggregationChoice(), FormChoice()


@dataclass(frozen=True, kw_only=True, slots=True)
class FederatedStrategy:
    """A strategy that can be run.

    Args:
        local: How clients train.
        step: What the service does with their aggregate; None: a step of the task's own optimizer, with a gradient.
        aggregation: How the updates of a round become one.
        buffer: The reports of an update, where there are no rounds; 0: there are.
        secure: Sums of reports that nobody can open one by one.
        noise: Noise that covers the mean of the reports.
        form: What of an update travels.
    """

    local: LocalPlan
    step: ServerStep | None
    aggregation: AggregationChoice = MEAN
    buffer: int = 0
    secure: SecAgg | None = None
    noise: Dp | None = None
    form: FormChoice = WHOLE

    def check_beside(self) -> None:
        """Refuse what cannot stand beside secure sums, noise or forms of reports."""
        self.form.check()
        for word in self.form.words:
            if self.buffer:
                raise PlanError(f"fedbuff and {word}: its reports travel as they are; use fedavg")
            if self.secure:
                raise PlanError(f"{word} and secagg: masks cover whole updates, which are added up; omit one of them")
        for name, asked in (("secagg", self.secure), ("dp", self.noise)):
            if asked is None:
                continue
            if self.buffer:
                raise PlanError(f"fedbuff + {name}: its updates have no rounds with clients of their own; use fedavg")
            if self.aggregation.name != "mean":
                why = "nobody sees single reports" if name == "secagg" else "noise covers a sum of clipped updates"
                raise PlanError(f"aggregate={self.aggregation.name} + {name}: {why}; use aggregate=mean")

    @property
    def taxonomy(self) -> Taxonomy:
        scheduling: Scheduling = "asynchronous" if self.buffer else "synchronous"
        return Taxonomy(
            optimization="federated", architecture="server", scheduling=scheduling, exchange="reduce / broadcast",
            topology="star",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationSettings:
    """How updates become one, which most strategies let a person choose."""

    aggregate: AggregationName = "mean"
    trim: float = 0.1
    faulty: int = 1
    chosen: int = 1

    @property
    def choice(self) -> AggregationChoice:
        return AggregationChoice(name=self.aggregate, trim=self.trim, faulty=self.faulty, chosen=self.chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class FedSgd(AggregationSettings):
    """Each client reports the gradient of all its samples; the service takes a step of the task's optimizer."""

    def strategy(self) -> FederatedStrategy:
        return FederatedStrategy(local=LocalPlan(epochs=0), aggregation=self.choice, step=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class FedAvg(AggregationSettings):
    """Each client trains for some epochs; the new model is the mean of theirs, weighted by their samples."""

    epochs: int = 1
    batch: BatchSize = None
    rate: float = 1.0
    update: Structure = "whole"
    rank: int = 4
    keep: float = 0.1

    def strategy(self) -> FederatedStrategy:
        check_positive(rate=self.rate, epochs=self.epochs)
        local = LocalPlan(epochs=self.epochs, batch=self.batch)
        form = FormChoice(structure=self.update, rank=self.rank, keep=self.keep)
        return FederatedStrategy(local=local, aggregation=self.choice, step=plain(self.rate), form=form)


@dataclass(frozen=True, kw_only=True, slots=True)
class FedProx(AggregationSettings):
    """As fedavg, with a pull of every client towards the model that it was given, which limits its drift."""

    mu: float = 0.01
    epochs: int = 1
    batch: BatchSize = None
    rate: float = 1.0

    def strategy(self) -> FederatedStrategy:
        check_positive(rate=self.rate, epochs=self.epochs)
        local = LocalPlan(epochs=self.epochs, batch=self.batch, mu=self.mu)
        return FederatedStrategy(local=local, aggregation=self.choice, step=plain(self.rate))


@dataclass(frozen=True, kw_only=True, slots=True)
class FedOpt(AggregationSettings):
    """As fedavg, but the service treats the mean update as a gradient, and takes a step of an optimizer with it."""

    server: ServerOptimizer = "adam"
    rate: float | None = None  # 1 with momentum, 0.01 with the others
    beta: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    epochs: int = 1
    batch: BatchSize = None

    def strategy(self) -> FederatedStrategy:
        rate = self.rate if self.rate is not None else 1.0 if self.server == "momentum" else 0.01
        check_positive(rate=rate, tau=self.tau, epochs=self.epochs)
        if not (0 <= self.beta < 1 and 0 <= self.beta2 < 1):
            raise PlanError(f"beta={self.beta:g}, beta2={self.beta2:g}: both must be at least 0 and less than 1")
        step = momentum(rate, self.beta)
        if self.server != "momentum":
            step = adaptive(self.server, rate, self.beta, self.beta2, self.tau)
        local = LocalPlan(epochs=self.epochs, batch=self.batch)
        return FederatedStrategy(local=local, aggregation=self.choice, step=step)


@dataclass(frozen=True, kw_only=True, slots=True)
class FedBuff:
    """Without rounds: `--per-round` clients train at any time, and every `buffer` reports make an update."""

    buffer: int = 10
    rate: float = 1.0
    epochs: int = 1
    batch: BatchSize = None

    def strategy(self) -> FederatedStrategy:
        check_positive(rate=self.rate, epochs=self.epochs, buffer=self.buffer)
        local = LocalPlan(epochs=self.epochs, batch=self.batch)
        return FederatedStrategy(local=local, step=plain(self.rate), buffer=self.buffer)


STRATEGIES: Mapping[str, type[Any]] = {
    "fedsgd": FedSgd, "fedavg": FedAvg, "fedprox": FedProx, "fedopt": FedOpt, "fedbuff": FedBuff,
}  # fmt: skip


def check_positive(**values: float) -> None:
    """Refuse what must be more than 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise PlanError(f"{name}={value:g}: it must be more than 0")


def written(name: str, settings: object) -> str:
    """The name with all settings, as a SPEC says them."""
    given = {one.name: getattr(settings, one.name) for one in fields(settings)}  # type: ignore[arg-type]
    words = (
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in given.items()
        if value is not None
    )
    return f"{name}({', '.join(words)})"
