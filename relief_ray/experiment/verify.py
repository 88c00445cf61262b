"""Repeats the last round of a run with a user's own code in a fresh process, with clients in reverse order.

A difference means that the result depends on the process, the time or the order of clients.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from relief_ray.config.experiment import parse
from relief_ray.experiment.experiment import ignore, run_opened
from relief_ray.experiment.lifecycle import reopen
from relief_ray.experiment.setup import Setup
from relief_ray.plugins.blame import reason
from relief_ray.plugins.fresh import Asker, call_fresh
from relief_ray.records.checkpoint import generations, newest_model
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run
from relief_ray.records.schema import VERIFIED, RoundRecord, RunRecord
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor


def verified(run: RunRecord, setup: Setup, folder: Path, stop: Callable[[], bool]) -> RunRecord:
    """Compute the last round of a finished run with a user's code once more (``runtime.verify_own``).

    Returns the record with what came of it, as ``run.json`` has it.
    """
    runtime = setup.config.runtime
    if run.status != "done" or not setup.config.modules() or not runtime.verify_own or runtime.physical:
        return run
    began = perf_counter()
    try:
        verdict = _verdict(run, folder, stop)
    except Exception as error:
        verdict = f"not verified: {reason(error).splitlines()[0]}"
    with RunFolder.resume(folder) as opened:
        return opened.update(own_code=verdict, own_code_s=perf_counter() - began)


def _verdict(run: RunRecord, folder: Path, stop: Callable[[], bool]) -> str:
    """What differs first, or that nothing does.

    Raises:
        UserError: the round cannot be computed once more.
    """
    last = read_rounds(folder)[-1]
    if any(left.cause != "update" for left in last.left_out.values()):
        raise UserError(f"round {last.round} went on without a client that was lost")
    if len(generations(folder)) == 1 and last.round > 1:
        raise UserError(f"there is no checkpoint of round {last.round - 1}")
    again = call_fresh(_once_more, folder.resolve(), hear=ignore, stop=stop)
    if isinstance(again, str):
        return again
    if again.round != last.round:
        raise UserError("it was stopped")
    return next(_differences(last, again), VERIFIED)


def _once_more(asker: Asker, folder: Path) -> RoundRecord | str:
    """Compute the last round of a copy of the run; a text says why that would be another round."""
    with TemporaryDirectory(prefix="relief-verify-") as place:
        copy = Path(place) / "run"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(generations(folder)[0].name))
        saved, before = newest_model(copy), read_rounds(copy)[-2:][0]
        if saved is not None and saved[1] != before.model_sha256:
            return f"differs in the model of round {before.round}, which was changed in place after that round"
        # The asker has let this code run.
        runtime = parse(read_run(copy).config, str(copy), why="").runtime
        here = runtime.model_copy(update={"mode": "inline", "address": None})
        setup, opened = reopen(copy, runtime=here, other_code=True)
        opened.close()
        run_opened(setup, copy, partial(SerialExecutor, backwards=True), asker.stopping.is_set)
        return read_rounds(copy)[-1]


def _differences(there: RoundRecord, here: RoundRecord) -> Iterator[str]:
    """What differs between two computations of a round, the first client and group first."""
    by_client = {client.client: client for client in here.clients}
    for one in there.clients:
        other = by_client.get(one.client)
        squares = {} if other is None else other.sq_norm
        for group in (group for group, square in one.sq_norm.items() if square != squares.get(group)):
            yield f"differs in client {one.client}, group {group}"
        if other is None or repr(one.loss) != repr(other.loss):
            yield f"differs in client {one.client}, its loss"
    if there.model_sha256 != here.model_sha256:
        yield "differs on the server, after equal updates"
    if there.metrics != here.metrics:
        yield "differs in F1, of equal models"
