"""A loop's schedule governs the steps of roles in other processes; workers that disagree are told so."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from covey.errors import PlanError
from covey.run import launch

SCRIPT = """
import sys, warnings
import covey, torch
from torch import nn

warnings.simplefilter("error")  # a scheduler must not think that nothing was stepped
torch.manual_seed(0)
model = nn.Linear(4, 2).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
x = torch.linspace(-1, 1, 256, dtype=torch.float64).view(64, 4)
y = x[:, :2].sin()
with covey.join(model, optimizer) as member:
    for epoch in range(2):
        for a, b in member.shard((x, y), batch_size=8):
            {before}
            loss = (model(a) - b).square().mean()
            loss.backward()
            member.step(loss)
            scheduler.step()
"""


def script(folder: Path, before: str = "pass") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(before=before))
    return path


def weights(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].reshape(-1) for name in sorted(state)])


@pytest.mark.parametrize("strategy", ["bsp", pytest.param("allreduce", marks=pytest.mark.full)])
def test_a_cosine_schedule_in_other_processes(tmp_path: Path, strategy: str) -> None:
    """One worker is the plain loop."""
    found = launch(script(tmp_path), [], strategy, 1, threads=1)
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    alone = runpy.run_path(str(script(tmp_path)))["model"]  # without a run
    torch.testing.assert_close(weights(found.weights), weights(alone.state_dict()), rtol=0, atol=1e-12)
    assert (weights(found.weights) - weights(model.state_dict())).abs().max() > 0.1


@pytest.mark.parametrize("strategy", ["asynchronous", pytest.param("bsp", marks=pytest.mark.full)])
def test_at_rate_zero_nothing_moves(tmp_path: Path, strategy: str) -> None:
    still = launch(script(tmp_path, "optimizer.param_groups[0]['lr'] = 0.0"), [], strategy, 2, threads=1)
    torch.manual_seed(0)
    assert torch.equal(weights(still.weights), weights(nn.Linear(4, 2).double().state_dict()))


@pytest.mark.parametrize(
    "strategy", ["allreduce", *(pytest.param(name, marks=pytest.mark.full) for name in ("easgd", "firecaffe"))]
)
def test_workers_that_disagree_are_refused_by_name(tmp_path: Path, strategy: str) -> None:
    """One changes its rate by itself, late, and says nothing more; the last step counts too."""
    path = script(
        tmp_path, "optimizer.param_groups[0]['lr'] *= 0.5 if member.rank and scheduler.last_epoch == 7 else 1"
    )
    with pytest.raises(PlanError, match=r"differ between workers at step 7: lr of .* on worker \d and .*member.agree"):
        launch(path, [], strategy, 2, threads=1)
