"""Optimizers do not import torch._dynamo where roles start; torch.compile still does, and works."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import sys, torch
from covey.engines.process.forking.lazy_dynamo import NAME, stand_in
stand_in()
model = torch.nn.Linear(2, 1, bias=False)
def real():
    return NAME + ".config" in sys.modules
def step(optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
"""

TRAIN = """
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad):
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = model.weight.clone()
    step(optimizer)
    scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert not torch.equal(before, model.weight)
assert not real()
"""

COMPILE = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step(optimizer)
assert not real()
{how}
assert real() and type(sys.modules[NAME]).__name__ == "module" and torch._dynamo is sys.modules[NAME]
compiled = torch.compile(lambda x: model(x) * 2, backend="eager")
assert torch.equal(compiled(torch.ones(1, 2)), model(torch.ones(1, 2)) * 2)
before = model.weight.clone()
step(optimizer)
assert not torch.equal(before, model.weight)
"""


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + script], check=True)


def test_optimizers_and_what_roles_import_do_without() -> None:
    run(TRAIN + "import covey.run.roles\nassert not real()")


@pytest.mark.full
@pytest.mark.parametrize(
    "how",
    [
        "torch.compile(model, backend='eager')(torch.ones(1, 2))",
        "import torch._dynamo.config",
        "from torch._dynamo.backends.registry import lookup_backend",
        "torch._dynamo.reset()",
        "torch.compiler.reset()",
    ],
)
def test_what_needs_the_real_one_imports_it(how: str) -> None:
    run(COMPILE.format(how=how))
