"""The client's side of a strategy under observation: what its functions change, and what its receipts charge."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from relief_ray.codec import encoded_nbytes, sparse_nbytes
from relief_ray.federated import ClientContext, ClientProgram, LocalStep
from relief_ray.groups import GroupLayout, Params
from relief_ray.messages import NO_STATE, Assignment, ClientState, ServerState, Update
from relief_ray.records.identity import state_sha256
from relief_ray.rules import Broken
from relief_ray.training.steps import adds_up


def watched_client(client: ClientProgram) -> ClientProgram:
    """The same functions; one that changes the received model or the client's state raises ``Broken``."""
    return ClientProgram(
        refine=partial(_refine, client),
        objective=partial(_objective, client),
        observe=partial(_observe, client),
        after=partial(_after, client),
        is_mean=adds_up(client),
    )


def _refine(client: ClientProgram, context: ClientContext, task: Assignment) -> Assignment:
    before = _client_sha256(context.start, context.state)
    refined = client.refine(context, task)
    _check_client_kept("refine", before, context.start, context.state)
    return refined


def _objective(client: ClientProgram, step: LocalStep) -> Tensor:
    before = _client_sha256(step.start)
    loss = client.objective(step)
    _check_client_kept("objective", before, step.start)
    return loss


def _observe(client: ClientProgram, step: LocalStep) -> Mapping[str, Tensor]:
    before = _client_sha256(step.start)
    found = client.observe(step)
    _check_client_kept("observe", before, step.start)
    return found


def _after(client: ClientProgram, context: ClientContext, update: Update) -> Update:
    before = _client_sha256(context.start, context.state)
    sent = client.after(context, update)
    _check_client_kept("after", before, context.start, context.state)
    check_bytes(sent, context.layout)
    return sent


def _check_client_kept(function: str, before: str, start: Params, state: ClientState = NO_STATE) -> None:
    if _client_sha256(start, state) != before:
        raise Broken("purity", f"client.{function} changed the model or the client's state that it was given")


def _client_sha256(start: Params, state: ClientState = NO_STATE) -> str:
    return state_sha256(ServerState(models={"start": start}, tensors=state))


def check_bytes(update: Update, layout: GroupLayout) -> None:
    """Refuses a receipt that charges less than what is sent is long; more may be charged, by a table.

    Sent are ``encode(up)``, or ``encode_sparse(up)`` where that is shorter, and the receipt's ``stats``: however
    they are encoded (as counts, say), no shorter than each distinct value once.

    Raises:
        Broken: rule ``bytes``.
    """
    receipt, task = update.receipt, update.receipt.assignment
    if any(j not in layout for j in (*task.down, *task.up)):
        return  # the rule `allocation` has words for that
    num_kept = sum(int(delta.count_nonzero()) for delta in update.delta.values())
    shortest = min(encoded_nbytes(layout, task.up), sparse_nbytes(layout, task.up, num_kept)) if task.up else 0
    shortest += sum(torch.unique(value).numel() * value.element_size() for value in receipt.stats.values())
    received = encoded_nbytes(layout, task.down) if task.down else 0
    for name, charged, least in (("up", receipt.bytes_up, shortest), ("down", receipt.bytes_down, received)):
        if charged < least:
            raise Broken("bytes", f"client {task.client}: {charged} bytes {name}, its payload has at least {least}")
