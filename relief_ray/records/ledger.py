"""The ledger of a run, ``rounds.jsonl``: a sealed line per round, checked whole, parsed a round at a time.

A long run's rounds are hundreds of megabytes as objects. So reading a ledger means to check the seal of every line and
to note where each round stands (0.7 ms per megabyte). A round is parsed when it is needed, and nothing is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, overload

from pydantic import ValidationError

from relief_ray.records.schema import RoundRecord
from relief_ray.support.errors import UserError
from relief_ray.support.files import LINE, Unsealed, check, sealed
from relief_ray.support.text import typed

# Lines of a hundred clients are longer than Python's usual buffer.
_BUFFER_BYTES = 2**20
# The first key of every record.
_ROUND = re.compile(rb'\{"round": ?(\d+),')


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Place of a round in its file.

    Attributes:
        round: its number.
        start: byte at which its line begins.
        num_bytes: length of the line with its break.
    """

    round: int
    start: int
    num_bytes: int


class Rounds(Sequence[RoundRecord]):
    """Rounds of a ledger in their order; each access reads and parses anew, so that nothing stays in memory.

    An access raises ``UserError`` where a line is no round's record, or not what it was when the ledger was scanned.
    """

    def __init__(self, path: Path, places: Sequence[Place]) -> None:
        """``places``: of the rounds, in their order."""
        self._path, self.places = path, tuple(places)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the rounds; nothing is read."""
        return tuple(place.round for place in self.places)

    def where(self, is_wanted: Callable[[int], bool]) -> Rounds:
        """Return the rounds whose numbers are wanted; nothing is read."""
        return Rounds(self._path, [place for place in self.places if is_wanted(place.round)])

    def lines(self) -> Iterator[bytes]:
        """Yield the lines as they stand in the file, with their seals and breaks."""
        if self.places:
            with self._path.open("rb") as file:
                for place in self.places:
                    yield _read(file, place)

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Rounds: ...

    def __getitem__(self, index: int | slice) -> RoundRecord | Rounds:
        """Parse one round, or name several without reading them."""
        if isinstance(index, slice):
            return Rounds(self._path, self.places[index])
        return next(self._parsed([self.places[index]]))

    def __iter__(self) -> Iterator[RoundRecord]:
        """Yield the rounds in order."""
        return self._parsed(self.places)

    def __reversed__(self) -> Iterator[RoundRecord]:
        """Yield the rounds, the last one first."""
        return self._parsed(self.places[::-1])

    def __eq__(self, other: object) -> bool:
        """Return whether the records are equal one by one."""
        if not isinstance(other, Rounds | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Hash the file and the places."""
        return hash((self._path, self.places))

    def _parsed(self, places: Sequence[Place]) -> Iterator[RoundRecord]:
        if not places:
            return
        try:
            with self._path.open("rb") as file:
                for place in places:
                    yield self._parse(_read(file, place), place)
        except OSError as error:
            raise UserError(f"{self._path}: {error.strerror}, expected the ledger that was scanned") from error

    def _parse(self, line: bytes, place: Place) -> RoundRecord:
        try:
            return RoundRecord.model_validate_json(bytes(_body(line)) + b"}")
        except Unsealed as error:
            raise UserError(
                f"{self._path}: line {_number(self._path, place.start)} changed while it was read ({error}), expected "
                "the ledger that was scanned; read it again, or restore the file"
            ) from error
        except ValidationError as error:
            raise _damaged(self._path, place.start, error.errors()[0]["msg"]) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
    """Content of a ledger.

    Attributes:
        rounds: its rounds, in order, each round's last line only.
        num_bytes: length of the intact part of the file.
        torn: description of a last line that is not whole; None without one.
        damage: error text for such a line that has its end: no driver was interrupted while it wrote that line, its
            bytes have changed since. None without one.
    """

    rounds: Rounds
    num_bytes: int
    torn: str | None
    damage: str | None = None


