"""Several versions of a model behind one front, in virtual time."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
import torch
from torch import Tensor

from covey.errors import PlanError
from covey.inference.messages import InferenceAnswer, InferenceFeedback, InferenceRequest
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.scaler import ScalerSettings
from covey.inference.versions.bandit import Exp3, Exp4
from covey.inference.versions.canary import Canary, CanarySettings, at_least
from covey.inference.virtual_service import VirtualAnswer, VirtualService
from covey.vector import Vector

FRONT = FrontSettings(objective=0.1)


def canary(share: float = 0.2, enough: int = 50) -> Canary:
    return Canary(CanarySettings(share=share, enough=enough, objective=0.1))


def served(choice: Canary, new: object, requests: int = 2000) -> tuple[VirtualService, list[VirtualAnswer]]:
    service = VirtualService(FRONT, 4, lambda n: 0.001, [lambda rows: rows, new], choice=choice)  # type: ignore[list-item]
    for number in range(requests):
        service.request(number / 200, torch.tensor([float(number)]))
    return service, service.run()


def failing(rows: Tensor) -> Tensor:
    raise ValueError("no")


def test_a_new_version_gets_its_share_of_the_inputs_and_always_the_same() -> None:
    trial, rng = canary(share=0.05), Random(0)
    asked = [InferenceRequest(number, Vector([torch.tensor([number % 4000.0])])) for number in range(8000)]
    chosen = [trial.choose(one, 0.0, rng)[0] for one in asked]
    assert chosen[:4000] == chosen[4000:]
    assert 0.03 < sum(chosen) / 8000 < 0.07
    other = canary(share=0.05)
    assert [other.choose(one, 0.0, rng)[0] for one in asked] != chosen, "no client knows which inputs it gets"


def test_a_good_new_version_is_promoted_and_gets_everything() -> None:
    service, answers = served(canary(), lambda rows: rows)
    assert service.decided is not None
    at, decided = service.decided
    assert decided.winner == 1 and "0 failed and 0 late of" in decided.reason
    assert 0.5 < at < 5, "40 per second go to it, and 50 decide"
    before, after = (Counter(one.answer.version for one in answers if (one.arrived > at) == late) for late in (0, 1))
    assert before[1] < before[0] and set(after) == {1}
    assert {one.answer.status for one in answers} == {200}
    assert service.replica_seconds < 3.9 * 10, "the old version's replicas have ended"


def test_a_new_version_that_fails_is_withdrawn_soon() -> None:
    service, answers = served(canary(), failing)
    assert service.decided is not None
    at, decided = service.decided
    assert decided.winner == 0 and "20 failed" in decided.reason
    statuses = Counter((one.answer.status, one.answer.version) for one in answers if one.arrived > at)
    assert set(statuses) == {(200, 0)}
    assert Counter(one.answer.status for one in answers)[500] <= 25


def counted(trial: Canary, version: int, status: int, took: float) -> None:
    trial._arrived[0] = 0.0
    trial.collect(version, InferenceAnswer(0, status, Vector([])), took)


def test_late_answers_count_as_failed_ones_do_and_only_beside_the_old_version() -> None:
    late, equal, few = canary(), canary(), canary()
    for number in range(200):
        for trial in (late, equal, few):
            counted(trial, 0, 200, 0.2 if trial is equal and number % 5 == 0 else 0.01)
    for number in range(40):
        counted(late, 1, 200, 0.2 if number % 5 == 0 else 0.01)
        counted(equal, 1, 200, 0.2 if number % 5 == 0 else 0.01)
        counted(few, 1, 200, 0.01)
    assert (late.winner, equal.winner, few.winner) == (0, None, None), "40 are not enough to promote"
    for _ in range(2000):
        counted(equal, 1, 200, 0.01)
        counted(few, 1, 200, 0.01)
    assert (equal.winner, few.winner) == (1, 1)
    assert few.decided() is not None and few.decided() is None, "it is told once"


def test_a_version_that_is_somewhat_worse_is_withdrawn_in_the_end() -> None:
    trial = canary()
    counted(trial, 0, 200, 0.01)
    for number in range(199):
        counted(trial, 1, 200 if number % 50 else 500, 0.01)
    assert trial.winner is None, "one of 50 may be chance"
    counted(trial, 1, 200, 0.01)
    assert trial.winner == 0


def test_a_version_that_only_chance_makes_look_worse_is_not_withdrawn() -> None:
    trial = canary(enough=200)
    for number in range(1000):
        counted(trial, 0, 200, 0.2 if number % 1000 < 529 else 0.01)
    for number in range(200):
        counted(trial, 1, 200, 0.2 if number % 20 < 11 else 0.01)
    assert trial.winner is None, "55.0 % are late beside 52.9 %"
    for _ in range(20):
        counted(trial, 1, 200, 0.01)
    assert trial.winner == 1


@pytest.mark.parametrize(
    ("bad", "winner", "said"),
    [
        ("none", 1, "; the old version misses the objective"),
        ("as late", 1, "; both versions miss the objective"),
        ("later", 0, "; both versions miss the objective"),
        ("fails", 0, "; the old version misses the objective"),
        ("full", 1, "; both versions miss the objective"),
    ],
)
def test_while_the_old_version_misses_its_objective_a_new_one_may_be_late_but_not_fail(
    bad: str, winner: int, said: str
) -> None:
    """Half of the old version's answers are late."""
    trial = canary(enough=200)
    for number in range(1000):
        counted(trial, 0, 200, 0.2 if number % 2 else 0.01)
    for number in range(800):
        half, most = number % 2 == 0, number % 4 > 0
        match bad:
            case "as late":
                counted(trial, 1, 200, 0.2 if half else 0.01)
            case "later":
                counted(trial, 1, 200, 0.2 if most else 0.01)
            case "fails":
                counted(trial, 1, 200 if number % 5 else 500, 0.01)
            case "full":
                counted(trial, 1, 429 if half else 200, 0.01)
            case _:
                counted(trial, 1, 200, 0.01)
        if (decided := trial.decided()) is not None:
            break
    assert decided is not None
    assert (decided.winner, decided.reason[decided.reason.rindex(";") :]) == (winner, said)


