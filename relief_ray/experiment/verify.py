"""Computes the last round of a run with a user's own code once more, in a fresh process and its clients backwards.

What then differs depends on the process, the time or the order of clients: no run of such code can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.experiment.experiment import ignore, run_opened
from relief_ray.experiment.lifecycle import reopen
from relief_ray.plugins.blame import reason, unchanged
from relief_ray.plugins.load import importable_name
from relief_ray.records.checkpoint import FOLDER, generations, round_of
from relief_ray.records.run_folder import ROUNDS_FILE, RUN_FILE, RunFolder, read_rounds, read_run
from relief_ray.records.schema import VERIFIED, RoundRecord, page_of
from relief_ray.support.errors import UserError
from relief_ray.support.files import write_atomic
from relief_ray.support.fresh import Asker, call_fresh
from relief_ray.training.executor import SerialExecutor


def is_verified(config: ExperimentConfig) -> bool:
    """Whether the runs of a configuration are computed once more at their end (``runtime.verify_own``)."""
    return bool(config.modules()) and config.runtime.verify_own and not config.runtime.physical


def verify(folder: Path, stop: Callable[[], bool]) -> str:
    """Compute the last round of a finished run once more; keep in ``run.json`` what came of it, and return it."""
    last = read_rounds(folder)[-1]
    try:
        again = _in_fresh_process(folder, last, stop)
        verdict = VERIFIED if again is None else next(_differences(last, again), VERIFIED)
    except Exception as error:
        verdict = f"not verified: {reason(error)}"
    with RunFolder.resume(folder) as opened:
        opened.update(own_code=verdict)
    return verdict


def _in_fresh_process(folder: Path, last: RoundRecord, stop: Callable[[], bool]) -> RoundRecord:
    """The last round, computed there.

    Raises:
        UserError: it cannot be compared.
    """
    if any(left.cause != "update" for left in last.left_out.values()):
        raise UserError(f"round {last.round} went on without a client that was lost")
    with unchanged():
        environment = dict(os.environ)
    again = call_fresh(
        _once_more, folder.resolve(), hear=ignore, stop=stop, environment=environment, main=importable_name("__main__")
    )
    if again.round != last.round:
        raise UserError("it was stopped")
    return again


def _once_more(asker: Asker, folder: Path) -> RoundRecord:
    """Compute the last round of a copy of the run.

    Raises:
        UserError: the run's state before it is not there.
    """
    run, last = read_run(folder), read_rounds(folder).numbers[-1]
    before = [saved for saved in generations(folder) if round_of(saved) == last - 1]
    if not before and last > run.first_round:
        raise UserError(f"{folder}: no checkpoint of round {last - 1}, which the last round goes on from")
    with TemporaryDirectory(prefix="relief-verify-") as place:
        copy = Path(place) / "run"
        for saved in before:
            shutil.copytree(saved, copy / FOLDER / saved.name)
        write_atomic(copy / RUN_FILE, page_of(run.model_copy(update={"status": "interrupted"})))
        shutil.copy(folder / ROUNDS_FILE, copy)
        runtime = parse(run.config, str(folder)).runtime.model_copy(update={"mode": "inline", "address": None})
        setup, opened = reopen(copy, runtime=runtime, other_code=True)
        opened.close()
        run_opened(setup, copy, partial(SerialExecutor, backwards=True), asker.stopping.is_set)
        return read_rounds(copy)[-1]


def _differences(there: RoundRecord, here: RoundRecord) -> Iterator[str]:
    """What differs between two computations of a round, the first client and group first."""
    by_client = {client.client: client for client in here.clients}
    for one in there.clients:
        other = by_client.get(one.client)
        where = f"differs in client {one.client}"
        if other is None or one.sq_norm.keys() != other.sq_norm.keys():
            yield f"{where}, which trained or sent something else"
            continue
        for group, squares in one.sq_norm.items():
            if squares != other.sq_norm[group]:
                yield f"{where}, group {group}"
        if repr(one.loss) != repr(other.loss):
            yield f"{where}, its loss"
    if there.model_sha256 != here.model_sha256:
        yield "differs on the server: the clients' updates are the same, the model is not"
    if there.metrics != here.metrics:
        yield "differs in the test: the model is the same, its F1 is not"
