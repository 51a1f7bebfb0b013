"""A contrastive loss over the batches of all workers: two workers end where one ends with the doubled batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.errors import PlanError, RoleFailed
from covey.run import launch
from tests.real.loops import apart

SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset
import covey

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(93, 6)  # 93 = 5 * 16 + 13: the last batch is of 7 and of 6 samples
pairs = TensorDataset(x, x + 0.1 * torch.randn(93, 6))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
loader = DataLoader(pairs, batch_size=int(sys.argv[1]), shuffle=True)

def similar(a, b):
    return normalize(a) @ normalize(b).T / 0.2

with covey.join(model, optimizer) as member:
    for epoch in member.epochs(2):
        for left, right in member.loader(loader):
            a, b = model(left), model(right)
            all_a, all_b = member.gather(a), member.gather(b)
            assert all_a.requires_grad
            first = int(member.gather(torch.tensor([len(a)]))[: member.rank].sum())
            whole = cross_entropy(similar(all_a, all_b), torch.arange(len(all_a)))  # the same on all workers
            own = cross_entropy(similar(b, all_a), first + torch.arange(len(b)))  # of this worker's rows
            loss = whole + own
            loss.backward()
            member.step(loss)
    with torch.no_grad():
        assert len(member.gather(x[:3])) == 3 * member.workers
"""


def written(folder: Path, text: str = SCRIPT) -> Path:
    (folder / "contrastive.py").write_text(text)
    return folder / "contrastive.py"


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("bsp", marks=pytest.mark.full)])
def test_two_workers_end_where_one_ends_with_the_doubled_batch(strategy: str, tmp_path: Path) -> None:
    script = written(tmp_path)
    alone = launch(script, ["16"], strategy, 1, threads=1)
    both = launch(script, ["8"], strategy, 2, threads=1)
    assert both.updates == alone.updates == 12
    assert apart(alone.weights, both.weights) < 1e-10


@pytest.mark.parametrize(("strategy", "given", "message"), [
    ("easgd", {}, "member.gather has no meaning here.*use bsp, allreduce"),
    pytest.param("allreduce", {"on_failure": "continue"}, "it waits for all workers", marks=pytest.mark.full),
])  # fmt: skip
def test_gathering_is_refused_where_there_is_no_common_batch(
    strategy: str, given: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises((PlanError, RoleFailed), match=message):
        launch(written(tmp_path), ["8"], strategy, 2, threads=1, **given)


@pytest.mark.full
def test_rows_of_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    script = written(tmp_path, SCRIPT.replace("a, b = model(left), model(right)", "a, b = model(left), model(right)\n"
                     "            member.gather(x[:, : 3 + member.rank])"))  # fmt: skip
    with pytest.raises((PlanError, RoleFailed), match=r"has rows of \[[34]\] and torch.float64"):
        launch(script, ["8"], "allreduce", 2, threads=1)
