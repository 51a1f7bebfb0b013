"""Train a small GPT: several batches make one step, in mixed precision with a GradScaler, and the gradient is clipped.

Alone: python examples/loops/gpt.py
Together: covey launch examples/loops/gpt.py --workers 2 --strategy allreduce
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import covey

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=50)
parser.add_argument("--batch-size", type=int, default=4, help="of each worker, in each part of a step")
parser.add_argument("--accumulate", type=int, default=2, help="batches that make one step")
parser.add_argument("--amp", action="store_true", help="compute in bfloat16 where that is safe")
parser.add_argument("--double", action="store_true", help="compute in float64")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64 if args.double else torch.float32)

BLOCK, VOCABULARY, WIDTH = 16, 32, 32


class Layer(nn.Module):
    """Attention to what came before, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, time, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Predicts the next token, with one matrix for tokens in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return F.cross_entropy(self.head(self.norm(self.layers(hidden))).flatten(0, 1), y.flatten())


text = torch.cumsum(torch.randint(1, 4, (5000,)), 0) % VOCABULARY  # each token is a little after the one before
windows = text[: 4992 // BLOCK * BLOCK].view(-1, BLOCK)
data = TensorDataset(windows[:, :-1], windows[:, 1:])
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, drop_last=True)

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_steps)
scaler = torch.amp.GradScaler("cpu", enabled=args.amp)


def endless(batches):
    while True:
        yield from batches


with covey.join(model, optimizer) as member:  # added
    batches = endless(member.loader(loader))  # was: batches = endless(loader)
    for step in range(args.max_steps):
        for _ in range(args.accumulate):
            x, y = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                loss = model(x, y) / args.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        member.clip(1.0)  # was: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        member.step(loss, scaler=scaler)  # was: scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if step % 10 == 9:
            print(f"step {step}: loss {loss.item() * args.accumulate:.3f}")
