"""The run folder: ``run.json`` and the append-only ``rounds.jsonl`` are the truth, everything else is derived."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pydantic import JsonValue

from relief_ray.errors import UserError
from relief_ray.records import atomic
from relief_ray.records.lock import FileLock
from relief_ray.records.reading import ROUNDS_FILE, RUN_FILE, read_rounds, read_run, scan
from relief_ray.records.schema import RoundRecord, RunRecord

LOCK_FILE = "driver.lock"
# Room for a hundred clients' rounds and three generations of either backbone's checkpoint.
MIN_FREE_BYTES = 64 * 2**20


def _lines(rounds: Sequence[RoundRecord]) -> bytes:
    return b"".join(r.model_dump_json().encode() + b"\n" for r in rounds)


class RunFolder:
    """A run folder under its driver's lock; ``repairs`` says what opening it had to mend."""

    def __init__(self, path: Path, lock: FileLock, run: RunRecord) -> None:
        """Use ``create`` or ``resume``."""
        self.path = path
        self.run = run
        self._lock = lock
        lines = scan(path / ROUNDS_FILE)
        self.repairs = (f"{ROUNDS_FILE}: {lines.torn}; it was cut off",) if lines.torn else ()
        self._open_ledger(lines.num_bytes)

    def _open_ledger(self, num_bytes: int) -> None:
        path = self.path / ROUNDS_FILE
        with atomic.disk_errors(path, "open"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._num_bytes = num_bytes
            self._cut()
            os.fsync(self._fd)
            atomic.fsync_folder(self.path)

    @classmethod
    def create(cls, path: Path, run: RunRecord, *, min_free_bytes: int = MIN_FREE_BYTES) -> RunFolder:
        """Starts a new run in ``path`` after a preflight.

        Raises:
            UserError: the folder cannot be used, has a driver, or already holds a run.
        """
        lock = _take(path)
        try:
            atomic.preflight(path, min_free_bytes)
            if (path / RUN_FILE).exists():
                raise UserError(
                    f"{path}: already holds run {read_run(path).cell}; resume it or choose another folder (--out DIR)"
                )
            atomic.replace_file(path / RUN_FILE, _pretty(run))
            return cls(path, lock, run)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, path: Path, *, min_free_bytes: int = MIN_FREE_BYTES) -> RunFolder:
        """Opens an existing run for writing and cuts off a torn last line.

        Raises:
            UserError: there is no run, it cannot be read or written, or it has a driver.
        """
        read_run(path)
        lock = _take(path)
        try:
            atomic.preflight(path, min_free_bytes)
            return cls(path, lock, read_run(path))
        except BaseException:
            lock.release()
            raise

    def update(self, **changes: JsonValue) -> RunRecord:
        """Changes fields of ``run.json``, e.g. ``status="running"``; they are checked like any record."""
        self.run = RunRecord.model_validate({**self.run.model_dump(), **changes})
        atomic.replace_file(self.path / RUN_FILE, _pretty(self.run))
        return self.run

    def append(self, record: RoundRecord) -> None:
        """Adds a round durably; when this returns, the line survives a power cut.

        Raises:
            UserError: the disk is full or fails; the ledger stays as it was.
        """
        line = _lines([record])
        with atomic.disk_errors(self.path / ROUNDS_FILE, f"append round {record.round}"):
            try:
                self._cut()
                atomic.write_all(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                with suppress(OSError):
                    self._cut()
                raise
        self._num_bytes += len(line)

    def _cut(self) -> None:
        # What a failed write may have left behind its last whole line.
        if os.fstat(self._fd).st_size != self._num_bytes:
            os.ftruncate(self._fd, self._num_bytes)

    def rounds(self) -> tuple[RoundRecord, ...]:
        """All rounds in order; of a repeated round the last line counts."""
        return read_rounds(self.path)

    def rewind(self, round_: int | None) -> tuple[RoundRecord, ...]:
        """Drops the rounds after ``round_``, the checkpoint's (all where there is no checkpoint), and gives the rest.

        Raises:
            UserError: the ledger ends before that round.
        """
        found = self.rounds()
        kept = tuple(r for r in found if round_ is not None and r.round <= round_)
        if round_ is not None and (not kept or kept[-1].round != round_):
            last = f"round {kept[-1].round}" if kept else "no round"
            raise UserError(
                f"{self.path / ROUNDS_FILE}: ends with {last}, expected round {round_} of the checkpoint; "
                "restore the file or run the cell again"
            )
        if len(kept) < len(found):
            atomic.replace_file(self.path / ROUNDS_FILE, data := _lines(kept))
            os.close(self._fd)
            self._open_ledger(len(data))
        return kept

    def close(self) -> None:
        """Releases the ledger and the lock."""
        os.close(self._fd)
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _take(path: Path) -> FileLock:
    # The lock comes first: only its holder may write here, even a probe.
    with atomic.disk_errors(path, "use this folder for a run"):
        path.mkdir(parents=True, exist_ok=True)
    return FileLock(path / LOCK_FILE, "the run folder")


def _pretty(run: RunRecord) -> bytes:
    return (run.model_dump_json(indent=1) + "\n").encode()
