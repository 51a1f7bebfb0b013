"""Your own loop: one line added, two changed.

Alone: python examples/own_loop.py
Together: covey launch examples/own_loop.py --workers 2 --strategy 'local_sgd(period=4)'
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

import covey

torch.manual_seed(0)
loader = DataLoader(covey.data.digits(train=True), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

with covey.join(model, optimizer) as member:  # added
    for epoch in range(5):
        for x, y in member.loader(loader):  # was: for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            member.step(loss)  # was: optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
