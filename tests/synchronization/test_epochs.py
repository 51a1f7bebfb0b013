"""An epoch ends for everybody when enough of it is done, whatever counts: replicas or samples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from covey.synchronization import Ending, Epochs

ALL = range(4)


def even() -> Epochs:
    """Four workers, each with 3 batches of 8 samples."""
    return Epochs.of([[8, 8, 8]] * 4)


def test_the_third_of_four_replicas_ends_it() -> None:
    epochs, ending = even(), Ending(0.75)
    for rank in (0, 2):
        for step in range(3):
            epochs.came(rank, step, 8)
        assert not epochs.end(ending)
    epochs.came(3, 0, 8)
    epochs.came(3, 1, 8)
    assert not epochs.end(ending), "18 of 24 batches are more than 75 % of the samples, but two replicas"
    epochs.came(3, 2, 8)
    assert epochs.end(ending) and epochs.over == 1
    assert not epochs.end(ending), "it has ended already"


def test_three_quarters_of_the_samples_end_it() -> None:
    epochs, ending = even(), Ending(0.75, "samples")
    for rank in ALL:
        epochs.came(rank, 0, 8)
        epochs.came(rank, 1, 8)
    assert not epochs.end(ending)
    epochs.came(1, 2, 8)
    assert epochs.end(ending) and epochs.over == 1, "9 of 12 batches, though only one replica has finished"


def test_late_samples_do_not_count_for_the_next_epoch() -> None:
    epochs, ending = even(), Ending(0.25, "samples")
    for step in range(3):
        epochs.came(0, step, 8)
    assert epochs.end(ending)
    for rank in (1, 2, 3):
        epochs.came(rank, 0, 8)  # computed while the epoch ended
    assert not epochs.end(ending) and epochs.over == 1


def test_samples_of_one_that_is_an_epoch_ahead_count_for_that_epoch() -> None:
    epochs, ending = even(), Ending(0.5, "samples")
    for step in range(5):
        epochs.came(0, step, 8)
    assert not epochs.end(ending), "3 of 12 batches of the first epoch"
    for step in range(3):
        epochs.came(1, step, 8)
    assert epochs.end(ending) and epochs.over == 1
    for step in (3, 4, 5):
        epochs.came(1, step, 8)
    assert not epochs.end(ending), "5 of 12"
    epochs.came(0, 5, 8)
    assert epochs.end(ending) and epochs.over == 2


@given(share=st.integers(1, 20), workers=st.integers(1, 20))
def test_as_many_replicas_as_the_share_says_and_no_more(share: int, workers: int) -> None:
    """Rounded up, without the rounding of floats: 55 % of 20 are 11."""
    epochs, ending = Epochs.of([[1]] * workers), Ending(share / 20)
    finished = 0
    while not epochs.over:
        epochs.came(finished, 0, 1)
        finished += 1
        epochs.end(ending)
    assert finished == -(-share * workers // 20)
