"""A small federation on disk, and clients that misbehave on purpose. What hosts need of it travels by value."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.messages import Assignment, ClientInfo, Collect, EvalTarget, Fleet, Update, WeightedSum
from relief_ray.core.streams import Streams
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.server.aggregation import by_samples, one_bucket
from relief_ray.support.errors import UserCodeError, UserError
from relief_ray.training.config import TrainerConfig
from relief_ray.training.job import Job

CHANNELS = (("acc", 2), ("gyro", 1), ("hr", 1))
SHAPE = InputShape(channels=CHANNELS, window=32, num_classes=3)
TINY = CnnConfig(conv1=2, conv2=2, steps=4, fusion=8)
OWNED = {"A": ("acc", "gyro", "hr"), "B": ("acc", "gyro"), "C": ("acc",)}
TYPES = {t: {f"type_{t.lower()}": 1.0} for t in OWNED}


def make_fleet(num_clients: int) -> Fleet:
    """Types A, B, C in turn; client ``n`` has ``8 + n`` windows."""
    clients = tuple(
        ClientInfo(id=n, name=f"subject-{n}", device=(t := "ABC"[n % 3]), modalities=OWNED[t], num_windows=8 + n)
        for n in range(num_clients)
    )
    return Fleet(clients=clients, modalities=tuple(m for m, _ in CHANNELS))


def make_job(folder: Path, num_clients: int = 4, **changes) -> Job:
    """A job on seeded noise in ``folder``."""
    random = np.random.default_rng(0)
    path = folder / "signal.npy"
    if not path.exists():
        np.save(path, random.normal(size=(500, 4)).astype(np.float32))

    def windows(number: int) -> WindowSet:
        return WindowSet(
            signal_path=str(path),
            starts=random.integers(0, 460, number),
            labels=random.integers(0, SHAPE.num_classes, number),
            subjects=np.arange(number).astype(np.int16) % 3,
            window=SHAPE.window,
            columns=(("acc", 0, 2), ("gyro", 2, 3), ("hr", 3, 4)),
            mean=np.zeros(4, np.float32),
            std=np.ones(4, np.float32),
        )

    fleet = make_fleet(num_clients)
    job = Job(
        build=partial(TINY.build, SHAPE, 0, "gemm"),
        layout=TINY.build(SHAPE, 0).layout,
        trainer=TrainerConfig(lr=1e-2, batch_size=4, missing="zero_input", engine="gemm"),
        fleet=fleet,
        clients=tuple(windows(c.num_windows) for c in fleet.clients),
        parts={"test": windows(25)},
        program=ClientProgram(),
        reduction=WeightedSum(weight=by_samples, bucket=one_bucket),
        streams=Streams(seed=0),
        pairwise_every=2,
    )
    return replace(job, **changes)


def start_models(job: Job) -> dict[str, dict[str, torch.Tensor]]:
    """The initial model, and a second one that some clients start from."""
    params = job.build().params()
    return {"global": params, "other": {j: p + 0.01 for j, p in params.items()}}


def make_tasks(job: Job, epochs: int = 1) -> list[Assignment]:
    """Every client trains what it can reach, keeps its head and starts from one of two models.

    It receives the whole model, or with ``Wire.reachable`` what it can reach.
    """
    layout = job.build().layout
    tasks = []
    for client in job.fleet.clients:
        chosen = layout.select(layout.accessible(client.modalities))
        up = {j: part for j, part in chosen.items() if j != "head.1"}
        keep = layout.select(["head.1"])
        view = "other" if client.id % 4 == 3 else "global"
        down = chosen if job.trainer.wire.reachable else layout.select()
        tasks.append(Assignment(client=client.id, down=down, train=chosen, up=up, keep=keep, epochs=epochs, view=view))
    return tasks


def make_states(job: Job) -> dict[int, dict[str, torch.Tensor]]:
    """Personal heads of some clients."""
    size = job.build().layout["head.1"].numel
    return {n: {"head.1": torch.full((size,), 0.1 * n)} for n in range(0, len(job.fleet), 2)}


def make_targets(job: Job) -> list[EvalTarget]:
    """The global model, and a client's own."""
    own = EvalTarget(label="client.2", client=2, keep=job.build().layout.select(["head.1"]), modalities=("acc",))
    return [EvalTarget(label="global"), own]