def scan(path: Path, start: int = 0) -> Lines:
    """Check the lines of a ledger from byte ``start``; the last one counts only when it is complete.

    A driver writes a line's break last. So a last line without its break is one that is being written, or that a
    killed driver left; one with its break and another sha256 is damaged, which readers say where no driver is at work.

    A resumed run drops rounds after its checkpoint and writes others. Where no line begins at ``start`` any more, the
    ledger is read from its beginning.

    Raises:
        UserError: a line before the last is damaged.
    """
    places: dict[int, Place] = {}
    end, torn, damage = 0, None, None
    with suppress(FileNotFoundError), path.open("rb", buffering=_BUFFER_BYTES) as file:
        end = _seek(file, start)
        for line in file:
            try:
                place = Place(round=_round_of(line), start=end, num_bytes=len(line))
            except Unsealed as error:
                if next(file, b""):
                    raise _damaged(path, end, str(error)) from error
                number = _number(path, end)
                if line.endswith(b"\n"):
                    torn, damage = f"line {number} was damaged", _last_damaged(path, number, str(error))
                else:
                    torn = f"line {number} was torn after {len(line)} bytes"
                break
            places[place.round] = place
            end += len(line)
    rounds = Rounds(path, [places[r] for r in sorted(places)])
    return Lines(rounds=rounds, num_bytes=end, torn=torn, damage=damage)


# The end of a sealed line, one byte, and the beginning of another line.
_JOINT = re.compile(rb',"sha256":"[0-9a-f]{64}"\}([^\n])\{"round":')


def mend_breaks(path: Path) -> tuple[int, ...]:
    """Write line breaks anew that have become another byte; return the numbers of the lines that they end.

    Nothing is guessed: the bytes before such a break match the sha256 that stands at their end.
    """
    mended: list[int] = []
    number = 1
    with path.open("r+b") as file:
        while piece := file.readline():
            next_piece = file.tell()
            base, begin = next_piece - len(piece), 0
            for joint in _JOINT.finditer(piece):
                if not _is_sealed(piece[begin : joint.start(1)]):
                    break
                file.seek(base + joint.start(1))
                file.write(b"\n")
                mended.append(number)
                begin, number = joint.end(1), number + 1
            file.seek(next_piece)
            number += 1
        file.flush()
        os.fsync(file.fileno())
    return tuple(mended)


def _is_sealed(data: bytes) -> bool:
    try:
        check(memoryview(data), LINE)
    except Unsealed:
        return False
    return True


def line_of(record: RoundRecord) -> bytes:
    """Return a round's line with its seal and break."""
    return sealed(record.model_dump_json().encode(), LINE) + b"\n"


def _seek(file: BinaryIO, start: int) -> int:
    """Go to the line that begins at byte ``start``, or to the first one; return where that is."""
    file.seek(max(0, start - 1))
    return start if start == 0 or file.read(1) == b"\n" else file.seek(0)


def _read(file: BinaryIO, place: Place) -> bytes:
    file.seek(place.start)
    return file.read(place.num_bytes)


def _body(line: bytes) -> memoryview:
    """Return a line's record, all but its last brace, without a copy.

    Raises:
        Unsealed: the line has no end, or its bytes are not those that were written.
    """
    if not line.endswith(b"\n"):
        raise Unsealed("it has no end")
    return check(memoryview(line)[:-1], LINE)


def _round_of(line: bytes) -> int:
    """Return the number of a line's round without parsing the rest.

    Raises:
        Unsealed: the line is not whole, or not a round's.
    """
    match = _ROUND.match(_body(line))
    if match is None:
        raise Unsealed("it does not begin with a round's number")
    return int(match[1])


def _number(path: Path, start: int) -> int:
    """Return the number of the line that begins at byte ``start``, from 1."""
    with path.open("rb") as file:
        return 1 + sum(1 for _ in takewhile(lambda _: file.tell() <= start, iter(file.readline, b"")))


def _damaged(path: Path, start: int, why: str) -> UserError:
    return UserError(
        f"{path}: line {_number(path, start)} is damaged ({why}), expected a round's JSON; restore the file or run the "
        "cell again"
    )


def _last_damaged(path: Path, number: int, why: str) -> str:
    return (
        f"{path}: line {number}, the last one, is damaged ({why}), expected a round's JSON; restore the file, or go on "
        f"from the newest checkpoint before that round: relief-ray resume {typed(path.parent)}"
    )
