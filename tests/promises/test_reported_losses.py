"""What workers report of their losses is the mean over the samples that they have seen, however they compute it."""

from __future__ import annotations

from statistics import mean

import pytest
import torch

from covey import catalog
from covey.model import build
from tests.worlds import mlp, run, sgd

OTHERS = ["bigdl(drop=0.1)", "one_weird_trick(scheme=b)", "bsp + int8"]


@pytest.mark.parametrize("spec", [*catalog.for_any_model(), *OTHERS])
def test_the_mean_of_the_reports_is_the_loss_on_all_samples(spec: str) -> None:
    """Weights stay, and all batches have 6 samples: in four parts these are 1, 2, 1 and 2."""
    task = mlp(sgd(0.0), samples=48, batch_size=6)
    reported = run(task, spec, 2, epochs=1).log.values("loss")
    with torch.no_grad():
        whole = float(task.forward(build.model(task, 0), task.data))
    assert mean(reported) == pytest.approx(whole, rel=1e-3 if "bigdl" in spec else 1e-9), "its wire cuts weights"