def same_round(a, b):
    """Two rounds with the same bits (measured seconds aside)."""
    assert {k: list(v) for k, v in a.reduced.sums.items()} == {k: list(v) for k, v in b.reduced.sums.items()}
    for bucket, groups in a.reduced.sums.items():
        for j, part in groups.items():
            other = b.reduced.sums[bucket][j]
            assert torch.equal(part.plain, other.plain) and torch.equal(part.weighted, other.weighted), j
            assert (part.weight, part.sq_norm, part.members) == (other.weight, other.sq_norm, other.members), j
    for mine, theirs in ((a.reduced.updates, b.reduced.updates), (a.pairwise, b.pairwise)):
        assert [u.receipt.assignment.client for u in mine] == [u.receipt.assignment.client for u in theirs]
        assert all(torch.equal(u.delta[j], v.delta[j]) for u, v in zip(mine, theirs, strict=True) for j in u.delta)
    assert [r.assignment for r in a.reduced.receipts] == [r.assignment for r in b.reduced.receipts]
    assert [r.work.loss for r in a.reduced.receipts] == [r.work.loss for r in b.reduced.receipts]
    assert [r.sq_norm for r in a.reduced.receipts] == [r.sq_norm for r in b.reduced.receipts]
    assert list(a.states) == list(b.states)
    assert all(torch.equal(s[k], b.states[c][k]) for c, s in a.states.items() for k in s)
    assert a.rejected == b.rejected
    return True


# Misbehaviour: each happens to client 2, once where it leaves a mark in ``folder`` first. ----------------------------


def _first_time(context: ClientContext, folder: Path) -> bool:
    if context.info.id != 2 or (folder / "mark").exists():
        return False
    (folder / "mark").touch()
    return True


def killed_once(folder: Path, context: ClientContext, task: Assignment) -> Assignment:
    """kill -9 in the middle of the first call."""
    if _first_time(context, folder):
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def killed_always(context: ClientContext, task: Assignment) -> Assignment:
    """Dies on every call."""
    if context.info.id == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def hangs_once(folder: Path, context: ClientContext, task: Assignment, usual_s: float = 0.0) -> Assignment:
    """Sleeps far beyond every deadline, the first time; all others take ``usual_s`` more than they train."""
    time.sleep(3600 if _first_time(context, folder) else usual_s)
    return task


def marks(folder: Path, context: ClientContext, task: Assignment) -> Assignment:
    """Leaves a mark for every client that begins, too slow to share a call; round 3 waits for a mark `go`."""
    (folder / f"{context.round}-{context.info.id}").touch()
    time.sleep(0.1)
    deadline = time.monotonic() + 60.0
    while context.round == 3 and not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return task


def raises(context: ClientContext, update: Update) -> Update:
    """A programming error in a client's own code."""
    if context.info.id == 2:
        raise ZeroDivisionError("no windows left")
    return update


def refuses(context: ClientContext, update: Update) -> Update:
    """A user's mistake that only the host can see."""
    raise UserError("signal.npy: not there, expected the cache; run `relief-ray data fetch`")


def cannot_be_built(context: ClientContext, update: Update) -> Update:
    """A fault of the user's own file that only the host meets."""
    raise UserCodeError("my.py, line 3, in build: ZeroDivisionError: division by zero")


def full_disk(context: ClientContext, update: Update) -> Update:
    """No room on the host's disk."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError as error:
        raise UserError("cache/signal.npy: no space left; free some space") from error


def poisoned(context: ClientContext, update: Update) -> Update:
    """Sends NaN."""
    if context.info.id == 2:
        return replace(update, delta={j: d * float("nan") for j, d in update.delta.items()})
    return update


COLLECT = Collect()
