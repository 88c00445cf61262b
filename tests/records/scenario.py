"""A small run driven through the real ledger, checkpoints and capture, and the ways to interrupt it.

Loaded by ``conftest.py`` as the fixture ``scenario``; also a program, so that what is killed is a process of its own.
It forks, because importing torch for each of a hundred crash points would take minutes. ``serve`` reads commands, a
JSON list a line, and runs each in a forked child; ``hold ROOT`` alone is started directly.
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace

import torch

from relief_ray.core.federated import RoundResult
from relief_ray.core.groups import WHOLE, GroupLayout, ParamGroup, Part, pack
from relief_ray.core.messages import (
    Assignment,
    ClientCost,
    Receipt,
    Reduced,
    RoundCost,
    ServerState,
    StageTimes,
    Trained,
    Work,
)
from relief_ray.core.streams import Streams
from relief_ray.experiment.recording import round_record
from relief_ray.records import checkpoint
from relief_ray.records.checkpoint import Binding, Checkpoint, CheckpointStateStore
from relief_ray.records.identity import cell_id, config_hash, machine_facts
from relief_ray.records.run_folder import RunFolder, restore
from relief_ray.records.schema import RoundRecord, RunRecord, Totals
from relief_ray.records.sync.mlflow import sync
from relief_ray.strategies.relief.budget import diagnose
from relief_ray.support.errors import LeftOut, UserError

CONFIG = {"strategy": {"name": "toy"}, "seed": 3}
BINDING = Binding(config_hash=config_hash(CONFIG), layout_digest="layout", engine="naive")
ROUNDS = 4
WRITES = ("write", "pwrite")
CHANGES = ("fsync", "replace", "rename", "mkdir", "ftruncate", "unlink", "rmdir")
MODELS = ("fusion.A.acc", "fusion.B")
LAYOUT = GroupLayout(
    ParamGroup(id=j, role="fusion_b", modality=None, layer=None, tensors=pack([("w", (5, 1), "lora_a")]))
    for j in MODELS
)
# What a round's record takes from a run's setup.
SETUP = SimpleNamespace(
    received=SimpleNamespace(underflow=0.0),
    layout=LAYOUT,
    num_own_values=LAYOUT.numel,
    fleet=(0, 1, 2),
    reference={"split": RoundCost(clients=(), round_s=3.0, energy_j=30.0)},
    strategy=SimpleNamespace(insight=SimpleNamespace(diagnose=diagnose)),
    config=SimpleNamespace(costs=SimpleNamespace(planning_time="split"), strategy=SimpleNamespace(pooled=False)),
)


def make_run(**changes: object) -> RunRecord:
    facts = {
        "id": "5eed",
        "cell": cell_id(CONFIG, "data"),
        "name": "toy run",
        "strategy": "toy",
        "method": {"name": "toy", "title": "Toy", "kind": "own"},
        "created": "2025-01-01T00:00:00Z",
        "groups": MODELS,
        "config": CONFIG,
        "config_hash": BINDING.config_hash,
        "data_digest": "data",
        "data_origin": "SYNTHETIC",
        "code_version": "0.1.0",
        "source_digest": "source",
        "machine": machine_facts(),
        "engine": "naive",
        "planning_model": "split",
    }
    return RunRecord.model_validate({**facts, **changes})


def first_state() -> ServerState:
    models = {"global": {j: torch.zeros(5) for j in MODELS}}
    return ServerState(
        models=models, tensors={"d_bar": torch.zeros(2, dtype=torch.float64)}, facts={"clusters": [[0], [1]]}
    )


def receipt(client: int, round_: int) -> Receipt:
    train = {"fusion.A.acc": WHOLE, "fusion.B": Part(kinds=frozenset({"lora_a"}), rank=2)}
    task = Assignment(client=client, down=train, train=train, up=train, epochs=1, args={"mu": 0.1})
    measured = StageTimes(forward_s=0.1 + 0.2, backward_s=1 / 3)
    work = Work(num_windows=10 + client, epochs=1, num_steps=2, engine="naive", loss=1 / round_, measured=measured)
    stats = {"importance": torch.tensor([0.1, 0.2]), "large": torch.arange(100.0)}
    return Receipt(assignment=task, work=work, bytes_down=100, bytes_up=40 + client, stats=stats)


def next_round(state: ServerState, store: CheckpointStateStore, round_: int) -> RoundResult:
    """The next model depends on the last one, on the personal states and on the round's stream."""
    draw = torch.rand(5, generator=Streams(seed=3).torch("toy", round_))
    personal = {c: {"head": store.load(c).get("head", torch.zeros(3)) * 0.5 + draw[:3] + c} for c in (0, 1)}
    shift = sum(float(p["head"].sum()) for p in personal.values())
    models = {"global": {j: theta * 0.9 + draw + shift for j, theta in state.models["global"].items()}}
    after = ServerState(models=models, tensors={"d_bar": state.tensors["d_bar"] + draw[:2]}, facts=dict(state.facts))
    for client, head in personal.items():
        store.stage(client, head)
    receipts = tuple(receipt(c, round_) for c in (0, 1))
    costs = tuple(ClientCost(client=c, times=StageTimes(forward_s=1.5), wait_s=0.25 * c, energy_j=7.5) for c in (0, 1))
    trained = Trained(
        reduced=Reduced(sums={}, receipts=receipts),
        states=personal,
        rejected={2: LeftOut(cause="timeout", why="too late")},
    )
    cost = {"split": RoundCost(clients=costs, round_s=0.5 + round_, energy_j=15.0)}
    tasks = tuple(r.assignment for r in receipts)
    return RoundResult(state=after, tasks=tasks, trained=trained, charged=receipts, costs=cost)


