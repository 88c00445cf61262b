"""A copy of a folder of runs at a URI, from which the runs can be gone on with at any moment.

What changed is copied in the order in which a run commits a round: its lines of the ledger, then the checkpoint, then
what the new checkpoint replaces goes, and ``run.json`` comes last. It is read the other way round. So whenever the
copying ends, the copy has a ledger with the rounds of its newest whole checkpoint.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from uuid import uuid4

from relief_ray.records import checkpoint
from relief_ray.records.cells import PLAN_FILE
from relief_ray.records.claims import CLAIMS_FILE
from relief_ray.records.mirror_store import MirrorStore
from relief_ray.records.run_folder import ERROR_FILE, ROUNDS_FILE, RUN_FILE
from relief_ray.support.errors import UserError
from relief_ray.support.files import PAGE, sealed, stamp, unsealed, write_atomic

# In the copy: whose it is and who writes it. In the local folder: what the copy has.
MIRROR_FILE, MEMORY_FILE = "mirror.json", ".mirror.json"
_REMEMBER_S = 30.0


class TakenOver(UserError):
    """Raised where the copy is another folder's, or another process goes on with it."""


@dataclass(kw_only=True)
class Memory:
    """State of the copies of a folder as far as it is known here, kept in ``MEMORY_FILE``.

    Attributes:
        id: name of the folder in all of its copies; an earlier one stays with a folder that was fetched from a copy.
        copies: by URI: stamp of each file when it was copied, and its bytes there.
    """

    id: str = field(default_factory=lambda: uuid4().hex)
    copies: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> Memory:
        """Read it; a new one where there is none or it cannot be read, since it can be made again by copying."""
        try:
            content = json.loads(unsealed((root / MEMORY_FILE).read_bytes(), PAGE))
            copies = {u: {n: (str(s), int(b)) for n, (s, b) in known.items()} for u, known in content["copies"].items()}
            return cls(id=str(content["id"]), copies=copies)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def write(self, root: Path) -> None:
        """Write it; what is lost of it is copied once more."""
        content = json.dumps({"id": self.id, "copies": self.copies})
        write_atomic(root / MEMORY_FILE, sealed(content.encode(), PAGE))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Contents of a file, and its stamp before it was read."""

    stamp: str
    data: bytes


def whole_generation(folder: Path) -> dict[str, Contents] | None:
    """Contents of a checkpoint's files by name; None where they do not match their sha256s, or one is not there."""
    files = {name: content for name in checkpoint.FILES if (content := _read(folder / name)) is not None}
    return files if checkpoint.is_whole({name: content.data for name, content in files.items()}) else None


def read_claim(store: MirrorStore) -> dict[str, str]:
    """Read who signed in a store: ``id`` of the folder, ``writer``, ``host``, ``folder``, ``since``."""
    claim = json.loads(store.read(MIRROR_FILE))
    return {key: str(claim[key]) for key in ("id", "writer", "host", "folder", "since")}


