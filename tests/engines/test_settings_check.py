"""The launcher compares what all workers' loops set, however late each of them tells it."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn

from covey.engines.process import control
from covey.engines.process.launcher.settings_check import SettingsCheck
from covey.errors import PlanError, WireError
from covey.settings import LoopSettings, SettingsUpdate
from tests.worlds import server, worker


def loop(rates: list[float]) -> LoopSettings:
    """A loop that has taken a step with each of these rates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0)
    found = LoopSettings(optimizer)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        found.note(step)
    return found


def word(settings: LoopSettings) -> control.Settled:
    sealed = msgpack(control.Settled(*settings.news()))
    assert isinstance(sealed, control.Settled)
    return sealed


def msgpack(said: control.Upward) -> control.Upward:
    return control.upward.read(msgspec.msgpack.encode(said))


def test_loops_alike_agree() -> None:
    check = SettingsCheck()
    one, other = loop([0.1, 0.1, 0.2, 0.3]), loop([0.1, 0.1, 0.2])
    check.hear(worker(0), word(one))
    check.hear(worker(1), word(other))
    assert check.reached == {worker(0): 4, worker(1): 3}


@pytest.mark.parametrize("rates", [[0.1, 0.1, 0.1], [0.1, 0.2, 0.2], [0.1, 0.1, 0.3]])
def test_one_that_changes_earlier_later_or_never_is_found(rates: list[float]) -> None:
    check = SettingsCheck()
    check.hear(worker(1), word(loop([0.1, 0.1, 0.2, 0.3])))
    differs = next(step for step, rate in enumerate(rates) if rate != [0.1, 0.1, 0.2][step])
    with pytest.raises(PlanError, match=f"at step {differs}: lr .* on worker 1 and .* on worker 0"):
        check.hear(worker(0), word(loop(rates)))


def test_one_is_not_held_to_steps_that_it_has_not_taken() -> None:
    check = SettingsCheck()
    check.hear(worker(0), word(loop([0.1, 0.1, 0.2, 0.3])))
    check.hear(worker(1), word(loop([0.1, 0.1])))


def test_a_mean_of_gradients_takes_the_settings_of_the_latest_step() -> None:
    """In whichever order they come, and though one of them is older."""
    whoever_steps = loop([])
    for who, rates in ((worker(0), [0.1, 0.2, 0.3, 0.4]), (worker(1), [0.1, 0.2])):
        for update in loop(rates).news()[1]:
            update.sender = who
            whoever_steps.hear(update)
    gradients = [(worker(0), 3), (worker(1), 1)]
    for order in (gradients, gradients[::-1]):
        assert whoever_steps.of(server(0), order).groups[0]["lr"] == 0.4
    assert whoever_steps.of(server(0), gradients[1:]).groups[0]["lr"] == 0.2


def test_a_word_that_cannot_be_is_refused() -> None:
    with pytest.raises(WireError, match="more than 4096 parameter groups"):
        SettingsCheck().hear(worker(0), control.Settled(1, [SettingsUpdate(0, True, [(1 << 40, "lr", 0.1)], [0])]))
