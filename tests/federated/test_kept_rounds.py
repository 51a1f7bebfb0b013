"""Simulated federated runs that are kept between rounds, and go on in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.checkpoint import CheckpointDirectory
from covey.errors import CheckpointError, PlanError
from covey.federated.aggregator import Aggregator
from covey.federated.messages import RoundBegin
from covey.observe.progress import Progress
from covey.observe.result import Result
from covey.privacy.randomness import SeededSource
from covey.run import federate
from covey.task import Task
from tests.federated.conftest import regression
from tests.federated.test_federated_runs import weights

WHOLE: dict[str, Any] = {"per_round": 6, "over": 1.0, "runs": False}


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """End the process, as far as the run can tell, when the clients of this round are to be configured."""
    honest = Aggregator.round

    async def dies(self: Aggregator, begin: RoundBegin) -> None:
        if begin.number == number:
            raise KeyboardInterrupt
        await honest(self, begin)

    with monkeypatch.context() as patched:
        patched.setattr(Aggregator, "round", dies)
        with pytest.raises(KeyboardInterrupt):
            yield


def run(strategy: str = "fedavg", rounds: int = 6, **given: Any) -> Result:
    return federate(regression(momentum=0.9), strategy, 6, rounds=rounds, **{**WHOLE, **given})


def numbers(result: Result) -> list[int]:
    assert result.participation
    return [one.number for one in result.participation.rounds if one.state != "not begun"]


class LastProgress:
    """A watcher that keeps what it was shown last."""

    samples = -1

    def update(self, progress: Progress) -> None:
        self.samples = progress.samples

    def say(self, line: str) -> None:
        """It keeps no lines."""


def test_the_progress_of_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    run(rounds=2, checkpoint=tmp_path / "kept")
    seen = LastProgress()
    then = run(rounds=3, resume=tmp_path / "kept", watcher=seen)
    assert seen.samples == then.samples > 0


@pytest.mark.parametrize(
    "strategy",
    ["fedavg(epochs=2)", "fedopt(server=adam, rate=0.1)", "fedsgd", "fedavg + secagg", "fedavg(update=mask)"],
)
def test_a_run_in_two_parts_trains_the_model_of_one(tmp_path: Path, strategy: str) -> None:
    """All clients take part in every round, so that it does not matter when each of them comes."""
    whole = run(strategy)
    first = run(strategy, rounds=3, checkpoint=tmp_path / "kept")
    then = run(strategy, resume=tmp_path / "kept")
    close = 1e-6 if "secagg" in strategy else 1e-12  # the order of additions differs
    assert (weights(then) - weights(whole)).abs().max() <= close < (weights(first) - weights(whole)).abs().max()
    assert numbers(then) == numbers(whole) == list(range(6))
    assert then.samples == whole.samples and then.updates == whole.updates == 6
    assert then.seconds > first.seconds and len(then.history) == len(whole.history)
    assert [one.reports for one in then.participation.rounds] == [6] * 6  # type: ignore[union-attr]


def test_a_resumed_run_is_the_same_each_time(tmp_path: Path) -> None:
    kept, given = tmp_path / "kept", {"per_round": 3, "over": 1.4, "availability": "daily(share=0.7, swing=2)"}
    run(rounds=3, checkpoint=kept, **given)
    once, again = (run(resume=kept, **given) for _ in range(2))
    assert torch.equal(weights(once), weights(again)) and once.participation == again.participation


def test_fedbuff_goes_on_between_updates(tmp_path: Path) -> None:
    given: dict[str, Any] = {"per_round": 4, "over": 1.3}
    run("fedbuff(buffer=2)", rounds=3, checkpoint=tmp_path, **given)
    then = run("fedbuff(buffer=2)", resume=tmp_path, **given)
    assert numbers(then) == list(range(6)) and then.updates == 6


def kept_at(folder: Path) -> list[int]:
    """How many rounds were over when each checkpoint of a run was written that is still there."""
    return [len(CheckpointDirectory(folder).checked(place)[1].progress["rounds"]) for place in
            CheckpointDirectory(folder).all()]  # fmt: skip


def test_every_says_how_often_and_the_end_is_kept(tmp_path: Path) -> None:
    whole = run()
    assert whole.participation
    third = whole.participation.rounds[2].seconds
    run(checkpoint=tmp_path / "often", every="1ms")
    run(checkpoint=tmp_path / "seldom", every=f"{1000 * third - 1:.0f}ms")
    run(checkpoint=tmp_path / "end", every="9h")
    assert kept_at(tmp_path / "often")[-2:] == [5, 6]
    assert kept_at(tmp_path / "seldom")[0] == 3 and kept_at(tmp_path / "end") == [6]


def test_a_killed_run_goes_on_from_between_two_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dying(monkeypatch, 3):
        run(checkpoint=tmp_path, every="1ms")
    assert kept_at(tmp_path)[-1] == 3
    then, whole = run(checkpoint=tmp_path, resume=tmp_path), run()
    assert (weights(then) - weights(whole)).abs().max() <= 1e-12 and numbers(then) == list(range(6))


def test_a_run_that_goes_on_in_another_folder_has_its_past_and_its_interval(tmp_path: Path) -> None:
    first = run(rounds=3, checkpoint=tmp_path / "one")
    every = f"{900 * first.seconds:.0f}ms"
    then = run(resume=tmp_path / "one", checkpoint=tmp_path / "other", every=every)
    assert len(then.origins) == 2
    assert kept_at(tmp_path / "other")[0] > 3, "the interval begins with the checkpoint that it goes on from"


def private(rounds: int, **given: Any) -> Result:
    return run("fedavg + dp(noise=2, clip=0.5, delta=1e-3)", rounds, selection="5s", **{"over": 1.3, **given})


def test_what_was_spent_is_not_forgotten(tmp_path: Path) -> None:
    whole, first = private(6), private(3, checkpoint=tmp_path)
    then = private(6, resume=tmp_path)
    assert whole.privacy and first.privacy and then.privacy
    assert then.privacy.rounds == whole.privacy.rounds == 6 and first.privacy.rounds == 3
    assert then.privacy.epsilon == pytest.approx(whole.privacy.epsilon)
    assert first.privacy.epsilon < 0.9 * then.privacy.epsilon  # type: ignore[operator]


def test_a_resumed_run_ends_when_the_budget_of_both_parts_is_spent(tmp_path: Path) -> None:
    limit = private(4).privacy
    assert limit and limit.epsilon
    private(3, checkpoint=tmp_path, epsilon=limit.epsilon)
    then = private(9, resume=tmp_path, epsilon=limit.epsilon)
    assert then.stopped == "privacy" and numbers(then) == list(range(4))


def test_who_is_drawn_after_a_resume_is_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rounds' stream of chance again would draw the same clients again."""
    streams, of = list[tuple[object, ...]](), SeededSource.of

    def noting(self: SeededSource, *names: Any) -> Any:
        streams.append(names)
        return of(self, *names)

    monkeypatch.setattr(SeededSource, "of", noting)
    private(3, checkpoint=tmp_path)
    private(4, resume=tmp_path)
    assert [names for names in streams if names[0] == "drawn"] == [("drawn",), ("drawn", 3)]


