"""Train a GAN: two models, two optimizers, and each batch steps one after the other.

Alone: python examples/loops/gan.py
Together: covey launch examples/loops/gan.py --workers 2 --strategy allreduce
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import covey

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
parser.add_argument("--double", action="store_true", help="compute in float64")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64 if args.double else torch.float32)

NOISE, SIZE = 8, 2
angle = 2 * torch.pi * torch.rand(160)
real_points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(160, SIZE)  # a ring
data = TensorDataset(real_points, torch.randn(160, NOISE))  # each point with the noise that it is held against
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)

generator = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, SIZE))
discriminator = nn.Sequential(
    nn.Linear(SIZE, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
)
criterion = nn.BCEWithLogitsLoss()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))

with covey.join([generator, discriminator], [optimizer_g, optimizer_d]) as member:  # added
    for epoch in range(args.epochs):
        for real, noise in member.loader(loader):  # was: for real, noise in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(noise)

            optimizer_d.zero_grad()
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
            loss_d.backward()
            member.step(loss_d, optimizer=optimizer_d)  # was: optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            member.step(loss_g, optimizer=optimizer_g)  # was: optimizer_g.step()
        print(f"epoch {epoch}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")
