"""Data-free distillation between models of growing depth: each teaches the next deeper one on generated windows.

Per epoch: draw (label, difficulty) pairs from what each class's clients reported; one step of its generator; then
joint steps of all students, ``sum_k N_k / sum N * mean_e w_e (5 RKD_distance + 10 RKD_angle)`` on the samples that the
teacher lets go at its last exit, ``w`` from how an exit's difficulties match each sample's. Moments start afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from relief_ray.core.groups import GroupId, Params
from relief_ray.core.protocols import Network
from relief_ray.core.streams import Streams
from relief_ray.server.reduction import one_thread
from relief_ray.strategies.darkdistill.generator import Generator, from_vector, generator_loss, seeded, to_vector
from relief_ray.strategies.darkdistill.losses import angle_loss, distance_loss, leave_at

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

    def generate(self, noise: Tensor, wanted: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
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
        assert isinstance(weights, ExitWeights)
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
        after = [_values(r) for r in rungs]
    return after, {**memory, **kept, SCORES: to_vector(weights)}


def _rung(model: DepthModel, memory: Mapping[str, Tensor], network: Network, recipe: Recipe, streams: Streams) -> _Rung:
    network.load(model.params)
    shape = (network.channels, network.window, network.num_classes, recipe.hidden)
    generator = seeded(lambda: Generator(*shape), _seed(streams, "generator", model.depth))
    assert isinstance(generator, Generator)
    if (name := f"generator.{model.depth}") in memory:
        from_vector(generator, memory[name])
    optimizer = torch.optim.Adam(generator.parameters(), lr=recipe.generator_lr, foreach=False)
    return _Rung(model=model, network=network, generator=generator, optimizer=optimizer)


def _seed(streams: Streams, name: str, depth: int) -> int:
    return int(streams.numpy(f"distillation.{name}", depth).integers(2**31))


def _wanted(model: DepthModel, recipe: Recipe, draws: tuple[Streams, int], epoch: int) -> tuple[Tensor, Tensor]:
    make = draws[0].torch("distillation.pairs", draws[1], epoch, model.depth)
    index = torch.randint(len(model.labels), (recipe.batch_size,), generator=make)
    return model.labels[index], model.difficulty[index]


def _noise(rung: _Rung, num: int, streams: Streams, *key: int) -> Tensor:
    make = streams.torch("distillation.noise", *key, rung.model.depth)
    return torch.rand(num, rung.network.num_classes, generator=make)


def _train_generator(
    rung: _Rung, wanted: tuple[Tensor, Tensor], judge: Network, draws: tuple[Streams, int], epoch: int
) -> None:
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
    wanted: Sequence[tuple[Tensor, Tensor]],
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


def _pair_loss(
    teacher: _Rung, student: _Rung, wanted: tuple[Tensor, Tensor], noise: Tensor, weights: ExitWeights
) -> Tensor | None:
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


def _values(rung: _Rung) -> dict[GroupId, Tensor]:
    parameters = rung.network.parameters
    return {j: torch.cat([p.detach().reshape(-1) for p in ps]) for j, ps in parameters.items()}
