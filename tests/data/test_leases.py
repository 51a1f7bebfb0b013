"""Leases of batches: whatever workers do, each batch is done once, by somebody who was there."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from covey.data.leases import BatchSet, Lease, Ledger


def ledger(*limits: int, epoch: int = 3) -> Ledger:
    return Ledger(limits, [epoch] * len(limits), lambda seat, number: 8)


def test_without_changes_everybody_does_the_batches_of_its_own_seat() -> None:
    book = ledger(4, 4)
    for step in range(4):
        assert [book.take(worker, step) for worker in (0, 1)] == [Lease(0, step), Lease(1, step)]
    assert book.take(0, 4) is None and not book.open


def test_who_asks_again_gets_the_same_batch() -> None:
    book = ledger(4, 4)
    assert book.take(0, 0) == book.take(0, 0) == Lease(0, 0)
    assert book.take(0, 1) == Lease(0, 1) and book.take(0, 0) == Lease(0, 0), "a server may lack its last but one"
    assert book.before(0, 0) == 0 and book.before(0, 1) == 8 and book.before(0, 2) == 16
    book.settle(0, before=1)
    assert book.held[0] == {1: Lease(0, 1)}


def test_batches_of_an_empty_seat_come_in_their_turn() -> None:
    """An epoch is finished before the next one begins."""
    book = ledger(6, 6, 6)
    for worker in range(3):
        book.take(worker, 0)
    book.leave(2, known=lambda lease: False)
    taken = [book.take(worker, step) for step in range(1, 8) for worker in (0, 1)]
    assert taken[:6] == [Lease(2, 0), Lease(1, 1), Lease(0, 1), Lease(2, 1), Lease(0, 2), Lease(1, 2)]
    assert [lease and lease.number // 3 for lease in taken] == sorted([0] * 7 + [1] * 7)


def test_seats_of_different_lengths_end_an_epoch_together() -> None:
    book = Ledger([4, 8], [2, 4], lambda seat, number: 8)
    book.leave(1, known=lambda lease: False)
    taken = [lease for step in range(12) if (lease := book.take(0, step))]
    assert [lease.number // (2, 4)[lease.seat] for lease in taken] == [0] * 6 + [1] * 6


def test_what_is_known_to_be_done_is_not_done_again() -> None:
    book = ledger(4, 4)
    book.take(1, 0)
    book.take(1, 1)
    book.leave(1, known=lambda lease: lease == Lease(1, 0))
    assert book.done[1] == 8 and book.take(0, 0) == Lease(0, 0) and book.take(0, 1) == Lease(0, 1)
    assert book.take(0, 2) == Lease(1, 1)


def test_who_joins_goes_on_with_what_is_left_of_its_seat() -> None:
    book = ledger(4, 4)
    book.leave(1, known=lambda lease: False)
    assert [book.take(0, step) for step in range(3)] == [Lease(0, 0), Lease(1, 0), Lease(0, 1)]
    book.join(1)
    assert book.take(1, 3) == Lease(1, 1) and book.take(0, 3) == Lease(0, 2)


def test_nothing_is_given_after_the_end() -> None:
    book = ledger(4, 4)
    book.closed = True
    book.leave(1, known=lambda lease: False)
    assert book.take(0, 0) is None and not book.open


@pytest.mark.parametrize("seed", range(40))
def test_whoever_comes_and_goes_each_batch_is_done_once(seed: int) -> None:
    chance, seats = Random(seed), 4
    limits = [chance.randint(1, 9) for _ in range(seats)]
    book, had, steps = Ledger(limits, [3] * seats, lambda seat, number: number + 1), BatchSet.empty(seats), [0] * seats
    here, done = set(range(seats)), Counter[Lease]()
    while True:
        if chance.random() < 0.2 and len(here) > 1:
            gone = chance.choice(sorted(here))
            here.remove(gone)
            book.leave(gone, had.__contains__)
        if chance.random() < 0.2 and len(here) < seats:
            book.join(new := chance.choice(sorted({*range(seats)} - here)))
            here.add(new)
        worker = chance.choice(sorted(here))
        lease = book.take(worker, steps[worker])
        if lease is None:
            held = any(lease not in had for held in book.held for lease in held.values())
            if not held and all(book.take(other, steps[other]) is None for other in here):
                break
            continue
        if chance.random() < 0.7:  # it is done; else its worker is slow
            done[lease] += had.add(lease)
            steps[worker] += 1
    assert done == {Lease(seat, number): 1 for seat, limit in enumerate(limits) for number in range(limit)}
    assert sum(book.done) == sum(limit * (limit + 1) // 2 for limit in limits)


def test_a_set_of_batches_remembers_few_of_them_one_by_one() -> None:
    found = BatchSet.empty(2)
    for number in (0, 1, 3, 2, 5):
        assert found.add(Lease(1, number)) and not found.add(Lease(1, number))
    assert found.before == [0, 4] and found.others == {Lease(1, 5)}
    assert Lease(1, 3) in found and Lease(1, 4) not in found and Lease(0, 0) not in found


def test_a_round_that_ends_early_gives_back_what_was_given_for_its_end_and_later() -> None:
    book = ledger(3, 3)
    for step in range(2):
        assert book.take(0, step) and book.take(1, step)
    book.end_round(1)  # the batches of step 1 were not done
    assert book.done == [8, 8] and book.returned == {Lease(0, 1), Lease(1, 1)} and book.held == [{}, {}]
    assert book.take(0, 1) == Lease(0, 1) and book.take(1, 1) == Lease(1, 1)
