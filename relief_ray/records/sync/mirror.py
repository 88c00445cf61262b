"""A copy of a folder of runs at a URI; the runs can be continued from it at any moment.

What changed is copied in the order in which a run commits a round: its lines of the ledger, then the checkpoint, then
what the new checkpoint replaces goes, and ``run.json`` comes last. It is read the other way round. So whenever the
copying ends, the copy has a ledger with the rounds of its newest whole checkpoint.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pydantic import Field

from relief_ray.records import checkpoint
from relief_ray.records.cells import CLAIMS_FILE, PLAN_FILE, read_plan_file
from relief_ray.records.run_folder import ERROR_FILE, ROUNDS_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import Record, page_of, read_page
from relief_ray.records.sync.sender import Copy, Target, brief
from relief_ray.support.errors import UserError, counted, first_line
from relief_ray.support.files import (
    disk_errors,
    folder_atomic,
    read_whole,
    refuse_links,
    sha256_of,
    stamp,
    write_atomic,
)
from relief_ray.support.masking import is_chain, mask_logs, mask_text
from relief_ray.support.process import memory_bytes
from relief_ray.support.text import now, typed

# Stores whose single put is atomic; the others can rename.
_OBJECT_STORES: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "tos", "r2", "hf", "memory"}
)
PART: Final = ".part"
_EXAMPLES: Final = "SCHEME://.., e.g. s3://bucket/folder or file:///mnt/disk/folder"


def is_uri(text: str) -> bool:
    """True for ``s3://bucket/runs``, False for a path."""
    return "://" in text[1:]


class MirrorStore:
    """Files below a URI (``file``, ``s3``, ``gs``, ``abfs``, ``sftp``, ..) through fsspec, by names relative to it.

    They are there whole or not: object stores show an object once all of it has arrived; elsewhere a file is written
    beside its name and renamed.

    Attributes:
        name: the URI without credentials, for messages.
    """

    def __init__(self, uri: str) -> None:
        """Choose the store; nothing is connected yet, as far as its library leaves that to us.

        Raises:
            UserError: no URI, an unknown scheme, or a scheme whose library is not installed.
        """
        self.name = mask_text(uri.rstrip("/"))
        if not is_uri(uri) or is_chain(uri):
            raise UserError(f"runtime.mirror = {self.name!r}: not the address of one store; expected {_EXAMPLES}")
        mask_logs()
        import fsspec  # seldom needed: the command line is quick without it

        try:
            self._fs, root = fsspec.core.url_to_fs(uri.rstrip("/"))
        except Exception as error:  # whatever a store raises
            raise UserError(
                f"runtime.mirror = {self.name!r}: cannot be used ({first_line(error)}); expected {_EXAMPLES}, "
                "with the library for that kind of store installed in this environment"
            ) from error
        self._root = str(root).rstrip("/")
        self._puts_whole = uri.partition("://")[0] in _OBJECT_STORES

    def sizes(self) -> dict[str, int]:
        """Bytes of all files by name, including leftovers of killed writers; empty if nothing is stored yet."""
        self._fs.invalidate_cache()
        try:
            listed: Mapping[str, Mapping[str, Any]] = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return {}
        # Listings have their paths without a leading slash where the root has one, or the other way round.
        start = len(self._root.lstrip("/")) + 1
        return {path.lstrip("/")[start:]: int(info["size"] or 0) for path, info in listed.items()}

    def read(self, name: str) -> bytes:
        """Read a file.

        Raises:
            FileNotFoundError: there is none.
        """
        return bytes(self._fs.cat_file(self._path(name)))

    def write(self, name: str, data: bytes) -> None:
        """Replace a file whole: whoever reads it sees the old contents or the new ones."""
        path = self._path(name)
        if self._puts_whole:
            self._fs.pipe_file(path, data)
            return
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        beside = f"{path}.{uuid4().hex[:8]}{PART}"
        try:
            self._fs.pipe_file(beside, data)
            self._fs.mv(beside, path)
        except BaseException:
            if self._fs.exists(beside):
                self._fs.rm_file(beside)
            raise

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder; object stores have none."""
        if not self._puts_whole:
            with suppress(OSError):
                self._fs.rmdir(self._path(name))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to the disk."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._fs.get_file(self._path(name), str(target))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


# In the copy: whose it is and who writes it. In the local folder: what the copy has.
MIRROR_FILE, MEMORY_FILE = "mirror.json", ".mirror.json"
_REMEMBER_S = 30.0


class TakenOver(UserError):
    """Raised where the copy is another folder's, or another process goes on with it."""


