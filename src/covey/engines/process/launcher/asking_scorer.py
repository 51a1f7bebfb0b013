"""How is the scorer asked what the model is worth?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address


def ask_scorer(
    scored: Sequence[Address], order: control.Score, board: Switchboard, monitor: Monitor
) -> dict[str, float]:
    """Have these roles send their parts of the model; the metrics of what they make together."""
    shown = monitor.rebirths.present(scored)
    board.tell(shown, control.TakeSnapshot())
    board.tell([SCORER], msgspec.structs.replace(order, parts=len(shown)))
    box = monitor.inbox.setdefault(control.Scored, {})

    def missing() -> list[Address]:
        """The scorer, until it has answered; it waits for nobody who is lost meanwhile."""
        if lost := [who for who in shown if who not in monitor.rebirths.present(shown)]:
            shown[:] = [who for who in shown if who not in lost]
            board.tell([SCORER], msgspec.structs.replace(order, parts=len(shown), absent=lost))
        return [] if SCORER in box else [SCORER]

    monitor.wait_for(missing)
    metrics: dict[str, float] = box.pop(SCORER).metrics
    return metrics
