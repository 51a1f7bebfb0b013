"""A traced run of real processes tells what each role did when."""

from __future__ import annotations

from covey.run import fit


def test_every_step_and_every_message_is_recorded() -> None:
    recording = fit("examples/digits.py", "bsp", 2, steps=3, traced=True).recording
    assert recording is not None and recording.engine == "local"
    for rank in range(2):
        assert sum(span.who == f"worker {rank}" and not span.what for span in recording.spans) == 3
    pushes = [arrow for arrow in recording.arrows if arrow.kind == "Push"]
    assert len(pushes) == 6 and all(arrow.arrived is not None for arrow in pushes)