class Memory(Record):
    """State of the copies of a folder as far as it is known here, kept in ``MEMORY_FILE``."""

    id: str = Field(default_factory=lambda: uuid4().hex)
    """Name of the folder in all of its copies; an earlier one stays with a folder that was fetched from a copy."""
    copies: dict[str, dict[str, tuple[str, int]]] = Field(default_factory=dict)
    """By URI: stamp of each file when it was copied, and its bytes there."""

    @classmethod
    def read(cls, root: Path) -> Memory:
        """Read the memory; return a new one if it is missing, and one without an id if it is damaged."""
        try:
            return read_page(root / MEMORY_FILE, cls)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError):
            return cls(id="")

    def write(self, root: Path) -> None:
        """Write it; what is lost of it is copied once more."""
        write_atomic(root / MEMORY_FILE, page_of(self))


class Claim(Record):
    """Who signed in a store (``MIRROR_FILE``): of which folder it is the copy, and which process writes it."""

    id: str
    writer: str
    host: str
    folder: str
    since: str

    @classmethod
    def read(cls, store: MirrorStore) -> Claim:
        """Read it; raises whatever the store does."""
        return cls.model_validate_json(store.read(MIRROR_FILE))


class Contents(NamedTuple):
    """Contents of a file, and its stamp before it was read."""

    stamp: str
    data: bytes


def whole_generation(folder: Path) -> dict[str, Contents] | None:
    """Contents of a checkpoint's files by name; None where they do not match their sha256s, or one is not there."""
    files = {name: content for name in checkpoint.FILES if (content := _read(folder / name)) is not None}
    return files if checkpoint.is_whole({name: content.data for name, content in files.items()}) else None


