"""The scripts of examples/loops under torchrun: the same weights as with `covey launch`."""

from __future__ import annotations

import pytest
import torch

from tests.clusters.test_joined import torchrun
from tests.real.harness import Room, finish
from tests.real.loops import LOOPS, MODELS, apart, batch, doubled

SAVING = """
if member.rank == 0:
    models = [{models}]
    torch.save((models[0] if len(models) == 1 else nn.ModuleList(models)).state_dict(), "weights.pt")
"""


@pytest.mark.full
@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_end_where_the_plain_loop_ends_with_the_doubled_batch(
    room: Room, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = doubled(name, room.path, monkeypatch, "--double")
    text = (LOOPS / f"{name}.py").read_text()
    head, line, rest = text.partition(") as member:")
    script = room.script(
        f'{head}, strategy="allreduce"{line}{rest}' + SAVING.format(models=", ".join(MODELS[name])), f"{name}.py"
    )
    code, out, err = finish(torchrun(room, 2, script, "--double", "--batch-size", str(batch(name))))
    assert code == 0, out + err
    assert apart(alone, torch.load(room.path / "weights.pt", weights_only=True)) < 1e-5
