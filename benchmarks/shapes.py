"""The two use cases of the single-node study (seed paper 001), scaled to a small machine: three classes of images.

SimpleBig is AlexNet-shaped with many images, ComplexSmall VGG16-shaped with few; both at 64 x 64 and a quarter of the
channels. The images are noise with a mark per class: only the time matters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import covey

CLASSES, SIDE = 3, 64


def images(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    noise = torch.randn(count, 3, SIDE, SIDE, generator=draw)
    noise[torch.arange(count), labels] += 0.5
    return noise, labels


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 48, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(48, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
        nn.Dropout(), nn.Linear(64 * 36, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, CLASSES),
    )  # fmt: skip


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, many in ((16, 2), (32, 2), (64, 3), (128, 3), (128, 3)):
        for _ in range(many):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(128 * 4, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Dropout(), nn.Linear(1024, CLASSES))


def task(model: object, count: int) -> covey.Task:
    return covey.Task(
        model=model,  # type: ignore[arg-type]
        data=images(count),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.001, momentum=0.9),
        loss=nn.functional.cross_entropy,
        batch_size=32,
    )


simple_big = task(alexnet, 1024)
complex_small = task(vgg, 128)
