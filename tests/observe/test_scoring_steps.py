"""After which steps a score falls."""

from __future__ import annotations

import pytest

from covey.observe.scoring_steps import ScoringSteps


def steps(scores: int, each_pass: int, total: int, skipped: int = 0) -> list[int]:
    rule = ScoringSteps(each_pass=each_pass, samples=64 * each_pass, scores=scores, total=total, skipped=skipped)
    found: list[int] = []
    while (following := rule.after(found[-1] if found else 0)) is not None:
        found.append(following)
    return found


@pytest.mark.parametrize(
    ("scores", "each_pass", "total", "expected"),
    [
        (1, 10, 30, [10, 20]),  # the end of the run is scored in any case
        (2, 5, 11, [3, 5, 8, 10]),
        (8, 23, 24, [3, 6, 9, 12, 15, 18, 21, 23]),
        (8, 3, 5, [1, 2, 3, 4]),  # no more often than there are steps
        (3, 10, 1, []),
    ],
)
def test_scores_are_spread_evenly_over_a_pass(scores: int, each_pass: int, total: int, expected: list[int]) -> None:
    assert steps(scores, each_pass, total) == expected


def test_a_run_that_goes_on_with_other_workers_counts_from_there() -> None:
    assert steps(2, 6, 20, skipped=0) == [3, 6, 9, 12, 15, 18]
    assert steps(2, 6, 20 - 7, skipped=7) == [9 - 7, 12 - 7, 15 - 7, 18 - 7]


@pytest.mark.parametrize("each_pass", [1, 2, 7, 23, 1000])
def test_the_samples_of_a_kept_score_tell_its_step(each_pass: int) -> None:
    """The last batch of a pass may be a single sample."""
    batch = 32
    samples = (each_pass - 1) * batch + 1
    for skipped in (0, 1, each_pass, each_pass + 3):
        rule = ScoringSteps(each_pass=each_pass, samples=samples, scores=8, total=10**6, skipped=skipped)
        for step in range(3 * each_pass + 1):
            passes, inside = divmod(step, each_pass)
            found = rule.at(passes * samples + inside * batch)
            assert found == max(0, step - skipped), "steps that were done with other workers are not counted again"
