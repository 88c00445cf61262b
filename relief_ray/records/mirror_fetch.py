"""Brings the copy of a folder of runs back to a disk, where locks, appends and renames work, and checks it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from relief_ray.records import checkpoint
from relief_ray.records.cells import PLAN_FILE, read_plan_file
from relief_ray.records.claims import CLAIMS_FILE, claims_digest
from relief_ray.records.mirror_store import MirrorStore
from relief_ray.records.run_folder import ERROR_FILE, ROUNDS_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.sync.mirror import MIRROR_FILE, Memory, read_claim, whole_generation
from relief_ray.records.tracking import brief
from relief_ray.support.errors import UserError, counted
from relief_ray.support.files import disk_errors, folder_atomic, stamp
from relief_ray.support.text import typed


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A copy that was brought here.

    Attributes:
        folder: where it lies now.
        num_runs: runs that were begun.
        num_bytes: bytes that were fetched.
        notes: lines for the user on what was damaged and left out.
    """

    folder: Path
    num_runs: int
    num_bytes: int
    notes: tuple[str, ...]

    def line(self, uri: str) -> str:
        """Line for the user."""
        size = f"{self.num_bytes / 2**20:.1f} MiB"
        return f"fetched {counted(self.num_runs, 'run')} ({size}) from {uri}, checked; records in {self.folder}"


def fetch(uri: str, out: Path) -> Fetched:
    """Bring the copy at ``uri`` to the folder ``out``, which appears complete or not at all.

    Of every run the newest whole checkpoints are kept that its ledger reaches; the run goes on from there.

    Raises:
        UserError: no copy is there, the store cannot be read, or ``out`` holds something already.
    """
    store = MirrorStore(uri)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        is_grid = (out / PLAN_FILE).exists() and read_plan_file(out / PLAN_FILE).kind == "grid"
        command = "relief-ray grid resume" if is_grid else "relief-ray resume"
        raise UserError(
            f"{out}: exists already; to go on with what is there: {command} {typed(out)}; to fetch {store.name} once "
            "more, name another folder with --out DIR"
        )
    sizes, identity = _look(store)
    names = _wanted(sizes)
    with disk_errors(out, "bring the copy here"), folder_atomic(out) as part:
        for name in names:
            _fetch_file(store, name, part)
        runs = [part / name for name in names if name.rpartition("/")[2] == RUN_FILE]
        notes = [*_check_plan(part), *(note for run in runs for note in _check_run(run.parent, part))]
        up = {name: (stamp(part / name), sizes[name]) for name in names if (part / name).exists()}
        Memory(id=identity, copies={store.name: up}).write(part)
    return Fetched(folder=out, num_runs=len(runs), num_bytes=sum(sizes[name] for name in names), notes=tuple(notes))


def _look(store: MirrorStore) -> tuple[dict[str, int], str]:
    """Sizes of the copy's files, and the name of the folder it is of.

    Raises:
        UserError: it cannot be read, or is no copy.
    """
    try:
        sizes = store.sizes()
        if MIRROR_FILE in sizes:
            return sizes, read_claim(store)["id"]
    except Exception as error:  # whatever a store raises
        raise UserError(f"{store.name}: cannot be read ({brief(error)}); expected the copy of a --mirror") from error
    raise UserError(f"{store.name}: no {MIRROR_FILE} there; expected the URI that --mirror named")


def _wanted(sizes: dict[str, int]) -> list[str]:
    """Files to bring: the plan's, and of every run that has its ``run.json`` all but halves of checkpoints."""
    wanted = [name for name in (CLAIMS_FILE, PLAN_FILE) if name in sizes]
    for run in [name for name in sizes if name == RUN_FILE or name.endswith(f"/{RUN_FILE}")]:
        cell = run.removesuffix(RUN_FILE)
        wanted += [cell + name for name in (RUN_FILE, ROUNDS_FILE, ERROR_FILE) if cell + name in sizes]
        saved = [name for name in sizes if name.startswith(f"{cell}{checkpoint.FOLDER}/")]
        folders = {name.rpartition("/")[0] for name in saved}
        pairs = [{f"{folder}/{name}" for name in checkpoint.FILES} for folder in folders]
        wanted += sorted(name for pair in pairs if pair <= set(saved) for name in pair)
    return wanted


def _fetch_file(store: MirrorStore, name: str, part: Path) -> None:
    try:
        store.fetch(name, part / name)
    except Exception as error:  # whatever a store raises
        raise UserError(
            f"{store.name}/{name}: cannot be fetched ({brief(error)}); nothing was kept; try again"
        ) from error


def _check_plan(part: Path) -> list[str]:
    """Check that the plan can be read and has its claims; return what is wrong with them.

    Raises:
        UserError: it cannot be read.
    """
    path, file = part / PLAN_FILE, part / CLAIMS_FILE
    claims = read_plan_file(path).claims if path.exists() else None
    if claims is None or (file.exists() and claims_digest(file.read_bytes()) == claims.sha256):
        return []
    return [f"{CLAIMS_FILE}: not the claims that {path.name} names (sha256 {claims.sha256[:12]})"]


def _check_run(folder: Path, part: Path) -> list[str]:
    """Check a run's record, ledger and checkpoints, and remove checkpoints that cannot be gone on from.

    Raises:
        UserError: its record or its ledger is damaged.
    """
    read_run(folder)
    last = max(read_rounds(folder).numbers, default=-1)
    notes = []
    for generation in checkpoint.generations(folder):
        name = generation.relative_to(part)
        if whole_generation(generation) is None:
            notes.append(f"{name}: does not match its sha256; left out")
        elif checkpoint.round_of(generation) > last:
            notes.append(f"{name}: the ledger ends with round {last}; left out")
        else:
            continue
        shutil.rmtree(generation)
    return notes