def test_what_a_share_is_at_least_is_wilsons_bound() -> None:
    """Of 100 answers half failed: with 99 of 100 chances it is 38.7 % or more; of very many, it is what was seen."""
    assert at_least(0.5, 100) == pytest.approx(0.3865, abs=1e-4)
    assert at_least(1.0, 10**9) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_other_shares_are_refused(share: float) -> None:
    with pytest.raises(PlanError, match="between 0 and 100"):
        canary(share=share)


def voter(label: int) -> object:
    """Says the same class whatever is asked."""
    return lambda rows: torch.nn.functional.one_hot(torch.full((len(rows),), label), 3).float()


def judged(choice: Exp3, right: list[float], requests: int, seed: int = 1) -> None:
    """Ask, and tell whether the version that answered was right, which each is with its own probability."""
    rng = Random(seed)
    for ticket in range(requests):
        (version,) = choice.choose(InferenceRequest(ticket, Vector([torch.ones(1)])), 0.0, rng)
        choice.learn(InferenceFeedback(ticket, loss=float(rng.random() > right[version])))


def test_exp3_finds_the_better_version_and_notices_when_another_is_better() -> None:
    choice = Exp3(3)
    assert choice.shares() == pytest.approx([1 / 3] * 3)
    judged(choice, [0.6, 0.9, 0.6], 1500)
    assert choice.shares()[1] > 0.8
    judged(choice, [0.9, 0.1, 0.6], 3000, seed=2)
    assert choice.shares()[0] > 0.8, "all versions are still asked now and then"


def test_exp3_counts_a_loss_by_how_rarely_its_version_is_asked() -> None:
    rare, often = Exp3(2, rate=1.0), Exp3(2, rate=1.0)
    for choice, chance in ((rare, 0.1), (often, 0.9)):
        choice._chosen[0] = (0, chance)
        choice.learn(InferenceFeedback(0, loss=0.5))
        choice.learn(InferenceFeedback(0, loss=0.5))  # again: it is not known any more
        choice.learn(InferenceFeedback(99, loss=1.0))
    assert rare.weights.now[0] < 0.01 < 0.3 < often.weights.now[0] < 0.4


def test_exp4_lets_versions_vote_and_tells_how_sure_they_are() -> None:
    """Versions 0 and 1 say class 1, version 2 says class 2, and is right."""
    choice = Exp4(3, 0.1)
    models = [voter(1), voter(1), voter(2)]
    service = VirtualService(FRONT, 3, lambda n: 0.001, models, choice=choice)  # type: ignore[arg-type]
    for number in range(40):
        service.judge(number + 0.5, service.request(float(number)), label=2)
    answers = service.run()
    first, last = answers[0].answer, answers[-1].answer
    assert (first.version, first.row.parts[0].argmax()) == (0, 1) and first.confidence == pytest.approx(2 / 3)
    assert (last.version, last.row.parts[0].argmax()) == (2, 2) and last.confidence > 0.9
    confidence = [one.answer.confidence for one in answers]
    assert min(confidence) < 0.6, "on the way from one to the other they are not sure"


