"""Interrupted and continued in virtual time, strategies end with the same weights, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from covey.check import restart
from covey.engines.remembered import Remembered
from tests.real.test_resume import ALL, COMPRESSED

QUICK = {
    "bsp", "eamsgd(period=2, momentum=0.9)", "diloco(period=5)", "local_sgd(period=3) + topk(density=0.1)",
    "sliced + onebit + pull",
}  # fmt: skip
READ_AGAIN = {
    "petuum(bound=2) + topk(density=0.1) + pull": "a codec writes the parameters once more",
}
"""Strategies whose workers read the parameters again after a restart, which changes them within their bounds."""


def cases() -> list[Any]:
    return [pytest.param(spec, marks=() if spec in QUICK else pytest.mark.full) for spec in (*ALL, *COMPRESSED)]


@pytest.mark.parametrize("spec", cases())
def test_a_restart_changes_nothing(spec: str) -> None:
    assert bool(restart.same_after_a_restart(spec)) == (spec in READ_AGAIN)


@pytest.mark.parametrize("spec", ["eamsgd(period=2, momentum=0.9)", "local_sgd(period=3) + topk(density=0.1)"])
def test_what_a_strategy_would_forget_is_found(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A velocity, and what error feedback carries on."""
    forgotten = {"velocity", "codec of means"}
    recall = Remembered.remember

    def forget(self: Remembered, name: str, value: Any, begun: bool = False) -> Any:
        memory = recall(self, name, value, begun)
        memory.value = value if name in forgotten else memory.value
        return memory

    monkeypatch.setattr(Remembered, "remember", forget)
    assert "the weights differ" in restart.same_after_a_restart(spec)
