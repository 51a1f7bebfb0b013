"""Where a model is cut by the name of a layer."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from covey import catalog
from covey.data.shards import Shards
from covey.parallelism.plan.mesh import Mesh
from covey.run.cutting import settled
from covey.spec import parse
from tests.worlds import mlp


class Numbered(nn.Module):
    """Layers of which one's name begins as another's does, and a module of several."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc10, self.fc2 = (nn.Linear(6, 6) for _ in range(3))
        self.fc20 = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc20(self.fc2(self.fc10(self.fc1(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("named", "number"), [("fc1", 0), ("fc10", 1), ("fc2", 2), ("fc20.0", 3)])
def test_a_cut_is_behind_the_layer_of_that_very_name(named: str, number: int) -> None:
    task = mlp(model=lambda: Numbered().double())
    spec = parse(f"allreduce with mesh(stage=2, cut={named})")
    deal = Shards(128, 1, task.batch_size, 0)
    _, strategy = settled(spec, catalog.resolve(spec, 2), task, 2, deal, counted=True, bandwidth=1e9)
    mesh = strategy.composition.mesh
    assert isinstance(mesh, Mesh) and str(mesh.cut) == str(number)
