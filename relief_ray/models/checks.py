"""Checks of a backbone's declaration: every trained parameter is in a group, every stage is a function of its inputs.

A declaration that fails them would train nothing, or something else than it seems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from relief_ray.core.groups import GroupId
from relief_ray.models.modes import dropout_rate
from relief_ray.models.stage import GroupParameters, Stage
from relief_ray.support.errors import UserError


class DeclarationError(UserError):
    """Raised where groups do not cover the trained parameters, each exactly once."""


def check_owners(stages: Sequence[Stage], declared: Sequence[GroupParameters]) -> None:
    """Check that a stage owns every group, and that every trainable parameter is in a group of its stage.

    Raises:
        DeclarationError: names stage, group and parameter; else the parameter would be neither trained nor sent. Or one
            has no dimension.
    """
    owner = _group_by_parameter(declared)
    held: dict[GroupId, set[int]] = {}
    for stage in stages:
        for name, p in stage.pool.named_parameters() if stage.pool else ():
            if id(p) in owner or p.requires_grad:
                raise DeclarationError(
                    f"backbone: the pool of stage {stage.spec.id!r} has the trainable parameter {name!r}; a pool has "
                    "none, make it a stage or freeze it (requires_grad=False)"
                )
        for name, p in stage.module.named_parameters():
            group = owner.get(id(p))
            if group in stage.spec.groups:
                held.setdefault(group, set()).add(id(p))
            elif group is not None or p.requires_grad:
                _refuse(stage, name, group)
    for g in declared:
        if not any(g.id in s.spec.groups for s in stages):
            raise DeclarationError(
                f"backbone: no stage owns group {g.id!r}, which would never be trained; name it in the `groups` of the "
                "StageSpec that computes with its parameters"
            )
        if lost := [name for name, p, _ in g.tensors if id(p) not in held.get(g.id, ())]:
            owners = [s.spec.id for s in stages if g.id in s.spec.groups]
            raise DeclarationError(
                f"backbone: parameters {lost} of group {g.id!r} are in no module of its stages {owners}; declare the "
                "parameters that the stage's module holds"
            )


def _group_by_parameter(declared: Sequence[GroupParameters]) -> dict[int, GroupId]:
    owner: dict[int, GroupId] = {}
    for g in declared:
        for name, p, _ in g.tensors:
            if id(p) in owner:
                raise DeclarationError(
                    f"backbone: parameter {name!r} of group {g.id!r} is declared in {owner[id(p)]!r} already; a "
                    "parameter belongs to one group, once: parts that share it cannot be trained and sent apart"
                )
            if not p.ndim:
                raise DeclarationError(
                    f"backbone: parameter {name!r} of group {g.id!r} has no dimension, expected one at least, along "
                    "which a part of it could be sent; give it the shape (1,)"
                )
            owner[id(p)] = g.id
    return owner


def _refuse(stage: Stage, name: str, group: GroupId | None) -> None:
    place = f"backbone: stage {stage.spec.id!r} computes with parameter {name!r}"
    if group is None:
        raise DeclarationError(
            f"{place}, which is in no group: it would be neither trained nor sent; declare it in GroupParameters, or "
            "freeze it (requires_grad=False)"
        )
    raise DeclarationError(
        f"{place} of group {group!r}, but owns {sorted(stage.spec.groups)}; add {group!r} to the `groups` of its "
        "StageSpec, else what depends on it would be computed once and kept"
    )


def check_modules(stages: Sequence[Stage]) -> None:
    """Check that nothing but the layers that a stage switches off for tests draws random numbers or keeps statistics.

    Raises:
        UserError: names stage and layer, and what to take instead.
    """
    for stage in stages:
        for name, layer in stage.module.named_modules():
            if isinstance(layer, _BatchNorm) and layer.running_mean is None:
                fault = "has no running statistics, so that tests would mix the windows of a batch"
                _refuse_layer(stage, name, layer, f"{fault}; leave track_running_stats on, or take GroupNorm")
        for name, layer in stage.pool.named_modules() if stage.pool else ():
            if layer.training and (dropout_rate(layer) > 0.0 or isinstance(layer, _NormBase | nn.RReLU)):
                _refuse_layer(stage, name, layer, "is no function of its inputs in training; leave it out of a pool")


def _refuse_layer(stage: Stage, name: str, layer: nn.Module, fault: str) -> None:
    place = f"stage {stage.spec.id!r}" + (f", layer {name!r}" if name else "")
    raise UserError(f"backbone: {place}: {type(layer).__name__} {fault}")


@torch.no_grad()
def run_checked(stage: Stage, inputs: Sequence[Tensor]) -> Tensor:
    """Run a stage on ``inputs`` of two windows (2, ...), check that it is a function of each, return its output.

    Raises:
        UserError: it drew from torch's generator, changed its buffers or inputs, or mixed the windows. This also finds
            custom layers, which ``check_modules`` does not know.
    """
    place = f"backbone: stage {stage.spec.id!r}"
    generator = torch.random.get_rng_state()
    before = {name: b.clone() for name, b in stage.module.named_buffers()}
    copies = [x.clone() for x in inputs]
    output: Tensor = stage.module(*copies)
    if not torch.equal(generator, torch.random.get_rng_state()):
        raise UserError(
            f"{place} draws random numbers in its forward pass, in tests too, so two runs differ; take nn.Dropout, "
            "which training alone switches on"
        )
    if changed := sorted(name for name, b in stage.module.named_buffers() if not _same(before.get(name), b)):
        raise UserError(
            f"{place} changes its buffers {changed} in its forward pass; they are in no group, so nobody would send "
            "them; make them parameters of a group, or constant"
        )
    if written := [i for i, x, y in zip(stage.spec.inputs, inputs, copies, strict=True) if not _same(x, y)]:
        raise UserError(
            f"{place} writes to its inputs {written}, which other stages and later batches read; return a new tensor "
            "(relu(x), not relu_(x))"
        )
    check_windows(place, stage.module, inputs, output)
    if stage.pool is not None:
        check_windows(f"{place}, its pool,", stage.pool, [output], stage.pool(output))
    return output


def check_windows(place: str, function: Callable[..., Tensor], inputs: Sequence[Tensor], together: Tensor) -> None:
    """Check that each of two windows alone has the output that it has ``together`` with the other, but for rounding.

    Raises:
        UserError: the outputs differ; the message names the ``place``.
    """
    for i in range(2):
        try:
            alone = function(*(x[i : i + 1] for x in inputs))
        except (RuntimeError, ValueError) as error:  # as torch's batch norm
            raise UserError(f"{place} cannot do with one window ({error}); it must take any number of them") from error
        close = len(together) == 2 and torch.allclose(
            together[i : i + 1], alone, rtol=0.0, atol=_rounding(alone), equal_nan=True
        )
        if not close:
            raise UserError(
                f"{place} mixes the windows of a batch: a window's output depends on the windows beside it, so nothing "
                "can be computed once, and tests depend on their order; take statistics over time or channels "
                "(GroupNorm, LayerNorm), not over the first dimension"
            )


def _rounding(values: Tensor) -> float:
    """Tolerance for sums in another order, which other numbers of windows may cause."""
    return 1e-4 * float(values.nan_to_num().abs().max()) if values.numel() else 0.0


def _same(before: Tensor | None, after: Tensor) -> bool:
    return before is not None and before.shape == after.shape and torch.equal(before.nan_to_num(), after.nan_to_num())
