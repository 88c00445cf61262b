"""Run folders: ``run.json`` and the append-only ``rounds.jsonl`` are the truth, everything else is derived.

Both are sealed: ``run.json`` and each line of the ledger end with the sha256 of what stands before it, so that a
changed bit is an error and never another number; and a line says which run it is of and which line it follows
(``records.ledger``). Reading takes no lock; writing takes the driver's. ``restore`` finds where an interrupted run goes
on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from relief_ray.records import checkpoint
from relief_ray.records.ledger import LedgerLines, LineFormat, Rounds, scan
from relief_ray.records.lock import FileLock, is_folder_locked, lock_folder
from relief_ray.records.schema import RoundRecord, RunRecord, page_of, read_page
from relief_ray.support import files
from relief_ray.support.errors import UserError, option

RUN_FILE = "run.json"

ROUNDS_FILE = "rounds.jsonl"


def read_run(folder: Path) -> RunRecord:
    """Read ``run.json`` of a folder; takes no lock.

    Raises:
        UserError: there is none, it is damaged, or of another schema version.
    """
    path = folder / RUN_FILE
    try:
        return read_page(path, RunRecord)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{folder}: no {RUN_FILE}, expected a run folder; name one that `relief-ray run` made"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: unreadable ({error}), expected a RunRecord as JSON; restore it or run the cell again"
        ) from error


def is_done(run: RunRecord, rounds: Sequence[int]) -> bool:
    """Return whether a run finished and its ledger has every planned round, in order and without a gap."""
    planned = run.config.get("rounds")
    last = planned if isinstance(planned, int) else max(rounds, default=1)
    # A damaged record may ask for more rounds than a range can list.
    return run.status == "done" and len(rounds) == last and list(rounds) == list(range(1, last + 1))


def read_rounds(folder: Path, run: RunRecord | None = None) -> Rounds:
    """Read all rounds in order; takes no lock and repairs nothing: a line that is being written is left out.

    Each round is parsed when it is needed and not kept: ``tuple(read_rounds(folder))`` keeps all of them whole, and a
    reader that needs less iterates and keeps that, after ``light`` where single clients are no matter.

    Args:
        folder: the run's folder.
        run: its ``run.json``, where the caller has read it.

    Raises:
        UserError: ``run.json`` cannot be read, a line is damaged or no line of this run, or the last one of a run that
            is done was torn.
    """
    run = run or read_run(folder)
    lines = scan(folder / ROUNDS_FILE, LineFormat.of(run))
    if lines.torn and not is_done(run := read_run(folder), lines.rounds.numbers):
        if run.status == "done":
            raise UserError(
                f"{folder / ROUNDS_FILE}: {lines.torn}, expected the last round of a finished run; restore the file, "
                "or remove the folder and run the cell again"
            )
        if lines.damage and not is_folder_locked(folder):
            raise UserError(lines.damage)
    return lines.rounds


ERROR_FILE = "error.json"

# Room for a hundred clients' rounds and three generations of either backbone's checkpoint.
_MIN_FREE_BYTES = 64 * 2**20


class RunFolder:
    """A run folder under its driver's lock; the error of an earlier attempt is forgotten when it is opened.

    Attributes:
        path: the folder.
        run: its ``run.json``.
        repairs: a sentence about a torn last line, which is cut off once the run goes on; empty without one.
    """

    def __init__(self, path: Path, lock: FileLock, run: RunRecord) -> None:
        """Open the ledger; use ``create`` or ``resume`` instead."""
        self.path = path
        self.run = run
        self._lock = lock
        for name in (RUN_FILE, ROUNDS_FILE):
            files.remove_parts(path / name)
        ledger = path / ROUNDS_FILE
        if ledger.exists() and ledger.stat().st_nlink > 1:  # a backup of hard links keeps the rounds that it has
            files.write_atomic(ledger, files.read_pieces(ledger))
        self._format = LineFormat.of(run)
        lines = self._scan()
        self.repairs = (f"{ROUNDS_FILE}: {lines.torn}; it was cut off",) if lines.torn else ()
        forget_error(path)
        # Bytes after the last whole line stay until a resume is sure to go on: `rewind` and `append` cut them off.
        self._fd, self._end = _open_ledger(path), lines.end

    @classmethod
    def create(cls, path: Path, run: RunRecord) -> RunFolder:
        """Start a new run in ``path`` after a preflight.

        Raises:
            UserError: the folder cannot be used, has a driver, or already holds a run.
        """

        def begun() -> RunRecord:
            if (path / RUN_FILE).exists():
                raise UserError(
                    f"{path}: already holds run {read_run(path).cell}; resume it or choose another folder "
                    f"({option('out', 'DIR')})"
                )
            files.write_atomic(path / RUN_FILE, page_of(run))
            return run

        return cls._locked(path, begun)

    @classmethod
    def resume(cls, path: Path) -> RunFolder:
        """Open an existing run for writing; a torn last line is cut off by `rewind` or with the next round.

        Raises:
            UserError: there is no run, it cannot be read or written, or it has a driver.
        """
        read_run(path)
        return cls._locked(path, lambda: read_run(path))

    @classmethod
    def _locked(cls, path: Path, run: Callable[[], RunRecord]) -> RunFolder:
        # The lock comes first: only its holder may write here, even a probe.
        with files.disk_errors(path, "use this folder for a run"):
            path.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(path, "the run folder")
        try:
            files.refuse_links(path.iterdir())
            files.preflight(path, _MIN_FREE_BYTES)
            return cls(path, lock, run())
        except BaseException:
            lock.release()
            raise

    def update(self, **changes: object) -> RunRecord:
        """Change fields of ``run.json``, e.g. ``status="running"``; they are checked like any record.

        Raises:
            UserError: the disk is full or fails, or somebody moved, removed or replaced the folder.
        """
        self._refuse_removed()
        run = RunRecord.model_validate({**self.run.model_dump(), **changes})
        files.write_atomic(self.path / RUN_FILE, page_of(run), make_folder=False)
        self.run = run
        return run

    def append(self, record: RoundRecord) -> None:
        """Add the next round durably; when this returns, the line survives a power cut.

        Raises:
            UserError: the disk is full or fails; the ledger stays as it was. Or somebody removed or replaced it.
            ValueError: another round is next.
        """
        self._refuse_removed()
        line = self._format.line(record, self._end)
        with files.disk_errors(self.path / ROUNDS_FILE, f"append round {record.round}"):
            try:
                self._cut()
                files.write_all(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                with suppress(OSError):
                    self._cut()
                raise
        self._end = self._format.after(line, self._end)

    def _refuse_removed(self) -> None:
        # An append to a file that was unlinked would succeed and be lost; another folder may be at the old path.
        path = self.path / ROUNDS_FILE
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(self._fd)):
                return
        raise UserError(
            f"{path}: removed or replaced while this run was writing to it, expected no other writer; put it back "
            f"and resume the run, or begin it anew in another folder ({option('out', 'DIR')})"
        )

    def _cut(self) -> None:
        # What a failed write may have left behind its last whole line.
        if os.fstat(self._fd).st_size != self._end.num_bytes:
            os.ftruncate(self._fd, self._end.num_bytes)

    def rounds(self) -> Rounds:
        """Read all rounds in order."""
        return self._scan().rounds

    def _scan(self) -> LedgerLines:
        return scan(self.path / ROUNDS_FILE, self._format)

    def rewind(self, round_: int) -> Rounds:
        """Drop the rounds after ``round_``, the checkpoint's (0: all), and return the others.

        Raises:
            UserError: the ledger ends before that round.
        """
        recorded = self.rounds()
        if why := behind(recorded.numbers, round_):
            raise UserError(f"{self.path / ROUNDS_FILE}: {why}; restore the file or run the cell again")
        kept = recorded.where(lambda number: number <= round_)
        with files.disk_errors(self.path / ROUNDS_FILE, "cut"):
            if len(kept) < len(recorded):
                os.ftruncate(self._fd, recorded.places[len(kept)].start)
                self._end = self._scan().end
            self._cut()
            os.fsync(self._fd)
        return kept

    def close(self) -> None:
        """Release the ledger and the lock."""
        os.close(self._fd)
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def behind(numbers: Sequence[int], saved: int) -> str:
    """Return what a ledger lacks of the round ``saved``, whose line was on the disk before its checkpoint was begun."""
    last = max(numbers, default=0)
    return "" if saved <= last else f"ends with {checkpoint.named(last)}, expected round {saved} of the checkpoint"


def _open_ledger(folder: Path) -> int:
    path = folder / ROUNDS_FILE
    with files.disk_errors(path, "open"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.fsync(descriptor)
            files.sync(folder)
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def forget_error(folder: Path) -> None:
    """Remove ``error.json``, which a grid keeps of a failed attempt: a new attempt begins."""
    with files.disk_errors(folder / ERROR_FILE, "remove"):
        (folder / ERROR_FILE).unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """State that an interrupted run goes on from.

    Attributes:
        checkpoint: the newest whole one; None where the run starts again from its first round.
        rounds: the ledger up to its round.
        last: record of its round; None without a checkpoint.
        repairs: lines for the user.
    """

    checkpoint: checkpoint.Checkpoint | None
    rounds: Rounds
    last: RoundRecord | None
    repairs: tuple[str, ...]


def other_model(round_: int, saved: str, recorded: str) -> str:
    """Sentence on a checkpoint and a ledger that are not of one run; digests of their models."""
    return (
        f"the checkpoint of round {round_} holds the model {saved[:12]}, the ledger names {recorded[:12]}; expected "
        "one run's files; restore both from one backup, or run the cell again"
    )


def restore(folder: RunFolder, binding: checkpoint.Binding) -> Restored:
    """Load the newest whole checkpoint that the ledger reaches; what came after is computed again to the same bits.

    Of the ledger only the last line is parsed.

    Raises:
        UserError: no generation is usable, it belongs to another computation, the ledger misses its round, or names
            another model for it.
    """
    recorded = folder.rounds().numbers
    point = checkpoint.load(folder.path, binding, newest=max(recorded, default=0))
    repairs = [*folder.repairs]
    if point is not None:
        checkpoint.drop_after(folder.path, point.round)
        repairs += [f"checkpoint {line}" for line in point.skipped]
    rounds = folder.rewind(0 if point is None else point.round)
    last = rounds[-1] if rounds else None
    if point is not None and last is not None and last.model_sha256 != point.model_sha256:
        raise UserError(f"{folder.path}: {other_model(point.round, point.model_sha256, last.model_sha256)}")
    if len(rounds) < len(recorded):
        repairs.append(f"{len(recorded) - len(rounds)} rounds after the checkpoint are computed again")
    return Restored(checkpoint=point, rounds=rounds, last=last, repairs=tuple(repairs))
