"""From a round's result to its record: the only place where tensors and dataclasses become JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast, get_args

from torch import Tensor

from relief_ray.federated import RoundResult
from relief_ray.groups import WHOLE, Kind, Part, Selection
from relief_ray.messages import Receipt, RoundCost, StageTimes
from relief_ray.records.identity import state_sha256, tensors_sha256
from relief_ray.records.schema import (
    ClientCostRecord,
    ClientRecord,
    CostRecord,
    RoundRecord,
    Stages,
    TensorStat,
    Totals,
)

MAX_STAT_VALUES = 64
_TOKEN = re.compile(r"(?P<group>[^\[\]]+)(?:\[(?P<kinds>[a-z_,]*);(?P<rank>r\d+)?(?:;o(?P<rows>[\d.e-]+))?\])?")


def capture_round(
    result: RoundResult,
    *,
    round_: int,
    phase: str,
    wall_s: float,
    ended_unix_s: float,
    before: Mapping[str, Totals],
) -> RoundRecord:
    """The record of a finished round; ``before`` are the totals of the last record (``{}`` at first).

    Metrics, divergences and derived figures are added by ``model_copy(update=...)`` of those who compute them.
    """
    receipts, bills = result.trained.worked, {r.assignment.client: r for r in result.charged}
    return RoundRecord(
        round=round_,
        phase=phase,
        wall_s=wall_s,
        ended_unix_s=ended_unix_s,
        participants=tuple(t.client for t in result.tasks),
        clients=tuple(_client(r, bills[r.assignment.client]) for r in receipts),
        costs={name: cost_record(cost) for name, cost in result.costs.items()},
        totals={
            name: totals_after(before.get(name, Totals()), cost, result.charged) for name, cost in result.costs.items()
        },
        model_sha256=state_sha256(result.state),
        rejected=dict(result.trained.rejected),
        moved_bytes=result.trained.moved_bytes,
        server_s=result.server_s,
    )


def tokens(selection: Selection) -> tuple[str, ...]:
    """A selection as text: ``fusion.B`` is a whole group, ``encoder.acc.0[lora_a,lora_b;r4]`` a part of one.

    ``head.1[;;o0.75]``: three quarters of the output rows.
    """
    return tuple(j if part == WHOLE else f"{j}[{_kinds(part)};{_lead(part)}]" for j, part in selection.items())


def selection(texts: tuple[str, ...]) -> Selection:
    """The inverse of ``tokens``.

    Raises:
        ValueError: a text that ``tokens`` does not write.
    """
    return dict(_part(text) for text in texts)


def _kinds(part: Part) -> str:
    return "" if part.kinds is None else ",".join(sorted(part.kinds)) or "none"


def _lead(part: Part) -> str:
    rank = "" if part.rank is None else f"r{part.rank}"
    return rank if part.rows is None else f"{rank};o{part.rows!r}"


def _part(text: str) -> tuple[str, Part]:
    match = _TOKEN.fullmatch(text)
    names = (match["kinds"] or "").split(",") if match else []
    if match is None or not set(names) <= {*get_args(Kind), "", "none"}:
        raise ValueError(f"selection {text!r}, expected group or group[kinds;rank], e.g. encoder.acc.0[lora_a;r4]")
    kinds = frozenset(cast(Kind, n) for n in names if n != "none") if names != [""] else None
    rank, rows = (int(match["rank"][1:]) if match["rank"] else None), match["rows"]
    return match["group"], Part(kinds=kinds, rank=rank, rows=float(rows) if rows else None)


def _client(receipt: Receipt, bill: Receipt) -> ClientRecord:
    task, work = receipt.assignment, receipt.work
    return ClientRecord(
        client=task.client,
        view=task.view,
        phase=task.phase,
        epochs=work.epochs,
        trained=tokens(task.train),
        uploaded=tokens(task.up),
        bytes_down=bill.bytes_down,
        bytes_up=bill.bytes_up,
        num_windows=work.num_windows,
        num_steps=work.num_steps,
        engine=work.engine,
        loss=work.loss,
        measured_stages=_stages(work.measured),
        args=dict(task.args),
        sq_norm=dict(receipt.sq_norm),
        stats={name: _stat(value) for name, value in receipt.stats.items()},
        taps=tuple(sorted(task.taps)),
        output=task.output,
        extra_flops=work.extra_flops,
        omit_absent=task.omit_absent,
    )


def _stat(value: Tensor) -> TensorStat:
    flat = value.detach().cpu().double().reshape(-1)
    return TensorStat(
        shape=tuple(value.shape),
        mean=float(flat.mean()) if len(flat) else 0.0,
        sha256=tensors_sha256({"": value}),
        values=tuple(flat.tolist()) if len(flat) <= MAX_STAT_VALUES else (),
    )


def _stages(times: StageTimes) -> Stages:
    return Stages(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        optimizer_s=times.optimizer_s,
        up_s=times.up_s,
        down_s=times.down_s,
    )


def cost_record(cost: RoundCost) -> CostRecord:
    """A round's cost as it is stored."""
    clients = tuple(
        ClientCostRecord(client=c.client, times=_stages(c.times), wait_s=c.wait_s, energy_j=c.energy_j)
        for c in cost.clients
    )
    return CostRecord(round_s=cost.round_s, energy_j=cost.energy_j, clients=clients)


def totals_after(before: Totals, cost: RoundCost, receipts: tuple[Receipt, ...]) -> Totals:
    """The sums with one more round."""
    return Totals(
        time_s=before.time_s + cost.round_s,
        energy_j=before.energy_j + cost.energy_j,
        bytes_up=before.bytes_up + sum(r.bytes_up for r in receipts),
        bytes_down=before.bytes_down + sum(r.bytes_down for r in receipts),
    )
