"""Data-free distillation between models of growing depth: each teaches the next deeper one on generated windows.

Per epoch: draw (label, difficulty) pairs from what each class's clients reported; one step of its generator; then
joint steps of all students, ``sum_k N_k / sum N * mean_e w_e (5 RKD_distance + 10 RKD_angle)`` on the samples that the
teacher lets go at its last exit, ``w`` from how an exit's difficulties match each sample's. Moments start afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor

import torch
from torch import Tensor, nn
from torch.nn import functional

from relief_ray.core.client import LocalStep
from relief_ray.core.federated import RoundContext
from relief_ray.core.groups import GroupId, GroupLayout, Params
from relief_ray.core.messages import ClientInfo
from relief_ray.core.protocols import Network
from relief_ray.core.streams import Streams
from relief_ray.models.backbone import seeded
from relief_ray.server.reduction import one_thread
from relief_ray.strategies.common import batch_sizes
from relief_ray.strategies.early_exits import EXIT

# Losses of early exits: relations between samples for distillation, then what a client trains and reports.
#
# Relations are comparable across exits of different widths: where samples leave, distances, angles.
# Legend for shapes: B samples, D features, K classes, E exits.


EPS = 1e-12

GROWTH = 1.5

# Labels and difficulties of samples (B,).
Pairs = tuple[Tensor, Tensor]


def exit_shares(num_exits: int) -> tuple[float, ...]:
    """``pi_i`` proportional to ``1.5^i``: (0.4, 0.6) for two exits."""
    weights = [GROWTH ** (i + 1) for i in range(num_exits)]
    return tuple(w / sum(weights) for w in weights)


def leave_at(logits: Sequence[Tensor]) -> Tensor:
    """Exit at which each sample leaves (B,): the ``floor(B pi_i)`` most confident left at exit i, rest at the last."""
    num = len(logits[0])
    leaves = torch.full((num,), len(logits) - 1, dtype=torch.int64)
    left = torch.arange(num)
    for i, share in enumerate(exit_shares(len(logits))[:-1]):
        confidence = logits[i].detach().softmax(1).amax(1)
        order = left[torch.argsort(confidence[left], descending=True, stable=True)]
        gone = floor(num * share + 1e-9)
        leaves[order[:gone]] = i
        left = order[gone:].sort().values
    return leaves


def distance_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Relational distance: smooth L1 of pairwise distances, each over its mean (Park et al. 2019, Eq. (5))."""
    return functional.smooth_l1_loss(_distances(student_BD), _distances(teacher_BD.detach()))


def _distances(features_BD: Tensor) -> Tensor:
    """(B, B) distances over the mean of the positive ones."""
    gaps = (features_BD[:, None] - features_BD[None]).square().sum(2)
    apart = gaps > EPS
    distances = torch.where(apart, gaps.clamp_min(EPS).sqrt(), torch.zeros_like(gaps))
    return distances / (distances.sum() / apart.sum().clamp_min(1)).clamp_min(EPS)


def angle_loss(student_BD: Tensor, teacher_BD: Tensor) -> Tensor:
    """Relational angle: smooth L1 of the cosines at every corner of three samples (Park et al. 2019, Eq. (8))."""
    return functional.smooth_l1_loss(_cosines(student_BD), _cosines(teacher_BD.detach()))


def _cosines(features_BD: Tensor) -> Tensor:
    """(B, B, B): at corner i, between the directions to j and to k; 0 where one of them coincides with i.

    The direction to a sample with the same features is undefined, and its gradient would be 1 over almost 0.
    """
    gaps_BBD = features_BD[None] - features_BD[:, None]
    apart = gaps_BBD.square().sum(2, keepdim=True) > EPS
    towards = functional.normalize(torch.where(apart, gaps_BBD, torch.zeros_like(gaps_BBD)), dim=2)
    return torch.bmm(towards, towards.transpose(1, 2))


def binned(labels_n: Tensor, difficulty_n: Tensor, width: float) -> tuple[Tensor, Tensor, int]:
    """Read pairs back from a histogram of (label, difficulty bin): labels, centres of bins, number of filled cells."""
    bins = torch.floor(difficulty_n / width)
    pairs = torch.stack([labels_n.to(bins.dtype), bins], 1)
    cells, counts = torch.unique(pairs, dim=0, return_counts=True)
    labels, bin_index = cells.repeat_interleave(counts, 0).unbind(1)
    return labels.to(torch.int64), (bin_index + 0.5) * width, len(cells)


def ladder(step: LocalStep) -> list[Tensor]:
    """Logits of all exits of the client's prefix, shallow first."""
    taps = sorted(step.taps, key=lambda name: int(name.rpartition(".")[2]))
    return [*(step.taps[name] for name in taps), step.logits]


def all_exits(step: LocalStep) -> Tensor:
    """Cross-entropy summed over the exits."""
    return torch.stack([step.cross_entropy(logits, step.labels) for logits in ladder(step)]).sum()