class Mirror(Target):
    """Copies what changed in a folder to its store, on request; the only writer there."""

    is_needed = True

    def __init__(self, root: Path, only: str | None, uri: str) -> None:
        """``root``: folder of a plan, or of a single run; ``only``: the one run below it that is at work.

        Raises:
            UserError: the URI is none, or names a store that cannot be used here.
        """
        self.store, self.folder, self._root, self._only = MirrorStore(uri), root, root, only
        self.name, self.rest = f"mirror {self.store.name}", f"everything is in {root}"
        self._memory = Memory.read(root)
        self._up = self._memory.copies.setdefault(self.store.name, {})
        self._token, self._has_signed = uuid4().hex, False
        self._sizes: dict[str, int] = {}
        self._seen_runs: set[str] = set()
        self._remembered_s, self.num_changes = time.monotonic(), 0

    def copy_of(self, folder: Path) -> Copy:
        """Itself."""
        return self

    def connect(self) -> None:
        """Look into the store and sign there; where that was done, see that nobody else has since.

        Raises:
            TakenOver: it has other files, the copy of another folder, or another writer by now.
            Exception: whatever the store raises where it cannot be reached.
        """
        if self._has_signed:
            self._refuse_taken()
            return
        sizes = self.store.sizes()
        here, place = socket.gethostname(), str(self._root.absolute())
        left_over = [name for name in sizes if name.endswith(PART)]
        others = sizes.keys() - left_over
        claim = Claim.read(self.store) if MIRROR_FILE in sizes else None
        if not self._memory.id:
            ours = claim if claim is not None and (claim.host, claim.folder) == (here, place) else Memory()
            self._memory = self._memory.model_copy(update={"id": ours.id})
        if others and (claim is None or claim.id != self._memory.id):
            there = f"other files ({min(others) or 'a file of that name'})"
            whose = f"the copy of {claim.host}:{claim.folder}" if claim else there
            raise TakenOver(
                f"runtime.mirror = {self.store.name!r}: holds {whose}, expected an empty folder or the copy of "
                f"{self._root}; choose another URI, or go on with a copy: relief-ray resume {quote(self.store.name)}"
            )
        # First here, then there: a kill between the two leaves a copy that is still ours.
        self._memory.write(self._root)
        claim = Claim(
            id=self._memory.id,
            writer=self._token,
            host=here,
            folder=place,
            since=now(),
        )
        self.store.write(MIRROR_FILE, claim.model_dump_json(indent=1).encode())
        for name in left_over:
            self.store.remove(name)
            del sizes[name]
        self._sizes, self._has_signed = sizes, True
        for name in [name for name, (_, nbytes) in self._up.items() if sizes.get(name) != nbytes]:
            del self._up[name]

    def _refuse_taken(self) -> None:
        """Check that the store is still written from here.

        Raises:
            TakenOver: another process goes on with the copy.
        """
        claim = Claim.read(self.store)
        if claim.writer != self._token:
            raise TakenOver(f"{claim.host}:{claim.folder} goes on with this copy since {claim.since}")

    def send(self) -> bool:
        """Copy what changed since the last time; return whether anything was sent or removed.

        Raises:
            TakenOver: another process writes there by now.
            Exception: whatever the store raises; the next call goes on where this one ended.
        """
        plan = [n for n in (CLAIMS_FILE, PLAN_FILE) if (self._root / n).is_file() and self._is_new(n)]
        cells = [cell for cell in self._cells() if any(map(self._is_new, _files_of(cell, self._root)))]
        if not (plan or cells):
            return False
        self._refuse_taken()
        before = self.num_changes
        # The plan's own files come first: its cells are known before any of them is there.
        for name in plan:
            if (content := _read(self._root / name)) is not None:
                self._put(name, content)
        for cell in cells:
            self._copy_cell(cell)
        if time.monotonic() - self._remembered_s >= _REMEMBER_S:
            self.close()
        return self.num_changes > before

    def finish(self) -> None:
        """Do nothing: how runs ended is in their files."""

    def failed(self, error: Exception) -> bool:
        """Return whether the copy is another's now; what was sent is known also after a failure."""
        return isinstance(error, TakenOver)

    def close(self) -> None:
        """Keep what the copy has, so that the next command sends only what is new."""
        self._remembered_s = time.monotonic()
        if self._has_signed:
            with suppress(UserError):
                self._memory.write(self._root)

    def _cells(self) -> Iterator[str]:
        """Folders of runs, relative to the root, each with a slash at its end; empty for the root itself."""
        folders = [self._root / self._only] if self._only else [self._root, *sorted(self._root.glob("*/"))]
        for folder in folders:
            if any((folder / name).is_file() for name in (RUN_FILE, ERROR_FILE)):
                yield "" if folder == self._root else f"{folder.name}/"

    def _is_new(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return self._up.get(name, ("", 0))[0] != stamp(self._root / name)
        return name in self._up

    def _copy_cell(self, cell: str) -> None:
        """Copy a run's files in the order of a commit; they are read in the opposite order."""
        folder = self._root / cell
        run, error = _read(folder / RUN_FILE), _read(folder / ERROR_FILE)
        newest = next(iter(checkpoint.generations(folder)), None)
        generation = None if newest is None else whole_generation(newest)
        ledger = _read(folder / ROUNDS_FILE)
        if run is not None:
            self._take_other_away(cell, run.data)
            last = -1 if newest is None else checkpoint.round_of(newest)
            # A checkpoint there that is none here, or another one, would not fit the ledger any more.
            self._drop([g for g in self._generations(cell) if _round(g) > last or self._is_other(g, generation, last)])
            if ledger is not None:
                whole = ledger.data[: ledger.data.rfind(b"\n") + 1]
                self._put(f"{cell}{ROUNDS_FILE}", ledger._replace(data=whole))
            if newest is not None and generation is not None:
                for name in checkpoint.FILES:
                    self._put(f"{cell}{checkpoint.FOLDER}/{newest.name}/{name}", generation[name])
                self._drop(self._generations(cell)[checkpoint.KEEP :])
        if error is not None:
            self._put(f"{cell}{ERROR_FILE}", error)
        else:
            self._remove(f"{cell}{ERROR_FILE}")
        if run is not None:
            self._put(f"{cell}{RUN_FILE}", run)

    def _take_other_away(self, cell: str, run: bytes) -> None:
        """Remove the copy of another run, which was set aside here: nothing of it may mix with this one."""
        name = f"{cell}{RUN_FILE}"
        if name not in self._seen_runs and name in self._sizes:
            there, here = json.loads(self.store.read(name)), json.loads(run)
            if there["created"] != here["created"]:
                self._remove(name)
                self._drop(self._generations(cell))
                self._remove(f"{cell}{ROUNDS_FILE}")
        self._seen_runs.add(name)

    def _is_other(self, there: str, generation: dict[str, Contents] | None, round_: int) -> bool:
        """True for a checkpoint of the same round in the copy that is not the one here."""
        name = f"{there}{checkpoint.MANIFEST_FILE}"
        if generation is None or _round(there) != round_ or name not in self._sizes:
            return False
        here = generation[checkpoint.MANIFEST_FILE]
        is_known = self._up.get(name, ("", 0))[0] == here.stamp
        return not is_known and self.store.read(name) != here.data

    def _generations(self, cell: str) -> list[str]:
        """Names of a run's checkpoints in the copy, newest first, each with a slash at its end."""
        start = f"{cell}{checkpoint.FOLDER}/"
        names = {name[: name.rindex("/") + 1] for name in self._sizes if name.startswith(start)}
        return sorted(names, key=_round, reverse=True)

    def _drop(self, generations: list[str]) -> None:
        """Remove checkpoints; the manifest goes first, since a checkpoint without it is invalid."""
        for generation in generations:
            for name in reversed(checkpoint.FILES):
                self._remove(f"{generation}{name}")
            self.store.remove_folder(generation.rstrip("/"))

    def _put(self, name: str, content: Contents) -> None:
        """Send a file's contents, unless the copy has them."""
        if self._up.get(name) == (content.stamp, len(content.data)):
            return
        self.store.write(name, content.data)
        self._up[name], self._sizes[name] = (content.stamp, len(content.data)), len(content.data)
        self.num_changes += 1

    def _remove(self, name: str) -> None:
        if name in self._sizes:
            self.store.remove(name)
            del self._sizes[name]
            self.num_changes += 1
        self._up.pop(name, None)


def _files_of(cell: str, root: Path) -> list[str]:
    """Files of a run whose change is copied: its records and its newest checkpoint's manifest."""
    newest = checkpoint.generations(root / cell)[:1]
    manifests = [f"{cell}{checkpoint.FOLDER}/{generation.name}/{checkpoint.MANIFEST_FILE}" for generation in newest]
    return [f"{cell}{RUN_FILE}", f"{cell}{ROUNDS_FILE}", f"{cell}{ERROR_FILE}", *manifests]


def _round(generation: str) -> int:
    return checkpoint.round_of(Path(generation))


def _read(path: Path) -> Contents | None:
    """Read a file; None where it is not there."""
    try:
        refuse_links([path])  # what it leads to is none of the run's files
        return Contents(stamp=stamp(path), data=read_whole(path, memory_bytes()))
    except FileNotFoundError:
        return None


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
        UserError: no copy is there, the store cannot be read, a file there would lie outside of ``out``, or ``out``
            holds something already.
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
    for name in names:
        if not {"", ".", ".."}.isdisjoint(re.split(r"[/\\]", name)):
            raise UserError(
                f"{store.name}: holds {name!r}, expected plain names of folders and files; nothing was kept"
            )
    with disk_errors(out, "bring the copy here"), folder_atomic(out) as part:
        for name in names:
            try:
                store.fetch(name, part / name)
            except Exception as error:  # whatever a store raises
                raise UserError(
                    f"{store.name}/{name}: cannot be fetched ({brief(error)}); nothing was kept; try again"
                ) from error
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
            return sizes, Claim.read(store).id
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


def _check_plan(part: Path) -> list[str]:
    """Check that the plan can be read and has its claims; return what is wrong with them.

    Raises:
        UserError: it cannot be read.
    """
    path, file = part / PLAN_FILE, part / CLAIMS_FILE
    claims = read_plan_file(path).claims if path.exists() else None
    if claims is None or (file.exists() and sha256_of(read_whole(file)) == claims.sha256):
        return []
    return [f"{CLAIMS_FILE}: not the claims that {path.name} names (sha256 {claims.sha256[:12]})"]


def _check_run(folder: Path, part: Path) -> list[str]:
    """Check a run's record, ledger and checkpoints, and remove checkpoints that cannot be gone on from.

    Raises:
        UserError: its record or its ledger is damaged.
    """
    read_run(folder)
    last = max(read_rounds(folder).numbers, default=0)
    notes = []
    for generation in checkpoint.generations(folder):
        name = generation.relative_to(part)
        if whole_generation(generation) is None:
            notes.append(f"{name}: does not match its sha256; left out")
        elif checkpoint.round_of(generation) > last:
            notes.append(f"{name}: the ledger ends with {checkpoint.named(last)}; left out")
        else:
            continue
        shutil.rmtree(generation)
    return notes
