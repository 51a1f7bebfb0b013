"""What every strategy keeps, whatever it is called. In virtual time; tests/real holds the same on real processes."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest
import torch

import covey
from covey import catalog
from covey.check import laws
from covey.decentral.gossip.gosgd import Gossip
from covey.observe.instruments import Instrument
from covey.observe.result import Result
from covey.observe.trace import Trace
from covey.simulate import Cluster, Seconds
from covey.task import Task
from tests.promises.declared import EPOCHS, LACKS, PARTS
from tests.promises.digits import NUMBERS, counted, formula, positive
from tests.promises.specs import SPECS, TRAINED_AS, workable
from tests.worlds import Recorder, mlp, quadratic, sgd

DIGITS = "examples/digits.py"
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 2.0})

every = pytest.mark.parametrize("name", catalog.for_any_model())


def fit(task: Task | str, name: str, workers: int = 4, **given: Any) -> Result:
    return covey.fit(task, SPECS.get(name, name), workers, engine="simulated", **{"cluster": UNEVEN, **given})


@every
def test_trains_digits_to_the_target(name: str) -> None:
    result = fit(DIGITS, TRAINED_AS.get(name, name), until="accuracy>=0.95")
    assert result.stopped == "target"
    assert result.reached is not None and result.reached.metric == "accuracy"
    reached = next(row for row in result.history if row["samples"] == result.reached.samples)
    assert reached["accuracy"] is not None and reached["accuracy"] >= 0.95
    assert result.samples < EPOCHS.get(name, 20) * 1437, "so many epochs: it hardly learns"


@every
def test_the_saved_model_is_the_scored_one(name: str) -> None:
    result = fit(DIGITS, name, epochs=1)
    task = covey.task.load_task(DIGITS)
    module = task.model()
    module.load_state_dict(result.weights)
    assert task.evaluate is not None
    assert task.evaluate(module)["accuracy"] == result.history[-1]["accuracy"]


@every
def test_same_seed_same_run(name: str) -> None:
    def once(seed: int) -> tuple[str, str]:
        trace = Trace()
        result = fit(DIGITS, name, epochs=1, seed=seed, instruments=[trace])
        return trace.text(), result.to_json()

    first, second, other = once(7), once(7), once(8)
    assert first == second
    assert other[0] != first[0] and other[1] != first[1]


# -- endings ----------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_ends_after_its_steps(name: str, workers: int) -> None:
    log, workers = Recorder(), workable(name, workers)
    cluster = Cluster(compute=Seconds(0.01), jitter=0.3)
    result = fit(mlp(samples=101), name, workers, steps=7, instruments=[log], cluster=cluster)
    assert result.stopped == "budget" and result.reached is None
    if name not in PARTS:
        computes = Counter(who.rank for _, _, who in log.computes if who.role == "worker")
        assert computes == dict.fromkeys(range(workers), 7)
    assert_all_ended(log, result)


@every
@pytest.mark.parametrize("samples", [101, 97, 5])
def test_ends_after_its_epochs_when_shards_are_unequal(name: str, samples: int) -> None:
    """Of 97 samples worker 0 has 25, in 4 batches, and the others 24, in 3: it goes on when they have ended."""
    log = Recorder()
    result = fit(mlp(samples=samples), name, epochs=2, instruments=[log])
    assert result.stopped == "budget"
    assert result.samples == 2 * samples or (name in LACKS and samples <= result.samples < 2 * samples)
    assert_all_ended(log, result)


@every
@pytest.mark.parametrize("moment", [1, 2, 9, 30])
def test_ends_cleanly_on_interruption(name: str, moment: int) -> None:
    log = Recorder()
    before = signal.getsignal(signal.SIGINT)
    result = fit(mlp(samples=101), name, epochs=50, instruments=[log, CtrlC(moment)])
    assert result.stopped == "interrupted"
    assert len(log.computes) <= moment + 4 * 5 * PARTS.get(name, 1)  # lockstep ends with the foremost's step
    assert_all_ended(log, result)
    assert signal.getsignal(signal.SIGINT) is before


@every
def test_ends_cleanly_on_target_at_any_moment(name: str) -> None:
    """A loss that is reached at once, in the middle of everything."""
    log = Recorder()
    result = fit(mlp(samples=101), name, until="loss<=100", instruments=[log])
    assert result.stopped == "target" and result.reached is not None
    assert_all_ended(log, result)


class CtrlC(Instrument):
    """Interrupts at the end of so many computes."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def computed(self, begin: float, end: float, who: covey.message.Address) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def assert_all_ended(log: Recorder, result: Result) -> None:
    sends, arrived = [(event.message, event.size) for event in log.sends], [event.message for event in log.deliveries]
    assert not laws.unfinished(log.ends, result.roles, sends, arrived)


# -- samples ----------------------------------------------------------------------------------------------------------


def linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 5))


@every
@pytest.mark.parametrize("samples", [101, 97, 64])
def test_samples_as_declared(name: str, samples: int) -> None:
    if not catalog.resolve(name, 4).description.samples.startswith("every sample once per epoch"):
        pytest.skip("declares something else, which its own test checks")
    seen: list[int] = []

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x, numbers = batch
        made: torch.Tensor = model(x)  # divided models are asked twice, and answer once
        seen.extend(numbers.tolist())
        return (made - x).square().mean()

    data = (torch.randn(samples, 5, generator=torch.Generator().manual_seed(1)), torch.arange(samples))
    task = Task(model=linear, data=data, optimizer=sgd(0.01), step=step, batch_size=4)
    result = fit(task, name, epochs=2)
    assert Counter(seen) == dict.fromkeys(range(samples), 2)
    assert result.samples == len(seen)


# -- bytes ------------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_payload_is_what_the_formula_says(name: str, workers: int) -> None:
    """19 steps: no multiple of a period. 4,810 numbers: no multiple of 3 or 4 workers."""
    log, workers = laws.SentMessages(), workable(name, workers)
    cluster = Cluster(compute=Seconds(0.01), jitter=0.3)
    result = fit(DIGITS, name, workers, steps=19, instruments=[log], cluster=cluster)
    links = formula(name).links(log.counted(formula(name), counted(name, workers, 19)))
    assert positive(result.traffic.by_link) == positive(links)
    assert result.traffic.bytes == sum(links.values()) == sum(size for _, _, size in log.sends)
    assert sum(result.traffic.by_role.values()) == result.traffic.bytes


@pytest.mark.parametrize("name", ["bsp", "ssp", "asynchronous"])
def test_more_servers_share_the_same_bytes(name: str) -> None:
    result = fit(DIGITS, name, 2, servers=3, steps=5)
    for rank in range(2):
        pieces = [result.traffic.by_link[f"worker {rank}->server {index}"] for index in range(3)]
        assert pieces == [result.traffic.by_link[f"server {index}->worker {rank}"] for index in range(3)]
        assert sum(pieces) == 5 * 4 * NUMBERS
        assert max(pieces) - min(pieces) <= 5 * 4


def test_gossip_is_as_frequent_as_asked() -> None:
    log = Recorder()
    fit(quadratic(samples=400, batch_size=1), "gosgd(probability=0.25)", 4, steps=100, instruments=[log])
    assert 60 < len(log.kinds(Gossip)) < 140  # 100 expected, with a deviation of 9
    assert all(event.sender != event.to for event in log.kinds(Gossip))
