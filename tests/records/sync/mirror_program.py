"""Runs with a copy, killed at every single change of the copy: by ``fork`` and SIGKILL, in a process without threads.

``sweep SCHEME ROOT EVERY`` copies after every checkpoint; ``moments SCHEME ROOT EVERY`` copies once, at every change of
the run's own folder; ``threads SCHEME ROOT EVERY`` copies in a thread beside the run. After each kill the copy is
fetched, gone on with and compared with a run that nothing disturbed. Prints a JSON row per kill.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from relief_ray.records.run_folder import read_run
from relief_ray.records.sync.mirror import Mirror, fetch
from relief_ray.records.sync.sender import Senders
from tests.records.scenario import drive, forked, intercepted, outcome, points


class Counted(LocalFileSystem):
    """A store on the disk, as ``halves://``: it counts its changes and can end the process in the middle of one."""

    protocol = "halves"
    count, die_at = 0, 0

    def _change(self, half: Callable[[], None] = lambda: None) -> None:
        Counted.count += 1
        if Counted.count == Counted.die_at:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        target = self._strip_protocol(path)
        self._change()
        self._change(lambda: super(Counted, self).pipe_file(target, value[: len(value) // 2]))
        super().pipe_file(target, value)
        self._change()

    def mv(self, path1: str, path2: str, **options: object) -> None:
        self._change()
        super().mv(path1, path2)

    def rm_file(self, path: str) -> None:
        self._change()
        super().rm_file(path)


class Objects(Counted):
    """A store of objects, as ``s3://``: one is there once all of it is."""

    protocol = "s3"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        target = Path(self._strip_protocol(path))
        self._change()
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"...{target.name}")
        beside.write_bytes(value)
        beside.rename(target)
        self._change()

    def mv(self, path1: str, path2: str, **options: object) -> None:
        raise AssertionError("objects are not renamed")


fsspec.register_implementation("halves", Counted, clobber=True)
fsspec.register_implementation("s3", Objects, clobber=True)


def uri_of(scheme: str, folder: Path) -> str:
    return f"{scheme}://{folder}"


def mirrored(path: Path, uri: str) -> None:
    """Drives the run in ``path/run`` and copies ``path`` after every checkpoint and at the end."""
    path.mkdir(parents=True, exist_ok=True)
    mirror = Mirror(path, None, uri)
    mirror.connect()
    drive(path / "run", saved=lambda round_: mirror.send() and None)
    mirror.send()
    mirror.close()


def beside(path: Path, uri: str) -> None:
    """Drives the run with the thread that a command has."""
    path.mkdir(parents=True, exist_ok=True)
    mirror = Mirror(path, None, uri)
    mirror.interval_s = 0.0
    senders = Senders([mirror], lambda note: None)
    drive(path / "run", saved=lambda round_: time.sleep(0.01))
    senders.finish()


def once(path: Path, uri: str, at: int) -> None:
    """Drives the run and copies once, before its change number ``at``; then the machine is gone."""
    path.mkdir(parents=True, exist_ok=True)

    def strike(number: int, name: str, half: Callable[[], None]) -> None:
        if number == at:
            mirror = Mirror(path, None, uri)
            mirror.connect()
            mirror.send()
            os.kill(os.getpid(), signal.SIGKILL)

    with intercepted(strike):
        drive(path / "run")


def go_on(copy: str, place: Path) -> tuple[bytes, bytes]:
    """What becomes of the copy where it is fetched and gone on with; the copy is kept up to date."""
    fetched = fetch(copy, place)
    mirrored(place, copy)
    assert read_run(place / "run").status == "done"
    again = fetch(copy, place.with_name(f"{place.name}-again"))
    assert outcome(again.folder / "run") == outcome(place / "run"), "the copy is as its folder"
    shutil.rmtree(again.folder)
    assert fetched.num_runs in (0, 1)
    return outcome(place / "run")


def row(root: Path, scheme: str, number: int, action: Callable[[Path, str], None], golden: object) -> dict[str, object]:
    """Kills one run at a change, goes on with its copy, and says what came out."""
    path, copy = root / f"{number:03d}", uri_of(scheme, root / f"{number:03d}-copy")
    status = forked(lambda: action(path, copy))
    signed = (root / f"{number:03d}-copy" / "mirror.json").exists()
    back = root / f"{number:03d}-back"
    facts: dict[str, object] = {"number": number, "signal": status, "signed": signed}
    if signed:
        before = fetch(copy, back.with_name(f"{back.name}-look"))
        rounds = before.folder / "run" / "rounds.jsonl"
        facts["rounds"] = rounds.read_bytes().count(b"\n") if rounds.exists() else 0
        facts["notes"] = before.notes
        facts["equal"] = go_on(copy, back) == golden
    return facts


def dying(action: Callable[[Path, str], None], at: int) -> Callable[[Path, str], None]:
    def act(path: Path, uri: str) -> None:
        Counted.count, Counted.die_at = 0, at
        action(path, uri)

    return act


def main(command: str, scheme: str, root: Path, every: int = 1) -> list[dict[str, object]]:
    drive(root / "golden")
    golden = outcome(root / "golden")
    if command == "moments":
        numbers = range(1, len(points(root / "counted")) + 1, every)
        return [row(root, scheme, n, lambda p, u, n=n: once(p, u, n), golden) for n in numbers]
    action = mirrored if command == "sweep" else beside
    Counted.count = Counted.die_at = 0
    mirrored(root / "whole", uri_of(scheme, root / "whole-copy"))
    total, Counted.count = Counted.count, 0
    return [row(root, scheme, n, dying(action, n), golden) for n in range(1, total + 1, every)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, scheme, place, *rest = sys.argv[1:]
    print(json.dumps(main(command, scheme, Path(place), *map(int, rest))))
