"""Train until the loss on held-out data has not fallen for a while, and keep the best weights.

Alone: python examples/loops/early_stopping.py
Together: covey launch examples/loops/early_stopping.py --workers 2 --strategy allreduce
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import covey

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
parser.add_argument("--patience", type=int, default=3)
parser.add_argument("--double", action="store_true", help="compute in float64")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64 if args.double else torch.float32)

inputs = torch.randn(203, 12)
targets = inputs[:, :3].sin().sum(1, keepdim=True) + 0.5 * torch.randn(203, 1)
train_set, val_set = random_split(TensorDataset(inputs, targets), [153, 50])
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)  # the last batch is short
val_loader = DataLoader(val_set, batch_size=25)

model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
best, best_weights, stale = float("inf"), copy.deepcopy(model.state_dict()), 0


def validate() -> float:
    model.eval()
    with torch.no_grad():
        found = sum(nn.functional.mse_loss(model(x), y).item() for x, y in val_loader) / len(val_loader)
    model.train()
    return found


with covey.join(model, optimizer) as member:  # added
    for epoch in range(args.epochs):
        for x, y in member.loader(train_loader):  # was: for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            member.step(loss)  # was: optimizer.step()
        found = member.agree(validate(), how="mean")  # was: found = validate()
        scheduler.step(found)
        if found < best:
            best, best_weights, stale = found, copy.deepcopy(model.state_dict()), 0
        else:
            stale += 1
        print(f"epoch {epoch}: held-out loss {found:.4f}")
        if stale >= args.patience:
            break
    model.load_state_dict(best_weights)