class Copying:
    """Copies what changed in a folder to its store, on request; the only writer there."""

    def __init__(self, root: Path, uri: str, only: str | None = None) -> None:
        """``root``: folder of a plan, or of a single run; ``only``: the one run below it that is at work.

        Raises:
            UserError: the URI is none, or names a store that cannot be used here.
        """
        self.store, self._root, self._only = MirrorStore(uri), root, only
        self._memory = Memory.read(root)
        self._up = self._memory.copies.setdefault(self.store.name, {})
        self._token = uuid4().hex
        self._sizes: dict[str, int] | None = None
        self._seen_runs: set[str] = set()
        self._remembered_s, self._num_changes = time.monotonic(), 0
        self.num_bytes = 0

    def connect(self) -> None:
        """Look into the store and sign there.

        Raises:
            TakenOver: it has other files, or the copy of another folder.
            Exception: whatever the store raises where it cannot be reached.
        """
        if self._sizes is not None or not self._root.is_dir():
            return
        sizes = self.store.sizes()
        if others := [name for name in sizes if not MirrorStore.is_left_over(name)]:
            claim = read_claim(self.store) if MIRROR_FILE in sizes else {}
            if claim.get("id") != self._memory.id:
                there = f"other files ({min(others) or 'a file of that name'})"
                whose = f"the copy of {claim['host']}:{claim['folder']}" if claim else there
                raise TakenOver(
                    f"runtime.mirror = {self.store.name!r}: holds {whose}, expected an empty folder or the copy of "
                    f"{self._root}; choose another URI, or go on with a copy: relief-ray resume "
                    f"{quote(self.store.name)}"
                )
        # First here, then there: a kill between the two leaves a copy that is still ours.
        self._memory.write(self._root)
        self.store.write(MIRROR_FILE, self._claim())
        for name in [name for name in sizes if MirrorStore.is_left_over(name)]:
            self.store.remove(name)
            del sizes[name]
        self._sizes = sizes
        for name in [name for name, (_, nbytes) in self._up.items() if sizes.get(name) != nbytes]:
            del self._up[name]

    def _claim(self) -> bytes:
        claim = {
            "id": self._memory.id,
            "writer": self._token,
            "host": socket.gethostname(),
            "folder": str(self._root.absolute()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        return (json.dumps(claim, indent=1) + "\n").encode()

    def copy(self) -> bool:
        """Copy what changed since the last time; return whether anything was sent or removed.

        Raises:
            TakenOver: another process writes there by now.
            Exception: whatever the store raises; the next call goes on where this one ended.
        """
        changed = self._changed()
        if not changed:
            return False
        self.connect()
        before = self._num_changes
        claim = read_claim(self.store)
        if claim["writer"] != self._token:
            raise TakenOver(
                f"runtime.mirror = {self.store.name!r}: {claim['host']}:{claim['folder']} goes on with this copy since "
                f"{claim['since']}; nothing more is sent from here"
            )
        for cell in changed:
            self._copy_cell(cell) if cell is not None else self._copy_plan()
        if time.monotonic() - self._remembered_s >= _REMEMBER_S:
            self.close()
        return self._num_changes > before

    def _changed(self) -> list[str | None]:
        """The runs of which files changed, and before them None where the plan's own did."""
        plan: list[str | None] = [None] if any(map(self._is_new, self._plan_files())) else []
        return [*plan, *(cell for cell in self._cells() if any(map(self._is_new, _files_of(cell, self._root))))]

    def _plan_files(self) -> list[str]:
        return [name for name in (CLAIMS_FILE, PLAN_FILE) if (self._root / name).is_file()]

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

    def _copy_plan(self) -> None:
        """Copy the plan's own files: its cells are known before any of them is there."""
        for name in self._plan_files():
            if (content := _read(self._root / name)) is not None:
                self._put(name, content)

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
                self._put(f"{cell}{ROUNDS_FILE}", replace(ledger, data=whole))
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
        if name in self._seen_runs or self._sizes is None:
            return
        if name in self._sizes:
            there, here = json.loads(self.store.read(name)), json.loads(run)
            if there["created"] != here["created"]:
                self._remove(name)
                self._drop(self._generations(cell))
                self._remove(f"{cell}{ROUNDS_FILE}")
        self._seen_runs.add(name)

    def _is_other(self, there: str, generation: dict[str, Contents] | None, round_: int) -> bool:
        """True for a checkpoint of the same round in the copy that is not the one here."""
        name = f"{there}{checkpoint.MANIFEST_FILE}"
        if generation is None or _round(there) != round_ or name not in (self._sizes or ()):
            return False
        here = generation[checkpoint.MANIFEST_FILE]
        is_known = self._up.get(name, ("", 0))[0] == here.stamp
        return not is_known and self.store.read(name) != here.data

    def _generations(self, cell: str) -> list[str]:
        """Names of a run's checkpoints in the copy, newest first, each with a slash at its end."""
        start = f"{cell}{checkpoint.FOLDER}/"
        names = {name[: name.rindex("/") + 1] for name in self._sizes or () if name.startswith(start)}
        return sorted(names, key=_round, reverse=True)

    def _drop(self, generations: list[str]) -> None:
        """Remove checkpoints; without its manifest one is none any more."""
        for generation in generations:
            for name in reversed(checkpoint.FILES):
                self._remove(f"{generation}{name}")
            self.store.remove_folder(generation.rstrip("/"))

    def _put(self, name: str, content: Contents) -> None:
        """Send a file's contents, unless the copy has them."""
        assert self._sizes is not None
        if self._up.get(name) == (content.stamp, len(content.data)):
            return
        self.store.write(name, content.data)
        self._up[name], self._sizes[name] = (content.stamp, len(content.data)), len(content.data)
        self.num_bytes += len(content.data)
        self._num_changes += 1

    def _remove(self, name: str) -> None:
        assert self._sizes is not None
        if name in self._sizes:
            self.store.remove(name)
            del self._sizes[name]
            self._num_changes += 1
        self._up.pop(name, None)

    def close(self) -> None:
        """Keep what the copy has, so that the next command sends only what is new."""
        self._remembered_s = time.monotonic()
        if self._sizes is not None:
            with suppress(UserError):
                self._memory.write(self._root)


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
        return Contents(stamp=stamp(path), data=path.read_bytes())
    except FileNotFoundError:
        return None