def recorded(result: RoundResult, round_: int, before: Mapping[str, Totals]) -> RoundRecord:
    """The record of a round by the fixed clock of this scenario."""
    return round_record(
        SETUP,
        SimpleNamespace(round=round_, participants=SETUP.fleet),
        result,
        metrics={},
        wall_s=0.5,
        ended_unix_s=1.7e9 + round_,
        before=before,
        deadline_s=None,
        speedup_paper=None,
        left_out={},
        warnings=(),
    )


def drive(path: Path, rounds: int = ROUNDS, saved: Callable[[int], None] = lambda round_: None) -> None:
    """Runs, or goes on with, the toy run until round ``rounds``: record, commit, checkpoint."""
    fresh = not (path / "run.json").exists()
    with RunFolder.create(path, make_run()) if fresh else RunFolder.resume(path) as folder:
        restored = restore(folder, BINDING)
        at = restored.checkpoint or Checkpoint(round=0, state=first_state())
        store, state = CheckpointStateStore(at.clients), at.state
        totals = restored.rounds[-1].totals if restored.rounds else {}
        folder.update(status="running", num_resumes=folder.run.num_resumes + (not fresh))
        for round_ in range(at.round + 1, rounds + 1):
            result = next_round(state, store, round_)
            record = recorded(result, round_, totals)
            store.commit()
            folder.append(record)
            state, totals = result.state, record.totals
            checkpoint.save(path, Checkpoint(round=round_, state=state, clients=store.committed), BINDING)
            saved(round_)
        folder.update(status="done")


def outcome(path: Path) -> tuple[bytes, bytes]:
    """Returns what two equal runs share to the bit: the ledger and the last checkpoint's tensors."""
    (newest, *_) = checkpoint.generations(path)
    return (path / "rounds.jsonl").read_bytes(), (newest / "state.safetensors").read_bytes()