def test_exp4_objects_to_a_label_that_is_no_class() -> None:
    choice = Exp4(2, 0.1)
    service = VirtualService(FRONT, 2, lambda n: 0.001, [voter(0), voter(1)], choice=choice)  # type: ignore[arg-type]
    ticket = service.request(0.0)
    service.run()
    for label, said in ((2, ""), (3, "no version has a class 3: send a `label` from 0 to 2")):
        assert choice.objection(InferenceFeedback(ticket, label=label)) == said
    assert "is not the `id`" in choice.objection(InferenceFeedback(ticket + 1, label=0))


def test_exp4_answers_without_a_version_that_fails() -> None:
    models = [voter(1), failing, failing]
    service = VirtualService(FRONT, 3, lambda n: 0.001, models, choice=Exp4(3, 0.1))  # type: ignore[arg-type]
    service.request(0.0)
    (one,) = service.run()
    assert (one.answer.status, one.answer.version, one.answer.confidence) == (200, 0, 1.0)
    service = VirtualService(FRONT, 3, lambda n: 0.001, [failing] * 3, choice=Exp4(3, 0.1))
    service.request(0.0)
    assert [one.answer.status for one in service.run()] == [500]


def test_exp4_does_not_wait_for_a_version_that_is_slow() -> None:
    """Version 2 has no replica until 1 s, and says class 2, which is right."""
    choice = Exp4(3, 0.1)
    models = [voter(1), voter(1), voter(2)]
    service = VirtualService(FRONT, 2, lambda n: 0.001, models, choice=choice)  # type: ignore[arg-type]
    service.join(1.0, 2)
    tickets = [service.request(0.5), service.request(2.0)]
    service.judge(1.5, tickets[0], label=2)
    first, second = service.run()
    assert first.seconds == pytest.approx(0.1) and first.answer.confidence == 1.0
    assert second.seconds < 0.01 and second.answer.confidence == pytest.approx(2 / (2 + math.exp(0.2)))
    alone = VirtualService(FRONT, 0, lambda n: 0.001, models, choice=Exp4(3, 0.1))  # type: ignore[arg-type]
    alone.join(1.0, 0)
    alone.request(0.5)
    (late,) = alone.run()
    assert (late.answer.status, late.answer.version) == (200, 0) and late.answered == pytest.approx(1.001)


def test_exp4_punishes_those_that_said_what_the_client_was_told_by_a_loss() -> None:
    """Versions 0 and 1 say class 1, which the client is told; version 2 has said something else."""
    choice, models = Exp4(3, 0.1), [voter(1), voter(1), voter(2)]
    service = VirtualService(FRONT, 3, lambda n: 0.001, models, choice=choice)  # type: ignore[arg-type]
    service.judge(0.5, service.request(0.0), loss=0.5)
    service.request(1.0)
    service.run()
    punished = math.exp(-0.2 * 0.5)
    assert choice.shares() == pytest.approx([one / (2 * punished + 1) for one in (punished, punished, 1.0)])


def test_exp4_keeps_no_outputs_of_answers_that_feedback_may_come_for() -> None:
    choice, rng = Exp4(2, 0.1), Random(0)
    large = Vector([torch.arange(1000.0)])
    for ticket in range(3):
        choice.choose(InferenceRequest(ticket, large), 0.0, rng)
        first, second = (choice.collect(version, InferenceAnswer(ticket, 200, large), 0.0) for version in (0, 1))
        assert first is None and second is not None
    choice.choose(InferenceRequest(3, large), 0.0, rng)
    choice.collect(0, InferenceAnswer(3, 200, large), 0.0)
    assert len(choice.overdue(1.0)) == 1 and choice.collect(1, InferenceAnswer(3, 200, large), 2.0) is None
    kept = [(vote.answers, vote.classes, vote.given) for vote in choice._votes.values()]
    assert kept == [({}, {0: 999, 1: 999}, 999)] * 4


def test_each_version_has_a_scaler_of_its_own() -> None:
    scaled = ScalerSettings(least=1, most=4, share=0.99, slack=FRONT.budget, versions=2)
    models = [lambda rows: rows, lambda rows: rows * 2]
    service = VirtualService(FRONT, 0, lambda n: 0.01, models, scaled=scaled, setup=0.2, choice=canary())  # type: ignore[arg-type]
    for number in range(2000):
        service.request(1 + number / 200, torch.tensor([float(number)]))
    answers = service.run()
    rows = enumerate(one.answer for one in answers)
    factors = {(answer.version, answer.row.parts[0].item() / number) for number, answer in rows if number}
    assert factors == {(0, 1.0), (1, 2.0)}
    assert service.decided is not None and service.decided[1].winner == 1
    assert {one.answer.status for one in answers} == {200}
