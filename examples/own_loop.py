"""Your own loop with two lines changed.

Alone: python examples/own_loop.py. Together: covey launch examples/own_loop.py --workers 2 --strategy bsp
"""

import torch
from torch import nn
from torch.nn import functional

import covey

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
score = covey.accuracy(covey.data.digits(train=False))

with covey.join(model, optimizer) as member:
    shard = member.shard(covey.data.digits(train=True), batch_size=32)
    for _ in range(5):
        for x, y in shard:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            member.step(loss)
    if member.rank == 0:
        print(f"worker 0 of {member.workers}: {score(model)}")
