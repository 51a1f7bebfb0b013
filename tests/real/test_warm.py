"""Real runs do and undo two steps before their clock starts: nothing but the time of the first batch differs."""

from __future__ import annotations

import pytest

from covey.errors import RoleFailed
from covey.observe.result import Result
from tests.real.harness import BATCH_NORM, Room, differing, fit

ADAM = "torch.optim.Adam(params, lr=0.01)"
COUNTING = """
class Counting(nn.Sequential):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls / 100)
"""


@pytest.mark.parametrize("strategy", ["bsp", "local_sgd(period=3)", pytest.param("allreduce", marks=pytest.mark.full)])
def test_the_run_is_the_same_to_the_bit(room: Room, strategy: str) -> None:
    def run(warm: bool) -> Result:
        model = BATCH_NORM.replace("nn.Sequential", "Counting")
        task = room.task(f"{warm}.py", model=model, more=COUNTING, optimizer=ADAM, samples=70, warm=warm)
        return fit(task, strategy, 2, epochs=2)

    cold, warm = run(False), run(True)
    assert not differing(cold.weights, warm.weights)
    assert (cold.samples, cold.updates, cold.traffic) == (warm.samples, warm.updates, warm.traffic)


def test_the_steps_come_before_the_clock_and_only_where_they_are_wanted(room: Room) -> None:
    """Every first call of a process takes a second; compiling a model does, too."""
    slow = "LATE.append(1) if LATE else (LATE.append(1), time.sleep(1))"
    cold, warm = (
        fit(room.task(before_step=slow, more="LATE = []", warm=warm), "bsp", 2, steps=4) for warm in (False, True)
    )
    assert warm.seconds < 1 <= cold.seconds


def test_what_the_first_batch_raises_is_told_as_ever(room: Room) -> None:
    told = []
    for warm in (False, True):
        with pytest.raises(RoleFailed) as failure:
            fit(room.task("task.py", before_step="raise ValueError('no such sample')", warm=warm), "bsp", 1)
        told.append(str(failure.value))
    assert "worker 0 failed" in told[0] and "no such sample" in told[0]
    assert told[0] == told[1]
