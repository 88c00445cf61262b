"""Generator of windows of a wanted label and difficulty, trained against a depth class's model without data.

Legend for shapes: B samples, q classes, C channels, T samples per window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from relief_ray.core.protocols import Network
from relief_ray.strategies.darkdistill.losses import leave_at


class Generator(nn.Module):
    """(noise, label, difficulty) -> raw windows: Linear + BatchNorm + ReLU + Linear on q + 2 q inputs."""

    def __init__(self, channels: Mapping[str, int], window: int, num_classes: int, hidden: int) -> None:
        """Build the layers; ``channels``: number of channels to generate by modality."""
        super().__init__()
        self.channels, self.window, self.num_classes = dict(channels), window, num_classes
        self.label = nn.Embedding(num_classes, num_classes)
        self.difficulty = nn.Linear(1, num_classes)
        self.body = nn.Sequential(nn.Linear(3 * num_classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.out = nn.Linear(hidden, window * sum(self.channels.values()))

    def forward(self, noise_Bq: Tensor, labels_B: Tensor, difficulty_B: Tensor) -> Tensor:
        """Latent values (B, sum C * T)."""
        condition = (self.label(labels_B), self.difficulty(difficulty_B[:, None]))
        latent: Tensor = self.out(self.body(torch.cat([noise_Bq, *condition], 1)))
        return latent

    def windows(self, latent: Tensor) -> dict[str, Tensor]:
        """Split latent values into windows: modality -> (B, C, T)."""
        parts = torch.split(latent, [c * self.window for c in self.channels.values()], dim=1)
        return {m: x.view(len(x), c, self.window) for (m, c), x in zip(self.channels.items(), parts, strict=True)}


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with torch's default initialisation from ``seed``; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def to_vector(module: nn.Module) -> Tensor:
    """Float values of a module as one vector, running statistics included."""
    return torch.cat([x.detach().reshape(-1) for x in module.state_dict().values() if x.is_floating_point()])


def from_vector(module: nn.Module, vector: Tensor) -> None:
    """Write a vector of ``to_vector`` back into a module."""
    start = 0
    for value in module.state_dict().values():
        if value.is_floating_point():
            value.copy_(vector[start : start + value.numel()].view(value.shape))
            start += value.numel()


def diversity(noise_Bq: Tensor, latent: Tensor) -> Tensor:
    """``exp(-mean_ij[MSE(eps_i, eps_j) MAE(z_i, z_j)])``: small where other noise gives other data."""
    noise = (noise_Bq[:, None] - noise_Bq[None]).square().mean(2)
    return torch.exp(-(noise * torch.cdist(latent, latent, p=1.0) / latent.shape[1]).mean())


def generator_loss(
    made: tuple[Tensor, Tensor, Mapping[str, Tensor]],
    wanted: tuple[Tensor, Tensor],
    model: tuple[Network, Sequence[str | None]],
    judge: Network,
) -> Tensor:
    """Cross-entropy at the exit where ``model`` lets each sample go, the judged difficulty's error, and diversity.

    ``made``: noise, latent, windows; ``wanted``: labels and difficulties; the judge reads the model's first exit.
    """
    noise, latent, windows = made
    labels, difficulty = wanted
    network, exits = model
    read = network.read(windows, exits)
    logits = torch.stack([read[e].logits for e in exits])
    assigned = logits[leave_at(list(logits)), torch.arange(len(labels))]
    first = judge.read(windows, exits[:1])[exits[0]].logits
    judged = functional.cross_entropy(first, labels, reduction="none")
    loss: Tensor = functional.cross_entropy(assigned, labels) + functional.mse_loss(judged, difficulty)
    return loss + diversity(noise, latent)
