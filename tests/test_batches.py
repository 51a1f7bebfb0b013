"""What a batch reports, and when: the loss of a GPU may come later, and nobody waits for it before he must."""

from __future__ import annotations

import math

import torch

from covey.model.batches import AHEAD, Batch, Losses


class Late(Batch):
    """One whose loss is on its way, as from a GPU."""

    def __init__(self, loss: float) -> None:
        super().__init__(loss, 1)
        self.here, self.waited = False, False

    @property
    def known(self) -> bool:
        return self.here

    @property
    def loss(self) -> float:
        self.waited = not self.here
        return super().loss


def test_a_loss_is_a_number_or_a_tensor() -> None:
    assert (Batch(0.5, 3).loss, Batch(0.5, 3).samples, Batch(0.5, 3).known) == (0.5, 3, True)
    assert Batch(torch.tensor([0.25], requires_grad=True), 1).loss == 0.25
    assert Batch(2, 1).loss == 2.0


def test_losses_are_told_in_order_as_they_come() -> None:
    losses, batches = Losses(), [Late(1.0), Late(2.0), Late(3.0)]
    for batch in batches:
        losses.add(batch)
    batches[1].here = True
    assert losses.told() == [], "the first has not come, and the second waits for it"
    batches[0].here = True
    assert losses.told() == [1.0, 2.0]
    assert losses.told(every=True) == [3.0] and batches[2].waited
    assert losses.told(every=True) == []


def test_what_is_no_number_is_not_told() -> None:
    losses = Losses()
    for loss in (math.nan, 1.0):
        losses.add(Batch(loss, 1))
    assert losses.told() == [1.0]


def test_work_is_begun_while_what_came_before_is_under_way_and_no_earlier() -> None:
    losses, batches = Losses(), [Late(float(number)) for number in range(5)]
    for number, batch in enumerate(batches):
        assert losses.of(lambda batch=batch: batch) is batch  # type: ignore[misc]
        assert [one.waited for one in batches[: number + 1]] == [one <= number - AHEAD for one in range(number + 1)]