def difficulties(step: LocalStep) -> Mapping[str, Tensor]:
    """Label and cross-entropy at the first exit of every window."""
    first = functional.cross_entropy(ladder(step)[0], step.labels, reduction="none")
    return {"label": step.labels, "difficulty": first}


def num_classes(layout: GroupLayout) -> int:
    """Number of classes ``C``, read from the last classifier's bias."""
    return [g for g in layout if g.role in ("head", EXIT)][-1].tensors[-1].shape[0]


def exit_flops(context: RoundContext, client: ClientInfo, depth: int) -> float:
    """FLOPs of a training step that exits of C logits add to their layers', averaged over the round's steps.

    8 C per window for the cross-entropy of every exit but one (log-softmax 5, back through it 3); once a round 5 C
    per window for its difficulty.
    """
    per_window = num_classes(context.layout) * (8.0 * (depth - 1) + 5.0 / max(1, context.epochs))
    return per_window * client.num_windows / max(1, len(batch_sizes(context, client)))


# Generator of windows of a wanted label and difficulty, trained against a depth class's model without data.
#
# Legend for shapes: B samples, q classes, C channels, T samples per window.


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
    wanted: Pairs,
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


DISTANCE, ANGLE = 5.0, 10.0
SCORES = "scores"


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthModel:
    """Depth class after its clients were averaged: its model, its exits up to its deepest, its clients' reports.

    ``labels`` (n,) int64 and ``difficulty`` (n,) go together; ``modalities``: those that any of the class's
    clients owns.
    """

    depth: int
    params: Params
    weight: float
    exits: tuple[str | None, ...]
    labels: Tensor
    difficulty: Tensor
    modalities: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Hyperparameters of distillation.

    Attributes:
        epochs: passes; each trains every generator, then the students.
        steps: joint steps of the students per pass.
        batch_size: generated windows per step.
        hidden: width of the generator's hidden layer.
        lr: learning rate of the students' SGD.
        weight_decay: of the students' SGD.
        generator_lr: Adam's learning rate for the generator.
        score_lr: Adam's learning rate for the exits' weights.
    """

    epochs: int = 2
    steps: int = 5
    batch_size: int = 32
    hidden: int = 1000
    lr: float = 0.05
    weight_decay: float = 1e-3
    generator_lr: float = 1e-2
    score_lr: float = 1e-3


class ExitWeights(nn.Module):
    """``w = softmax(-sum_n s_ne / sum_e s_ne)``, ``s_ne = softplus(MLP(d_n, mean_e, var_e))``.

    The authors' network has ReLU inside and tanh at its output, in whose place stands softplus: scores are positive.
    """

    def __init__(self) -> None:
        """Build the MLP, 3 -> 100 -> ReLU -> 1."""
        super().__init__()
        self.score = nn.Sequential(nn.Linear(3, 100), nn.ReLU(), nn.Linear(100, 1))

    def forward(self, difficulty_n: Tensor, means_E: Tensor, variances_E: Tensor) -> Tensor:
        """Weights (E,), non-negative, of sum 1."""
        shape = (len(difficulty_n), len(means_E))
        parts = (difficulty_n[:, None].expand(shape), means_E.expand(shape), variances_E.expand(shape))
        scores = functional.softplus(self.score(torch.stack(parts, 2)).squeeze(2))
        return torch.softmax(-(scores / scores.sum(1, keepdim=True)).sum(0), 0)


def exit_statistics(difficulty_B: Tensor, leaves_B: Tensor, num_exits: int) -> tuple[Tensor, Tensor]:
    """Mean and variance (E,) of the difficulties of samples that leave at each exit; of all samples where none does."""
    chosen = [difficulty_B[leaves_B == e] for e in range(num_exits)]
    filled = [d if len(d) else difficulty_B for d in chosen]
    return torch.stack([d.mean() for d in filled]), torch.stack([d.var(correction=0) for d in filled])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rung:
    """Depth class during distillation: its network, and its generator (unused in the deepest class)."""

    model: DepthModel
    network: Network
    generator: Generator
    optimizer: torch.optim.Adam

    def generate(self, noise: Tensor, wanted: Pairs) -> tuple[Tensor, dict[str, Tensor]]:
        """Latent values, and windows of the modalities that the class's clients own."""
        latent = self.generator(noise, *wanted)
        windows = self.generator.windows(latent)
        return latent, {m: x for m, x in windows.items() if m in self.model.modalities}


