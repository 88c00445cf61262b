"""Evaluates a model under sensor masks: confusion matrices per test subject (``records.metrics`` scores them).

Every stage is computed once per chunk of windows and presence pattern of the modalities that it depends on, and once a
call where none of them is present, so M + 1 masks cost little more than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relief_ray.core.stages import RAW, Missing, modalities_below
from relief_ray.models.backbone import Backbone, zero_input
from relief_ray.support.errors import UserError
from relief_ray.training.forward_plan import spread, stages_for
from relief_ray.training.inputs import Rows

Mask = frozenset[str]
Share = tuple[int, int]
_Memo = dict[tuple[str, Mask], Tensor]
CHUNK = 512


@torch.no_grad()
def predict(
    backbone: Backbone,
    inputs: Mapping[str, Rows],
    masks: Sequence[Mask],
    missing: Missing,
    output: str | None = None,
    lacking: Sequence[tuple[Mask, Tensor]] = (),
) -> dict[Mask, Tensor]:
    """Predicted classes (n,) under every mask of present modalities, read at stage ``output`` (the last by default).

    ``lacking``: modalities that some windows lack, and which (n,) those are: they are absent there under every mask.

    Raises:
        UserError: a window's logits are not finite, so that no class is the largest.
    """
    last = output or backbone.output
    num_windows = len(next(iter(inputs.values())))
    # The empty tensor is for a share without windows: more workers than windows.
    parts: dict[Mask, list[Tensor]] = {mask: [torch.empty(0, dtype=torch.int64)] for mask in masks}
    size = backbone.chunk or CHUNK
    known: _Memo = {}
    for start in range(0, num_windows, size):
        chunk = {m: x[start : start + size] for m, x in inputs.items()}
        length = min(size, num_windows - start)
        classes = {
            mask: _classes(logits, length)
            for mask, logits in _logits(backbone, chunk, masks, missing, last, known).items()
        }
        for lacked, windows in lacking:
            rows = windows[start : start + size].nonzero().squeeze(1)
            if len(rows):
                few = {m: x[rows.to(x.device)] for m, x in chunk.items()}
                logits_of = _logits(backbone, few, [mask - lacked for mask in masks], missing, last, known)
                for mask, all_classes in classes.items():
                    classes[mask] = all_classes.index_copy(0, rows, _classes(logits_of[mask - lacked], len(rows)))
        for mask, all_classes in classes.items():
            parts[mask].append(all_classes)
    return {mask: torch.cat(chunks) for mask, chunks in parts.items()}


def _classes(logits: Tensor, num_windows: int) -> Tensor:
    """The class (num_windows,) of the largest logit, on the CPU, of logits of all windows or one row for all."""
    whole = torch.isfinite(logits).all(1)
    if not whole.all():
        raise UserError(
            f"evaluation: the model gives {int((~whole).sum())} of {len(whole)} windows logits that are NaN or "
            "infinite, expected finite ones: it has diverged; lower training.lr, or look at the values of these windows"
        )
    return logits.argmax(1).cpu().expand(num_windows)


@torch.no_grad()
def calibrate(backbone: Backbone, inputs: Mapping[str, Rows]) -> None:
    """Set BatchNorm's running statistics to those of these windows, in one pass through the loaded model."""
    with backbone.statistics.counting():
        backbone.forward({m: x[:] for m, x in inputs.items()})


def share_rows(num_windows: int, share: Share, chunk: int = CHUNK) -> Tensor:
    """Indices of the windows of worker i, ``share = (i, n)``: every n-th whole chunk.

    A matrix product's last bits depend on its batch. Whole chunks give the same batches for any ``n``, so that every
    prediction is equal, near ties included.
    """
    index = torch.arange(num_windows)
    return index[(index // chunk) % share[1] == share[0]]


def confusion(labels: Tensor, predicted: Tensor, subjects: Tensor, num_subjects: int, num_classes: int) -> Tensor:
    """Counts (subjects, classes, classes), rows true, columns predicted; ``subjects`` (n,) numbered from 0."""
    cell = (subjects * num_classes + labels) * num_classes + predicted
    counts = torch.bincount(cell, minlength=num_subjects * num_classes**2)
    return counts.view(num_subjects, num_classes, num_classes)


def _logits(
    backbone: Backbone, chunk: Mapping[str, Tensor], masks: Sequence[Mask], missing: Missing, last: str, known: _Memo
) -> dict[Mask, Tensor]:
    """Logits under every mask; ``known`` carries one-row outputs that no present modality reaches to the next chunk."""
    below, stages = modalities_below(backbone.specs), stages_for(backbone, {last}, frozenset())
    batch = len(next(iter(chunk.values())))
    memo = dict(known)

    def value(source: str, mask: Mask) -> Tensor:
        if source.startswith(RAW):
            modality = source.removeprefix(RAW)
            return chunk[modality] if modality in mask else zero_input(backbone, modality)
        return memo[source, mask & below[source]]

    for mask in masks:
        for stage in stages:
            key = (stage.spec.id, mask & below[stage.spec.id])
            if key in memo:
                continue
            inputs = [value(i, mask) for i in stage.spec.inputs]
            if key[1]:
                inputs = [spread(x, batch) for x in inputs]
            output = stage.module(*inputs)
            memo[key] = output * 0.0 if missing == "zero_feature" and stage.spec.feature and not key[1] else output
    known.update({key: output for key, output in memo.items() if not key[1]})
    return {mask: memo[last, mask & below[last]] for mask in masks}