@contextmanager
def intercepted(strike: Callable[[int, str, Callable[[], None]], None]) -> Iterator[None]:
    """Calls ``strike(number, name, half)`` before each change of the file system; ``half()`` does half of a write."""
    count, real = 0, {name: getattr(os, name) for name in (*WRITES, *CHANGES)}

    def wrap(name: str) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal count
            count += 1

            def half() -> None:
                if name in WRITES:
                    fd, data, *rest = args
                    real[name](fd, bytes(data)[: len(data) // 2], *rest)

            strike(count, name, half)
            return real[name](*args, **options)

        return call

    # Python 3.10's `Path` keeps the functions that it found when it was imported, in a class of its own.
    kept = getattr(pathlib, "_NormalAccessor", object)
    own = {name: vars(kept)[name] for name in real if name in vars(kept)}
    for name in real:
        setattr(os, name, wrap(name))
    for name in own:
        setattr(kept, name, staticmethod(getattr(os, name)))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        for name, function in own.items():
            setattr(kept, name, function)


def points(path: Path) -> list[tuple[str, int]]:
    """Every change that a drive of ``path`` makes, and the last round that was saved before it."""
    seen: list[tuple[str, int]] = []
    last = [max((int(p.name[6:]) for p in checkpoint.generations(path)), default=0)]
    with intercepted(lambda number, name, half: seen.append((name, last[0]))):
        drive(path, saved=lambda round_: last.__setitem__(0, round_))
    return seen


def forked(action: Callable[[], None]) -> int:
    """The wait status of a child that does ``action``."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            action()
            code = 0
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def killed_at(path: Path, at: int, halved: bool) -> None:
    def strike(number: int, name: str, half: Callable[[], None]) -> None:
        if number == at:
            if halved:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    with intercepted(strike):
        drive(path)


def sweep(root: Path, template: Path | None) -> list[dict[str, object]]:
    """Kills one child at every change, and in the middle of every write; gives one row per point."""

    def fresh(name: str) -> Path:
        if template is not None:
            shutil.copytree(template, root / name)
        return root / name

    crash_points = points(fresh("counted"))
    rows: list[dict[str, object]] = []
    for number, (name, saved) in enumerate(crash_points, 1):
        for halved in (False, True) if name in WRITES else (False,):
            path = fresh(f"{number:03d}{'h' if halved else ''}-{name}")
            status = forked(lambda path=path, number=number, halved=halved: killed_at(path, number, halved))
            signal_ = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            rows.append({"path": str(path), "event": name, "halved": halved, "saved": saved, "signal": signal_})
    return rows


def disk_full(at: int) -> Callable[[int, str, Callable[[], None]], None]:
    """From change number ``at`` on nothing can grow; deleting and shrinking still work."""

    def strike(number: int, name: str, half: Callable[[], None]) -> None:
        if number >= at and name not in ("unlink", "rmdir", "ftruncate"):
            if number == at:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return strike


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except UserError as error:
        return str(error)
    return "not refused"


def synced_together(database: Path, folders: tuple[str, ...]) -> list[int]:
    """Syncs every folder in a process of its own, all at once; their exit states."""
    pids = []
    for folder in folders:
        if (pid := os.fork()) == 0:
            said = refusal(lambda folder=folder: sync(Path(folder), f"sqlite:///{database}"))
            os._exit(0 if said == "not refused" else 1)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]


def main(command: str, root: Path, *rest: str) -> None:
    if command == "sweep":
        print(json.dumps(sweep(root, Path(rest[0]) if rest else None)))
    elif command == "hold":
        with RunFolder.resume(root):
            print("holding", flush=True)
            sys.stdin.read()
    elif command == "unprivileged":
        if os.getuid() == 0:
            os.setuid(65534)
        print(refusal(lambda: RunFolder.create(root, make_run())))
    elif command == "limited":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (int(rest[0]), int(rest[0])))
        print(refusal(lambda: drive(root)))
    elif command == "sync-together":
        print(json.dumps(synced_together(root, rest)))
    elif command == "sync-killed":
        from relief_ray.records.sync import mlflow as mlflow_store

        kill = lambda *args: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        if rest[0] == "before-watermark":
            mlflow_store.write_sync = kill
        else:
            mlflow_store.os.replace = kill
        sync(root)


def answer(command: str, *words: str) -> dict[str, object]:
    """Runs a command in a forked child: its return code and what it printed."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        if (pid := os.fork()) == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            code = 1
            try:
                main(command, Path(words[0]), *words[1:])
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = {name: (file.seek(0), file.read())[1] for name, file in (("stdout", output), ("stderr", errors))}
        return {"returncode": code, **texts}


def serve() -> None:
    for line in sys.stdin:
        command, *words = json.loads(line)
        if command.startswith("sync"):
            import mlflow  # noqa: F401  (once, before any fork)
        print(json.dumps(answer(command, *words)), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "serve":
        serve()
    else:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
