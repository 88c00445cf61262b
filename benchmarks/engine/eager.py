"""Bare eager PyTorch: Backbone 1 as a plain ``nn.Module``, the default Adam, one client after the other.

The reference of every comparison, and what the peers train. It needs torch and numpy alone, so that it also runs in
the peers' own environments. Weights travel as one flat vector in the order of the product's layout.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from relief_ray.core.streams import Streams

CONV1, CONV2, STEPS, FUSION, KERNEL = 16, 32, 32, 304, 5


@dataclass(frozen=True, kw_only=True)
class Task:
    """The work of every harness: every client trains everything on its own windows, ``epochs`` times a round."""

    channels: tuple[tuple[str, int], ...]
    window: int
    num_classes: int
    num_clients: int
    num_windows: int
    epochs: int
    batch_size: int
    lr: float
    seed: int

    @property
    def samples(self) -> int:
        """Windows trained in a round."""
        return self.num_clients * self.num_windows * self.epochs


class EagerCnn(nn.Module):
    """Backbone 1 as one would write it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Conv1d(c, CONV1, KERNEL, stride=2, padding=2) for _, c in task.channels)
        self.second = nn.ModuleList(nn.Conv1d(CONV1, CONV2, KERNEL, stride=2, padding=2) for _ in task.channels)
        self.pool = nn.AdaptiveAvgPool1d(STEPS)
        self.fusion = nn.Linear(len(task.channels) * CONV2 * STEPS, FUSION)
        self.head = nn.Linear(FUSION, task.num_classes)

    def forward(self, *windows_BCT: Tensor) -> Tensor:
        """Logits (B, K) from one tensor (B, C, T) per modality."""
        features = [
            self.pool(torch.relu(second(torch.relu(first(x))))).flatten(1)
            for x, first, second in zip(windows_BCT, self.first, self.second, strict=True)
        ]
        logits: Tensor = self.head(torch.relu(self.fusion(torch.cat(features, 1))))
        return logits

    def pieces(self) -> list[Tensor]:
        """The parameters' values in layout order: fusion blocks, fusion bias, encoders, head."""
        width = CONV2 * STEPS
        blocks = [self.fusion.weight.data[:, i : i + width] for i in range(0, self.fusion.in_features, width)]
        pairs = zip(self.first, self.second, strict=True)
        convs = [conv.get_parameter(p).data for pair in pairs for conv in pair for p in ("weight", "bias")]
        return [*blocks, self.fusion.bias.data, *convs, self.head.weight.data, self.head.bias.data]

    @torch.no_grad()
    def load_flat(self, flat: Tensor) -> None:
        """Copy the flat model (numel,) in."""
        start = 0
        for piece in self.pieces():
            piece.copy_(flat[start : start + piece.numel()].view(piece.shape))
            start += piece.numel()

    @torch.no_grad()
    def flat(self) -> Tensor:
        """The flat model (numel,), a copy."""
        return torch.cat([piece.reshape(-1) for piece in self.pieces()])


def train_client(model: EagerCnn, task: Task, round_: int, client: int, windows: list[Tensor], labels: Tensor) -> None:
    """``epochs`` epochs with a fresh Adam, in the batch order that every harness uses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr)
    order = Streams(seed=task.seed).torch("batches", round_, client)
    for _ in range(task.epochs):
        for index in torch.split(torch.randperm(len(labels), generator=order).to(labels.device), task.batch_size):
            optimizer.zero_grad()
            logits = model(*(x[index] for x in windows))
            torch.autograd.backward(nn.functional.cross_entropy(logits, labels[index]))
            optimizer.step()


class Sequential:
    """FedAvg in one process, one client after the other: the oracle; ``nudged``: it begins one rounding away."""

    def __init__(self, folder: Path, *, nudged: bool = False) -> None:
        self.task, self.folder = read_task(folder), folder
        start = torch.from_numpy(np.load(folder / "start.npy"))
        self.model, self.flat = EagerCnn(self.task), nudge(start) if nudged else start
        self.round = 0

    def step(self) -> None:
        """One round; the mean is taken in float64."""
        self.round += 1
        total = train_clients(self.model, self.task, self.folder, self.round, self.flat, range(self.task.num_clients))
        self.flat = (self.flat.double() + total / self.task.num_clients).float()


def nudge(values: Tensor) -> Tensor:
    """Each value's next one in its format, upwards and downwards in turn."""
    towards = torch.full_like(values, torch.inf)
    towards[1::2] = -torch.inf
    return torch.nextafter(values, towards)


def train_clients(model: EagerCnn, task: Task, folder: Path, round_: int, flat: Tensor, clients: range) -> Tensor:
    """The float64 sum of the clients' updates."""
    total = torch.zeros(len(flat), dtype=torch.float64)
    for client in clients:
        model.load_flat(flat)
        train_client(model, task, round_, client, *load_client(folder, client))
        total += model.flat() - flat
    return total


@cache
def load_client(folder: Path, client: int) -> tuple[list[Tensor], Tensor]:
    """A client's windows, one tensor per modality, and its labels; kept in memory, as the product keeps them."""
    arrays = [np.load(folder / f"{m}.npy", mmap_mode="r")[client].copy() for m, _ in read_task(folder).channels]
    labels = np.load(folder / "labels.npy")[client]
    return [torch.from_numpy(x) for x in arrays], torch.from_numpy(labels)


@cache
def read_task(folder: Path) -> Task:
    """The task that ``scenario.write`` left in ``folder``."""
    values = json.loads((folder / "task.json").read_text())
    return Task(**{**values, "channels": tuple((m, c) for m, c in values["channels"])})
