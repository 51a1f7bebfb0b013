"""The canonical picture of a strategy: three workers, one of them slower, a few steps, a link that can be seen."""

from __future__ import annotations

WORKERS, STEPS = 3, 5


def picture(spec: str) -> str:
    """An SVG of the strategy at work on a small task, in virtual time."""
    import torch
    from torch import nn

    from covey.report import lanes
    from covey.run import fit
    from covey.simulate import from_flags
    from covey.task import Task

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(96, 16, generator=draw)
    task = Task(
        model=lambda: nn.Linear(16, 16),
        data=(x, x.flip(1)),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05),
        loss=nn.functional.mse_loss,
        batch_size=4,
    )
    # one model (1 kB) takes a quarter of a batch's time
    world = from_flags(compute="10ms", jitter="0.15", slow=["2:1.6x"], bandwidth="0.44mbit", latency="0.5ms")
    result = fit(task, spec, WORKERS, engine="simulated", steps=STEPS, cluster=world, traced=True, runs=False)
    assert result.recording is not None, "a traced run has a recording"
    return lanes.draw(result.recording)
