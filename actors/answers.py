"""What a host sent back, handed on to the round that is being gathered."""

from __future__ import annotations

from dataclasses import replace

from actors.gather import Gather
from actors.hosts import TrainAnswer
from actors.roster import Call
from actors.wire import unpack
from relief_ray.server.reduction import Sums
from relief_ray.training.job import BlockResult


def take(gather: Gather, call: Call, answer: TrainAnswer) -> None:
    """Hands an answer on: sums look into the received arrays, everything that is kept has its own memory."""
    sums: tuple[Sums, ...] = unpack(answer.sums)
    rest: tuple[BlockResult, ...] = unpack(answer.rest, own=True)
    if answer.nodes is not None:
        numbers = (block for block, _ in call.pieces)
        gather.add_whole(dict(zip(numbers, rest, strict=True)), dict(zip(answer.nodes, sums, strict=True)))
        return
    for (block, part), result, summed in zip(call.pieces, rest, sums, strict=True):
        gather.add(block, [t.client for t in part], replace(result, sums=summed))
