"""Repeats the start and rounds of a run with a user's own code in a fresh process, with clients in reverse order.

A difference means that the result depends on the process, the time or the order of clients. The last round is
repeated from the checkpoint before it; the first one, on which all others build, where that takes seconds at most. Of
the data the first people are parsed anew, for seconds at most.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from relief_ray.config.experiment import parse
from relief_ray.data.dataset import parsed_anew
from relief_ray.experiment.experiment import Stop, ignore, run_opened
from relief_ray.experiment.lifecycle import reopen
from relief_ray.experiment.setup import Setup
from relief_ray.plugins.blame import reason
from relief_ray.plugins.fresh import Asker, call_fresh
from relief_ray.plugins.load import is_path, is_stored
from relief_ray.plugins.reads import noting
from relief_ray.records.checkpoint import FOLDER, generations, newest_model
from relief_ray.records.identity import tensors_sha256
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run
from relief_ray.records.schema import PARTLY, VERIFIED, Metrics, RoundRecord, RunRecord
from relief_ray.support.errors import UserError, listed
from relief_ray.training.executor import SerialExecutor

# The first round is repeated where it took as long at most, and people are parsed anew for as long.
_AFFORDABLE_S, _PARSING_S = 2.0, 1.0
_COSTS = ("bytes_down", "bytes_up", "num_steps", "extra_flops")


def verified(run: RunRecord, setup: Setup, folder: Path, stop: Stop) -> RunRecord:
    """Compute rounds of a finished run with a user's code once more (``runtime.verify_own``).

    Returns the record with what came of it, as ``run.json`` has it.
    """
    runtime = setup.config.runtime
    if run.status != "done" or not setup.config.modules() or not runtime.verify_own or runtime.physical:
        return run
    began = perf_counter()
    try:
        verdict = _verdict(run, setup, folder, stop)
    except Exception as error:
        verdict = f"not verified: {reason(error).splitlines()[0]}"
    with RunFolder.resume(folder) as opened:
        return opened.update(own_code=verdict, own_code_s=perf_counter() - began)


def _verdict(run: RunRecord, setup: Setup, folder: Path, stop: Stop) -> str:
    """What differs, or that nothing does.

    Raises:
        UserError: the last round cannot be computed once more.
    """
    rounds = read_rounds(folder)
    first, last = rounds[0], rounds[-1]
    if any(left.cause != "update" for left in last.left_out.values()):
        raise UserError(f"round {last.round} went on without a client that was lost")
    if len(generations(folder)) == 1 and last.round > 1:
        raise UserError(f"there is no checkpoint of round {last.round - 1}")
    is_short = first.round == 1 and not first.left_out and _seconds(first) <= _AFFORDABLE_S
    again = call_fresh(_once_more, folder.resolve(), is_short, hear=ignore, stop=stop)
    if isinstance(again, str):
        return again
    if again.last.round != last.round:
        raise UserError("it was stopped")
    timed = setup.config.costs.count_server_time

    def differences() -> Iterator[str]:
        yield from _differences(last, again.last, timed)
        if again.start != tensors_sha256(setup.start):
            yield "differs in the model that it starts from"
        if again.first is not None:
            yield from (f"{text}, in round 1" for text in _differences(first, again.first, timed))
        if again.data:
            yield f"differs in the data: {again.data}"

    same = VERIFIED if again.first is not None else PARTLY
    return next(
        (f"{text}; likely random numbers without a seed" for text in differences()),
        same + (again.reads and f", but {again.reads}: no record has it"),
    )


def _seconds(record: RoundRecord) -> float:
    """What a round takes in one process: its clients one after the other."""
    return max(record.wall_s, sum(client.measured_stages.busy_s for client in record.clients))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Again:
    """A run, computed once more.

    Attributes:
        last: its last round.
        first: its first round; None where that is not repeated.
        start: sha256 of the parameters that it starts from.
        data: what parsing gives otherwise than the run has read; empty: nothing.
        reads: what its own code reads by itself, in words.
    """

    last: RoundRecord
    first: RoundRecord | None
    start: str
    data: str
    reads: str


def _once_more(asker: Asker, folder: Path, is_short: bool) -> _Again | str:
    """Compute the last round of a copy of the run, and the first; a text says why that would be another round."""
    with TemporaryDirectory(prefix="relief-verify-") as place:
        copy, early = Path(place) / "run", Path(place) / "early"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(generations(folder)[0].name))
        saved, before = newest_model(copy), read_rounds(copy)[-2:][0]
        if saved is not None and saved[1] != before.model_sha256:
            return f"differs in the model of round {before.round}, which was changed in place after that round"
        # The asker has let this code run.
        runtime = parse(read_run(copy).config, str(copy), why="").runtime
        here = runtime.model_copy(update={"mode": "inline", "address": None})
        with noting() as reads:
            setup, opened = reopen(copy, runtime=here, other_code=True)
            opened.close()
            start = tensors_sha256(setup.start)
            executor, stopping = partial(SerialExecutor, backwards=True), asker.stopping
            run_opened(setup, copy, executor, stopping.is_set)
            last, first = read_rounds(copy)[-1], None
            if last.round == 1:
                first = last
            elif is_short and not stopping.is_set():
                shutil.copytree(folder, early, ignore=shutil.ignore_patterns(FOLDER))
                done: list[RoundRecord] = []
                run_opened(setup, early, executor, lambda: bool(done) or stopping.is_set(), on_round=done.append)
                first = read_rounds(early)[0]
        name = setup.config.data.name
        data, asked = parsed_anew(name, _PARSING_S) if is_path(name) and not is_stored(name) else ("", [])
        return _Again(last=last, first=first, start=start, data=data, reads=reads.told(asked))


def _differences(there: RoundRecord, here: RoundRecord, timed: bool) -> Iterator[str]:
    """What differs between two computations of a round, the first client and group first.

    ``timed``: costs have measured seconds of the server.
    """
    by_client = {client.client: client for client in here.clients}
    for one in there.clients:
        other = by_client.get(one.client)
        squares = {} if other is None else other.sq_norm
        for group in (group for group, square in one.sq_norm.items() if square != squares.get(group)):
            yield f"differs in client {one.client}, group {group}"
        if other is None or repr(one.loss) != repr(other.loss):
            yield f"differs in client {one.client}, its loss"
        if other is None or any(getattr(one, key) != getattr(other, key) for key in _COSTS):
            yield f"differs in client {one.client}, its costs"
    if there.model_sha256 != here.model_sha256:
        yield "differs on the server, after equal updates"
    for part in ("metrics", "validation"):
        yield from _other_metrics(getattr(there, part), getattr(here, part))
    if not timed and repr(there.costs) != repr(here.costs):
        yield "differs in seconds, joules or bytes of the simulated round, of equal models"


def _other_metrics(there: Metrics | None, here: Metrics | None) -> Iterator[str]:
    """Names of metrics that differ; those of the user first."""
    if there is None or here is None or there == here:
        return
    own = [name for name, value in there.scores.items() if repr(value) != repr(here.scores.get(name))]
    others = [key for key in Metrics.model_fields if key != "scores" and getattr(there, key) != getattr(here, key)]
    if own or others:
        yield f"differs in {listed([*own, *others])}, of equal models"
