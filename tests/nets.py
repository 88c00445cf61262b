"""Classifiers as a user would write them, and backbones made of them: batch norm, dropout, attention, recurrence."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from relief_ray.models.backbone import InputShape
from relief_ray.models.module import PlainBackbone


def encoder(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(channels, width, 5, stride=2),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Conv1d(width, width, 3),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
    )


class Net(nn.Module):
    """Two convolutions with batch norm per sensor, a linear fusion with dropout, a linear head."""

    def __init__(self, channels: Iterable[tuple[str, int]], num_classes: int, width: int = 4) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({m: encoder(c, width) for m, c in channels})
        self.fusion = nn.Sequential(nn.Linear(2 * width * len(self.encoders), 6), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(6, num_classes)

    def forward(self, windows: dict[str, Tensor]) -> Tensor:
        features = torch.cat([encode(windows[m]) for m, encode in self.encoders.items()], 1)
        logits: Tensor = self.head(self.fusion(features))
        return logits


class NormedFusion(Net):
    """The same with a fusion that begins with a norm: one shared group, and no sum in another order."""

    def __init__(self, channels: Iterable[tuple[str, int]], num_classes: int, width: int = 4) -> None:
        super().__init__(channels, num_classes, width)
        self.fusion.insert(0, nn.BatchNorm1d(2 * width * len(self.encoders)))


class Recurrent(nn.Module):
    """A bidirectional recurrent encoder with dropout between its layers; the last state."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, 3, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x.transpose(1, 2))[0]
        return states[:, -1]


class Attention(nn.Module):
    """Self-attention over the sensors, with functional dropout."""

    def __init__(self, width: int, num_sensors: int) -> None:
        super().__init__()
        self.num_sensors = num_sensors
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, features: Tensor) -> Tensor:
        tokens = self.norm(features.view(len(features), self.num_sensors, -1))
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)
        return nn.functional.dropout(mixed, 0.2, training=self.training)


class Normed(PlainBackbone):
    width: int = 4

    def module(self, shape: InputShape) -> nn.Module:
        return Net(shape.channels, shape.num_classes, self.width)


class NormedShared(PlainBackbone):
    def module(self, shape: InputShape) -> nn.Module:
        return NormedFusion(shape.channels, shape.num_classes)


class Attentive(PlainBackbone):
    def module(self, shape: InputShape) -> nn.Module:
        net = nn.Module()
        net.encoders = nn.ModuleDict({m: Recurrent(c) for m, c in shape.channels})
        net.fusion = Attention(6, len(shape.channels))
        net.head = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, shape.num_classes))
        return net


class TCN(nn.Module):
    """Convolutions over time on all sensors side by side, a mean, and a linear layer that runs last."""

    def __init__(self, channels: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.classes = nn.Linear(width, num_classes)
        self.net = nn.Sequential(nn.Conv1d(channels, width, 3, padding=1), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classes(self.net(x).mean(2))
        return logits


class Tcn(PlainBackbone):
    width: int = 4

    def module(self, shape: InputShape) -> nn.Module:
        return TCN(shape.num_channels, self.width, shape.num_classes)
