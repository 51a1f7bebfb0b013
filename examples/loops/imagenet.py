"""Train an image classifier: shuffled batches from a DataLoader, SGD with momentum, warm-up and a cosine schedule.

Alone: python examples/loops/imagenet.py
Together: covey launch examples/loops/imagenet.py --workers 2 --strategy allreduce
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import covey

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--double", action="store_true", help="compute in float64")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64 if args.double else torch.float32)


def pictures(count: int, classes: int = 5) -> TensorDataset:
    """Noise over one of a few patterns."""
    patterns = torch.randn(classes, 3, 8, 8)
    labels = torch.arange(count) % classes
    return TensorDataset(patterns[labels] + 0.7 * torch.randn(count, 3, 8, 8), labels)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


train_set, val_set = pictures(160), pictures(40)
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=40)

model = nn.Sequential(Block(3, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # added: batch statistics of all workers
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)


def rate(epoch: int) -> float:
    """One epoch of warm-up, then half a cosine."""
    return 0.1 if epoch == 0 else 0.5 * (1 + math.cos(math.pi * (epoch - 1) / max(1, args.epochs - 1)))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


@torch.no_grad()
def validate() -> float:
    model.eval()
    correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in val_loader)
    model.train()
    return correct / len(val_set)


with covey.join(model, optimizer) as member:  # added
    for epoch in range(args.epochs):
        for images, labels in member.loader(train_loader):  # was: for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            member.step(loss)  # was: optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: rate {optimizer.param_groups[0]['lr']:.4f}, accuracy {validate():.2f}")