def distil(
    models: Sequence[DepthModel],
    judge: Params,
    memory: Mapping[str, Tensor],
    build: Callable[[], Network],
    recipe: Recipe,
    draws: tuple[Streams, int],
) -> tuple[list[dict[GroupId, Tensor]], dict[str, Tensor]]:
    """Distil models (shallow first); return them and the new values of generators and scores.

    ``judge``: the model whose first exit says how difficult a window is; ``memory``: the values that the last call
    returned; ``draws``: the run's streams and the round. The shallowest model stays bit for bit.
    """
    with one_thread():
        judged = build()
        judged.load(judge)
        rungs = [_rung(model, memory, build(), recipe, draws[0]) for model in models]
        weights = seeded(ExitWeights, _seed(draws[0], SCORES, 0))
        if SCORES in memory:
            from_vector(weights, memory[SCORES])
        adam = torch.optim.Adam(weights.parameters(), lr=recipe.score_lr, foreach=False)
        for epoch in range(recipe.epochs):
            wanted = [_wanted(r.model, recipe, draws, epoch) for r in rungs[:-1]]
            for rung, pairs in zip(rungs, wanted, strict=False):
                _train_generator(rung, pairs, judged, draws, epoch)
            for step in range(recipe.steps):
                _student_step(rungs, wanted, (weights, adam), recipe, (*draws, epoch * recipe.steps + step))
        kept = {f"generator.{r.model.depth}": to_vector(r.generator) for r in rungs[:-1]}
        after = [r.network.params() for r in rungs]
    return after, {**memory, **kept, SCORES: to_vector(weights)}


def _rung(model: DepthModel, memory: Mapping[str, Tensor], network: Network, recipe: Recipe, streams: Streams) -> _Rung:
    network.load(model.params)
    shape = (network.channels, network.window, network.num_classes, recipe.hidden)
    generator = seeded(lambda: Generator(*shape), _seed(streams, "generator", model.depth))
    if (name := f"generator.{model.depth}") in memory:
        from_vector(generator, memory[name])
    optimizer = torch.optim.Adam(generator.parameters(), lr=recipe.generator_lr, foreach=False)
    return _Rung(model=model, network=network, generator=generator, optimizer=optimizer)


def _seed(streams: Streams, name: str, depth: int) -> int:
    return int(streams.numpy(f"distillation.{name}", depth).integers(2**31))


def _wanted(model: DepthModel, recipe: Recipe, draws: tuple[Streams, int], epoch: int) -> Pairs:
    make = draws[0].torch("distillation.pairs", draws[1], epoch, model.depth)
    index = torch.randint(len(model.labels), (recipe.batch_size,), generator=make)
    return model.labels[index], model.difficulty[index]


def _noise(rung: _Rung, num: int, streams: Streams, *key: int) -> Tensor:
    make = streams.torch("distillation.noise", *key, rung.model.depth)
    return torch.rand(num, rung.network.num_classes, generator=make)


def _train_generator(rung: _Rung, wanted: Pairs, judge: Network, draws: tuple[Streams, int], epoch: int) -> None:
    """Train a class's generator by one step of Adam."""
    rung.generator.train()
    noise = _noise(rung, len(wanted[0]), *draws, -1, epoch)
    latent, windows = rung.generate(noise, wanted)
    loss = generator_loss((noise, latent, windows), wanted, (rung.network, rung.model.exits), judge)
    _step(rung.optimizer, loss)


def _step(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    """Take one step; only the optimizer's own parameters get a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True):
        p.grad = g
    optimizer.step()


def _student_step(
    rungs: Sequence[_Rung],
    wanted: Sequence[Pairs],
    weighing: tuple[ExitWeights, torch.optim.Adam],
    recipe: Recipe,
    draws: tuple[Streams, int, int],
) -> None:
    """Take one joint step of all students and of the exit weights."""
    total = sum(r.model.weight for r in rungs[:-1])
    losses = []
    for teacher, student, pairs in zip(rungs, rungs[1:], wanted, strict=False):
        noise = _noise(teacher, len(pairs[0]), *draws)
        loss = _pair_loss(teacher, student, pairs, noise, weighing[0])
        if loss is not None:
            losses.append(teacher.model.weight / total * loss)
    if not losses:
        return
    parameters = [p for r in rungs[1:] for ps in r.network.parameters.values() for p in ps]
    loss = torch.stack(losses).sum()
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    _step(weighing[1], loss)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            if g is not None:
                p.sub_(g + recipe.weight_decay * p, alpha=recipe.lr)


def _pair_loss(teacher: _Rung, student: _Rung, wanted: Pairs, noise: Tensor, weights: ExitWeights) -> Tensor | None:
    """Loss of a student against its teacher; None where fewer than two samples reach the teacher's last exit."""
    with torch.no_grad():
        teacher.generator.eval()
        _, windows = teacher.generate(noise, wanted)
        taught = teacher.network.read(windows, teacher.model.exits)
    last = teacher.model.exits[-1]
    reaches = leave_at([taught[e].logits for e in teacher.model.exits]) == len(teacher.model.exits) - 1
    if int(reaches.sum()) < 2:
        return None
    exits = student.model.exits
    learned = student.network.read(windows, exits)
    means, variances = exit_statistics(wanted[1], leave_at([learned[e].logits for e in exits]), len(exits))
    known = taught[last].features[reaches]
    losses = torch.stack([relational_loss(learned[e].features[reaches], known) for e in exits])
    weight: Tensor = weights(wanted[1][reaches], means, variances)
    return (weight * losses).sum() / len(exits)


def relational_loss(student_nD: Tensor, teacher_nD: Tensor) -> Tensor:
    """``5 distance + 10 angle``."""
    return DISTANCE * distance_loss(student_nD, teacher_nD) + ANGLE * angle_loss(student_nD, teacher_nD)
