"""A loop of one's own ends when it likes: no strategy knows the number of its steps before."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey import catalog
from covey.run import launch
from tests.promises.specs import SPECS
from tests.run.loops import launched

STEPS = 5
SCRIPT = f"""
import time, torch, covey
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with covey.join(model, optimizer) as member:
    for _ in range({STEPS}):
        for (x,) in member.shard((torch.randn(8, 4),), 4):
            model(x).square().mean().backward()
            member.step()
            time.sleep(0.02 * member.rank)  # worker 0 says goodbye while the other still trains
"""
QUICK = ("firecaffe", "bounded_delay", "gosgd")


def names() -> list[str]:
    return [spec for spec in (SPECS.get(name, name) for name in catalog.for_any_model()) if launched(spec, 2)]


@pytest.mark.parametrize("spec", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in names()])
def test_a_loop_may_end_after_any_step(spec: str, tmp_path: Path) -> None:
    (path := tmp_path / "script.py").write_text(SCRIPT)
    result = launch(path, [], spec, 2, threads=1, stall="5s")
    assert result.samples == STEPS * 8 and result.stopped == "budget"
