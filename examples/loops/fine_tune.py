"""Fine-tune a text classifier: the lower layers are frozen, and the rest has several groups of parameters.

Alone: python examples/loops/fine_tune.py
Together: covey launch examples/loops/fine_tune.py --workers 2 --strategy allreduce
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, WeightedRandomSampler

import covey

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
parser.add_argument("--double", action="store_true", help="compute in float64")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64 if args.double else torch.float32)

VOCABULARY, WIDTH = 50, 16


class Encoder(nn.Module):
    """Stands in for a model that was trained on much text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        hidden = self.layers(self.embedding(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2).to(hidden.dtype)
        return (hidden * kept).sum(1) / kept.sum(1)


def texts(count: int) -> list[tuple[torch.Tensor, int]]:
    """Of different lengths; the label says whether more tokens are low or high."""
    found = [torch.randint(1, VOCABULARY, (int(torch.randint(4, 13, ())),)) for _ in range(count)]
    return [(tokens, int(tokens.float().mean() > VOCABULARY / 2)) for tokens in found]


def collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    tokens = pad_sequence([tokens for tokens, _ in samples], batch_first=True)
    return {"tokens": tokens, "labels": torch.tensor([label for _, label in samples])}


data = texts(160)
share = sum(label for _, label in data) / len(data)
balanced = WeightedRandomSampler([1 / share if label else 1 / (1 - share) for _, label in data], len(data))
loader = DataLoader(data, batch_size=args.batch_size, sampler=balanced, collate_fn=collate, drop_last=True)

encoder, head = Encoder(), nn.Linear(WIDTH, 2)
model = nn.ModuleDict({"encoder": encoder, "head": head})
for frozen in (encoder.embedding, encoder.layers.layers[0]):
    frozen.requires_grad_(False)
trained = [(name, parameter) for name, parameter in encoder.named_parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW([
    {"params": [p for n, p in trained if p.dim() > 1], "lr": 1e-3, "weight_decay": 0.01},
    {"params": [p for n, p in trained if p.dim() <= 1], "lr": 1e-3, "weight_decay": 0.0},
    {"params": head.parameters(), "lr": 1e-2, "weight_decay": 0.0},
])  # fmt: skip
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=args.epochs)

with covey.join(model, optimizer) as member:  # added
    for epoch in range(args.epochs):
        for batch in member.loader(loader):  # was: for batch in loader:
            loss = nn.functional.cross_entropy(head(encoder(batch["tokens"])), batch["labels"])
            loss.backward()
            member.clip(1.0)  # was: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            member.step(loss)  # was: optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
