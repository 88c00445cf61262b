"""The unimodal stage: every sensor's encoder learns with a classifier of its own; and how far it drifts afterwards."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from relief_ray.additions import Classifier
from relief_ray.federated import ClientContext, LocalStep, RoundContext, task_loss
from relief_ray.groups import GroupLayout, Selection
from relief_ray.messages import Assignment, ClientInfo, Fleet, Update

UNIMODAL, DRIFT = "unimodal", "drift"


def unimodal_heads(layout: GroupLayout, fleet: Fleet) -> tuple[Classifier, ...]:
    """One classifier per modality on its encoder's last layer."""
    last = {g.modality: g.id for g in layout if g.role == "encoder"}
    return tuple(
        Classifier(id=head_of(m), after=(last[m],), role="unimodal_head", modality=m) for m in fleet.modalities
    )


def head_of(modality: str) -> str:
    """The group and stage of a modality's classifier."""
    return f"unimodal.{modality}"


def reached(layout: GroupLayout, client: ClientInfo, *roles: str) -> Selection:
    """The groups of these roles that the client's sensors reach."""
    return layout.select(g for g in layout.accessible(client.modalities) if g.role in roles)


def train_unimodal(context: RoundContext, client: ClientInfo) -> Assignment:
    """Encoders and classifiers of the own sensors; nothing else runs."""
    mine = reached(context.layout, client, "encoder", "unimodal_head")
    heads = [head_of(m) for m in client.modalities]
    return Assignment(
        client=client.id,
        down=mine,
        train=mine,
        up=mine,
        epochs=context.epochs,
        phase=UNIMODAL,
        taps=frozenset(heads),
        output=heads[0],
    )


def sum_of_losses(step: LocalStep) -> Tensor:
    """The sum of the unimodal losses where there are any (they share no parameter), else the usual one."""
    losses = [functional.cross_entropy(step.taps[tap], step.labels) for tap in sorted(step.taps)]
    return torch.stack(losses).sum() if losses else task_loss(step)


def report_drift(context: ClientContext, update: Update) -> Update:
    """``1 - cos(f_n,m, f_m^0)`` of every own sensor whose encoder stays with the client, four bytes each.

    ``f_m^0`` is the encoder that the server holds; where it is zero, so is the drift.
    """
    receipt, drift = update.receipt, []
    encoders = [g for g in context.layout if g.role == "encoder" and g.id in receipt.assignment.keep]
    for m in context.info.modalities if encoders else ():
        own = [g.id for g in encoders if g.modality == m]
        now, then = (torch.cat([p[j] for j in own]).double() for p in (update.state, context.start))
        drift.append(1.0 - functional.cosine_similarity(now, then, dim=0) if then.any() else then.new_zeros(()))
    if not drift:
        return update
    stats = {**receipt.stats, DRIFT: torch.stack(drift).clamp(0.0, 2.0).float()}
    return replace(update, receipt=replace(receipt, stats=stats, bytes_up=receipt.bytes_up + 4 * len(drift)))