def test_a_round_that_was_under_way_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `every` says, a round is written down as spent before its clients are configured."""
    with dying(monkeypatch, 2):
        private(4, checkpoint=tmp_path, every="9h")
    then = private(4, resume=tmp_path)
    assert then.privacy and then.privacy.rounds == 5, "four rounds, and the one that came to nothing"
    assert numbers(then) == list(range(4))


def test_scores_stay_at_every_few_rounds(tmp_path: Path) -> None:
    def scored(**given: Any) -> list[Any]:
        task = regression(evaluate=lambda model: {"size": float(model.weight.detach().norm())})
        found = federate(task, "fedavg", 6, score_every=4, **{**WHOLE, **given})
        return [row["samples"] for row in found.history]

    assert scored(rounds=3, checkpoint=tmp_path) == [0, 180], "the end of a run is scored in any case"
    assert scored(rounds=9, resume=tmp_path) == scored(rounds=9) == [0, 240, 480, 540]


def test_the_lineage_has_both_runs(tmp_path: Path) -> None:
    run(rounds=2, checkpoint=tmp_path)
    assert len(run(rounds=4, resume=tmp_path).origins) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": 3}, "the seed 0, and this one has 3"),
        ({"partition": "labels(count=2)"}, "partition even, and this one has 6 clients with the partition labels"),
        ({"strategy": "fedsgd"}, "the strategy fedavg.* and this one has fedsgd"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    run(rounds=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=said):
        run(resume=tmp_path, **given)


def test_other_clients_are_refused(tmp_path: Path, task: Task) -> None:
    federate(task, "fedavg", 6, rounds=1, checkpoint=tmp_path, **WHOLE)
    with pytest.raises(CheckpointError, match="6 clients with .* and this one has 10 clients"):
        federate(task, "fedavg", 10, rounds=2, resume=tmp_path, **WHOLE)
    with pytest.raises(CheckpointError, match="the batch size 8, and this one has 4"):
        federate(replace(task, batch_size=4), "fedavg", 6, rounds=2, resume=tmp_path, **WHOLE)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="such as 10m"):
        run(checkpoint=tmp_path, every="auto")
    with pytest.raises(PlanError, match='say where with checkpoint="DIR"'):
        run(every="5s")
    for name in ("checkpoint", "resume"):
        with pytest.raises(PlanError, match="trains nothing that could be kept"):
            run(timing_only=True, **{name: tmp_path})
        with pytest.raises(PlanError, match=f"{name}.*esgd has not sent"):
            run("fedavg + esgd", **{name: tmp_path})
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        run(resume=tmp_path / "nothing")
    run(rounds=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="which this one would replace"):
        run(checkpoint=tmp_path)
