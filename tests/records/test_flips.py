"""Flipped bits and cuts, drawn at random over all files of a run, of its plan and of a data cache: none is silent.

Each damage must be refused by a message that names the file, or be told in a status, or change nothing that is read.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relief_ray.data import dataset as cached
from relief_ray.data.loader import Recording
from relief_ray.data.registry import get_spec
from relief_ray.data.source import Source
from relief_ray.records import checkpoint
from relief_ray.records.cells import (
    CLAIMS_FILE,
    PlanFile,
    PlannedCell,
    PlannedClaims,
    look,
    read_error,
    read_plan_file,
    write_plan_file,
)
from relief_ray.records.checkpoint import Binding
from relief_ray.records.committed import condense, read_committed, write_committed
from relief_ray.records.identity import state_sha256, tensors_sha256
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.sync.mirror import MEMORY_FILE, Memory
from relief_ray.records.sync.mlflow import Exported, SyncState, read_sync, write_sync
from relief_ray.report.claims import registry_of
from relief_ray.studies.plan import keep_error
from relief_ray.support.errors import UserError
from relief_ray.support.files import digest_files, sha256_of
from tests.conformance.cases import config_of, drive
from tests.sealed import change_run, page, put_page
from tune_configs.search import read_tuned

CLAIMS = "data: dsa\nsplit: held_out_subject\nclaims:\n  - {first: v1, second: fedavg}\n"


@dataclass(frozen=True, kw_only=True)
class File:
    """A file, what is read of it, and the answers that tell of damage or make it good without an error."""

    path: Path
    read: Callable[[], object]
    is_told: Callable[[Any], bool] = lambda answer: False


def of_run(folder: Path) -> list[File]:
    """The files of a finished run and of its checkpoints."""

    def rounds() -> object:
        if (state := look(folder)).status != "done":
            raise UserError(state.why)
        return tuple(read_rounds(folder))

    def generation(path: Path) -> Callable[[], object]:
        facts = page(path / checkpoint.MANIFEST_FILE)
        binding = Binding(**{name: facts[name] for name in ("config_hash", "layout_digest", "engine")})

        def read() -> object:
            point = checkpoint.load(folder, binding, checkpoint.round_of(path))
            assert point is not None
            clients = {c: tensors_sha256(tensors) for c, tensors in point.clients.items()}
            return point.round, state_sha256(point.state), clients, point.averages.num_rounds, point.tally

        return read

    write_sync(folder, {"sqlite:///a.db": Exported(run_id="1", step=3)})
    saved = [
        File(path=path / name, read=generation(path))
        for path in checkpoint.generations(folder)
        for name in checkpoint.FILES
    ]
    return [
        File(path=folder / "run.json", read=lambda: read_run(folder)),
        File(path=folder / "rounds.jsonl", read=rounds),
        # The store is asked what it has in any case.
        File(path=folder / "sync.json", read=lambda: read_sync(folder), is_told=lambda read: read == SyncState()),
        *saved,
    ]


def of_interrupted(folder: Path) -> File:
    """The ledger of a run that is not finished and that nobody computes; a torn line is told with its status."""

    def read() -> tuple[str, object]:
        if (state := look(folder)).status != "interrupted":
            raise UserError(state.why)
        return state.why, tuple(read_rounds(folder))

    change_run(folder, status="interrupted")
    return File(path=folder / "rounds.jsonl", read=read, is_told=lambda answer: "was torn" in answer[0])


def of_plan(folder: Path, run: Path) -> list[File]:
    """The files beside the runs: the plan, claims, results, choices, an error, what a copy has."""
    coverage = {"window_s": 5.0, "classes": ["a"], "train": [2], "validation": [1], "test": [1], "clients": []}
    record, failed = read_run(run).model_copy(update={"coverage": coverage}), folder / "failed"
    (folder / CLAIMS_FILE).write_text(CLAIMS)
    claims = PlannedClaims(sha256=sha256_of(CLAIMS), at="2026-01-01T00:00:00Z")
    cell = PlannedCell(folder=run.name, label="relief", method=record.method, config=record.config, hash="1")
    write_plan_file(folder / "plan.json", PlanFile(kind="grid", name="g", cells=(cell,), title="G", claims=claims))
    assert registry_of([folder]).num_claims == 1
    small = write_committed(folder / "small" / "cells.json", "t", [("a", condense(record, tuple(read_rounds(run))))])
    keep_error(failed, "a reason")
    Memory(copies={"file:///there": {"run.json": ("1:2:3", 7)}}).write(folder)
    choice = {"kind": "tuned", "parameters": ["training.lr"], "num_tries": 1, "f1_validation": 0.5}
    frozen = {"dataset": "dsa", "fold": 0, "backbone": "cnn", "method": "relief", "settings": {"training.lr": 0.002}}
    frozen |= {"num_cells": 1, "choice": choice}
    put_page(folder / "tuned.json", {"grid": "g", "score": "F1", "choices": [frozen]})

    def registry() -> object:
        known = registry_of([folder])
        if known.problems:
            raise UserError(" ".join(known.problems))
        return known

    return [
        File(path=folder / "plan.json", read=lambda: read_plan_file(folder / "plan.json")),
        File(path=folder / CLAIMS_FILE, read=registry),
        File(path=small, read=lambda: read_committed(small)),
        File(path=folder / "tuned.json", read=lambda: read_tuned(folder / "tuned.json")),
        File(path=failed / "error.json", read=lambda: read_error(failed), is_told=lambda why: "damaged" in str(why)),
        # Then everything is copied once more.
        File(path=folder / MEMORY_FILE, read=lambda: Memory.read(folder), is_told=lambda read: read.copies == {}),
    ]


def of_cache(entry: Path, root: Path) -> list[File]:
    """The files of a cache entry, and the remembered digests of raw files."""

    def arrays() -> object:
        cached._CHECKED.clear()  # as a new process has it
        read = cached.read_entry(entry)
        signal = np.load(read.signal_path, allow_pickle=False)
        arrays = [a.tobytes() for a in (signal, read.labels, read.bouts, read.filled)]
        return arrays, read.origin, read.facts, read.sensors, read.signal_sha256

    def digests() -> object:
        return digest_files({"raw": root / "raw"}, root / "stamps.json")

    (root / "raw").write_bytes(bytes(1000))
    digests()
    names = ("signal.npy", "labels.npy", "bouts.npy", "filled.npy", "meta.json")
    return [*(File(path=entry / name, read=arrays) for name in names), File(path=root / "stamps.json", read=digests)]


def flipped(data: bytes, draw: random.Random) -> bytes:
    """The bytes with one bit changed."""
    changed, bit = bytearray(data), draw.randrange(8 * len(data))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    """The beginning of the bytes, at least one fewer."""
    return data[: draw.randrange(len(data))]


def judged(file: File, damaged: bytes) -> str:
    """What reading a damaged file comes to; the file is whole again after that."""
    intact, data = file.read(), file.path.read_bytes()
    file.path.write_bytes(damaged)
    try:
        answer = file.read()
    except UserError as error:
        named = file.path.parent.name if file.path.parent.parent.name == "checkpoints" else file.path.name
        return "refused" if named in str(error) and "; " in str(error) else f"without file or fix: {error}"
    finally:
        file.path.write_bytes(data)
    return "told" if file.is_told(answer) else "harmless" if answer == intact else "silent"


def sweep(files: list[File], num_flips: int, num_cuts: int, seed: int) -> Counter[tuple[str, str]]:
    """Number of verdicts by kind of damage; files are drawn evenly, so that small ones are hit too."""
    draw, verdicts = random.Random(seed), Counter[tuple[str, str]]()
    for kind, damage, number in (("flip", flipped, num_flips), ("cut", cut, num_cuts)):
        for _ in range(number):
            file = draw.choice(files)
            data = file.path.read_bytes()
            verdict = judged(file, damage(data, draw))
            assert verdict in ("refused", "told", "harmless"), (kind, file.path.name, verdict)
            verdicts[kind, verdict] += 1
    return verdicts


def test_a_sample_of_flips_and_cuts_is_never_silent(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    change_run(run, config=read_run(run).config | {"rounds": 4})
    signal = np.arange(120, dtype=np.float32).reshape(40, 3)
    recording = Recording(
        subject=1,
        signal=signal,
        labels=np.arange(40, dtype=np.int16),
        bouts=np.array([[0, 40]]),
        facts={"longest_walk_s": 0.5},
        filled=signal > 90,
    )
    spec = replace(get_spec("mhealth"), modalities=(("acc", 3),), max_abs=())
    cached.store(spec, [recording], Source(path=tmp_path), tmp_path / "entry")
    files = [*of_run(run), *of_plan(tmp_path, run), *of_cache(tmp_path / "entry", tmp_path)]
    files += [of_interrupted(Path(shutil.copytree(run, tmp_path / "interrupted")))]
    verdicts = sweep(files, 60, 20, seed=1)
    assert sum(verdicts.values()) == 80 and verdicts["flip", "refused"] > 30


@pytest.mark.slow
def test_a_thousand_flips_and_200_cuts_are_never_silent(run_cache, tmp_path, capsys):
    """Over all files of a real run and of the data that it was computed on."""
    run = tmp_path / "relief-s0"
    drive(config_of("relief"), run)
    (entry,) = cached.entries("dsa_mini")
    entry = Path(shutil.copytree(entry, tmp_path / "entry"))
    files = [*of_run(run), *of_plan(tmp_path, run), *of_cache(entry, tmp_path)]
    files += [of_interrupted(Path(shutil.copytree(run, tmp_path / "interrupted")))]
    verdicts = sweep(files, 1000, 200, seed=2)
    with capsys.disabled():
        size = sum(file.path.stat().st_size for file in files)
        print(f"\n{len(files)} files, {size} bytes: {dict(sorted(verdicts.items()))}")
    assert sum(verdicts.values()) == 1200
