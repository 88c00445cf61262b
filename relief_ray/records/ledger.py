"""The ledger of a run, ``rounds.jsonl``: a sealed line per round, chained to its run, checked whole, parsed one by one.

A long run's rounds are hundreds of megabytes as objects. So reading a ledger means to check the seal and the chain of
every line and to note where each round stands (0.7 ms per megabyte). A round is parsed when it is needed, and nothing
is kept; what a reader keeps of it is the reader's choice (``Rounds.light`` leaves parts of it out). Lines are added by
``RunFolder.append`` alone.

**Chain.** A line begins with its run's id (``RunRecord.id``), the digest of the line before it and its round's number,
and ends with the sha256 of all that, which is its own digest. Before the first line, round 1, stands the run's id as
digest. Rounds are numbered without gaps. So a line of another run, a line that is there twice, two that are swapped and
one that is missing are refused by the number of the line; only lines missing at the end leave a whole chain, which is
why a checkpoint names its round and model too. What that means where a ledger is not simply read from end to end:

* a rewind cuts after a line: the rest is a chain, and the next round follows its last line. Rounds that were cut off
  and come from elsewhere do not follow those that were computed again;
* a partial scan goes on from the ``LedgerEnd`` of an earlier one; where the next line does not follow it (the ledger
  was rewound since), all is read anew from the first line;
* the copy of a mirror is a prefix of whole lines, and a prefix of a chain is a chain; a run goes on from it.

**Line.** It has numbers, and names only by their numbers in ``run.json`` (groups, sensors, clocks; a client's device
follows from its id); a name that is not there is spelled out. Clients, costs and other tables are columns: a list per
field, or a single value where all rows share it; null, or no list at all, is the field's default. A confusion matrix is
its cells, row by row, with ``-n`` for ``n`` empty ones. Of costs, what follows from the rest is left out: a column that
is as under the clock before (before the first: the fleet, and no seconds), backward seconds that are twice the forward
ones (an empty list), waiting where it is the round without the client's busy time, joules that are its device's power
times those seconds. ``LineFormat._fields`` names the packing of each field, which has both directions; what is read is
the record that was written, to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import chain, groupby
from math import isqrt
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, overload

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from relief_ray.core.messages import ClientCost, Power, RoundCost, StageTimes
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.support.errors import UserError
from relief_ray.support.files import CHUNK_BYTES, LINE, NUM_DIGITS, Unsealed, check, opened, sealed
from relief_ray.support.text import typed

# Bytes that are read as one line at most: a hole in a file has no break, however long it is.
_LONGEST = 2**29
_HEAD = re.compile(rb'\{"run":"([0-9a-f]+)","before":"([0-9a-f]+)","round":(\d+)[,}]')
# What a line holds, as JSON; keys and lists are this module's own.
_Json: TypeAlias = dict[str, Any]
_Columns: TypeAlias = dict[str, list[Any]]

_STAGES: Final = ("forward_s", "backward_s", "optimizer_s", "up_s", "down_s")


class LedgerEnd(NamedTuple):
    """End of the part of a ledger that was read."""

    num_bytes: int
    """Its bytes."""
    digest: str
    """Digest of its last line; the run's id before the first."""
    next_round: int
    """Number of the round whose line comes next."""


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """A run's way to write its rounds: what binds lines to it, and the names that they give by number.

    Attributes:
        run: the run's id.
        groups: names of the model's parameter groups.
        sensors: names of the sensors.
        clocks: names of the time models.
        powers: power of each client's device; None where it is not known.
    """

    run: str
    groups: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    powers: tuple[Power | None, ...] = ()

    @classmethod
    def of(cls, run: RunRecord) -> LineFormat:
        """The format that ``run.json`` describes."""
        fleet: Any = run.fleet
        calibration: Any = run.calibration
        return cls(
            run=run.id,
            groups=run.groups,
            sensors=tuple(fleet.get("modalities", ())),
            clocks=tuple(calibration.get("clocks", ())),
            powers=tuple(run.devices.get(client["device"]) for client in fleet.get("clients", ())),
        )

    @property
    def begin(self) -> LedgerEnd:
        """The end of a ledger without a line."""
        return LedgerEnd(num_bytes=0, digest=self.run, next_round=1)

    def line(self, record: RoundRecord, end: LedgerEnd) -> bytes:
        """Return the line of the round that follows ``end``, with its seal and break.

        Raises:
            ValueError: another round is next.
        """
        if record.round != end.next_round:
            raise ValueError(f"round {record.round}, expected round {end.next_round}: a ledger has no gaps")
        head = {"run": self.run, "before": end.digest, "round": record.round}
        fields = record.model_dump(exclude_defaults=True, exclude={"costs"})
        fields["costs"] = self._written_costs(record.costs)
        packed = _each(self._fields(), "pack", fields)
        return sealed(to_json(head | packed, inf_nan_mode="strings"), LINE) + b"\n"

    @staticmethod
    def after(line: bytes, end: LedgerEnd) -> LedgerEnd:
        """The end of a ledger once a whole line that follows ``end`` is added."""
        digest = line[-len(LINE.after) - NUM_DIGITS - 1 : -len(LINE.after) - 1].decode()
        return LedgerEnd(num_bytes=end.num_bytes + len(line), digest=digest, next_round=end.next_round + 1)

    def refusal(self, run: str, before: str, round_: int, end: LedgerEnd) -> str:
        """Reason why a line of that head cannot follow ``end``; empty where it does."""
        if run != self.run:
            return f"is of another run ({run[:8]}), expected one of run {self.run[:8]}"
        if round_ < end.next_round:
            return f"is round {round_} again, expected round {end.next_round}: it is repeated or out of its place"
        if round_ > end.next_round:
            return f"is round {round_}, expected round {end.next_round}: a line is missing or out of its place"
        if before != end.digest:
            return f"is round {round_} but does not follow the line before it, expected what this run wrote after that"
        return ""

    def _fields(self) -> Mapping[str, _Packing]:
        """How fields are packed into a line and unpacked again; other fields are stored unchanged."""
        metrics = _Packing(*(partial(_each, self._metrics, side) for side in ("pack", "unpack")))
        return {
            "clients": _Packing(self._pack_clients, self._unpack_clients),
            "costs": _numbered(self.clocks),
            "totals": _keyed("clock", self.clocks),
            "left_out": _keyed("client"),
            "physical": _keyed("client"),
            "d_bar": _numbered(self.groups),
            "divergence": _numbered(self.groups),
            "metrics": metrics,
            "validation": metrics,
        }

    @cached_property
    def _metrics(self) -> Mapping[str, _Packing]:
        short = _Packing(
            lambda matrices: [_without_zeros(chain(*matrix)) for matrix in matrices],
            lambda matrices: list(map(_matrix, matrices)),
        )
        clients = _numbered(range(len(self.powers)))
        return {"f1_by_modality": _numbered(self.sensors), "f1_by_client": clients, "confusion": short}

    def read(self, body: bytes, is_light: bool = False) -> RoundRecord:
        """Parse a line that was sealed, from its brace to its last value.

        Raises:
            ValueError: it is no round's record.
        """
        try:
            line: _Json = from_json(body + b"}")
            if is_light:
                line["clients"].pop("sq_norm", None)
                for part in ("metrics", "validation"):
                    line.get(part, {}).pop("confusion", None)
            line = _each(self._fields(), "unpack", line)
            line["costs"] = self._read_costs(line["costs"], not is_light)
            del line["run"], line["before"]
            return RoundRecord.model_validate(line)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from error

    # Clients: columns, and the selections that they name by number

    def _pack_clients(self, clients: Sequence[_Json]) -> _Json:
        numbers: dict[tuple[str, ...], int] = {}
        for row in [task for client in clients for task in (client, *client.get("probes", ()))]:
            for name in row.keys() & {"trained", "uploaded"}:
                row[name] = numbers.setdefault(row[name], len(numbers))
            if "sq_norm" in row:
                row["sq_norm"] = _by_number(row["sq_norm"], self.groups)
        return {"selections": [[self._token(token) for token in texts] for texts in numbers], **_columns(clients)}

    def _unpack_clients(self, columns: _Json) -> list[_Json]:
        selections = [tuple(map(self._text, texts)) for texts in columns.pop("selections", ())]
        clients = _rows(columns)
        for client in clients:
            client["uploaded"], client["trained"] = selections[client["uploaded"]], selections[client["trained"]]
            client["sq_norm"] = _by_name(client.get("sq_norm", {}), self.groups)
            # Clients share what their columns have once.
            client["probes"] = [{**p, "trained": selections[p["trained"]]} for p in client.get("probes", ())]
        return clients

    def _token(self, token: str) -> int | str | list[int | str]:
        """A whole group as its number, a part of one as its number and the part, another name as text."""
        group, _, part = token.partition("[")
        if (number := self._numbers.get(group)) is None:
            return token
        return [number, part.removesuffix("]")] if part else number

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {group: number for number, group in enumerate(self.groups)}

    def _text(self, token: int | str | list[Any]) -> str:
        if isinstance(token, list):
            return f"{self.groups[token[0]]}[{token[1]}]"
        return token if isinstance(token, str) else self.groups[token]

    # Costs

    @property
    def _free(self) -> _Columns:
        """Columns of a round that costs the fleet nothing."""
        return {"client": [*range(len(self.powers))], **{stage: [0.0] for stage in _STAGES}}

    def _energy_j(self, client: int, times: StageTimes, wait_s: float) -> float | None:
        """Joules of a client's round by its device's power; None where that is not known."""
        power = self.powers[client] if 0 <= client < len(self.powers) else None
        return None if power is None else power.energy_j(times, wait_s)

    def _written_costs(self, costs: Mapping[str, RoundCost]) -> _Json:
        """Columns of every clock: without stages that cost nothing, what is as under the last one, and what follows."""
        written: _Json = {}
        before = self._free
        for clock, cost in costs.items():
            own = _columns([{"client": c.client, **asdict(c.times)} for c in cost.clients]) or {"client": []}
            if own.get("backward_s") == [2 * s for s in own.get("forward_s", ())]:
                own["backward_s"] = []
            changed = {name: column for name, column in own.items() if column != before[name]}
            if any(c.wait_s != cost.round_s - c.times.busy_s for c in cost.clients):
                changed["wait_s"] = [c.wait_s for c in cost.clients]
            if any(c.energy_j != self._energy_j(c.client, c.times, c.wait_s) for c in cost.clients):
                changed["client_j"] = [c.energy_j for c in cost.clients]
            before |= own
            written[clock] = {"round_s": cost.round_s, "energy_j": cost.energy_j, **changed}
        return written

    def _read_costs(self, costs: _Json, with_clients: bool) -> _Json:
        """Costs by clock; without clients, only the one or two that decide the properties of ``RoundCost``."""
        read: _Json = {}
        before = self._free
        for clock, columns in costs.items():
            round_s, energy_j = float(columns.pop("round_s")), float(columns.pop("energy_j"))
            own = before | columns
            before = {name: own[name] for name in before}
            clients = self._read_client_costs(own, round_s, with_clients)
            read[clock] = RoundCost(clients=clients, round_s=round_s, energy_j=energy_j)
        return read

    def _read_client_costs(self, columns: _Columns, round_s: float, with_all: bool) -> tuple[ClientCost, ...]:
        """Costs of all clients, or of the busiest and of the one that computes longest."""
        if unknown := columns.keys() - {"client", *_STAGES, "wait_s", "client_j"}:
            raise ValueError(f"costs have {sorted(unknown)}, expected stages")
        number = len(columns["client"])
        full = {name: column if len(column) == number else column * number for name, column in columns.items()}
        full["backward_s"] = full["backward_s"] or [2 * float(s) for s in full["forward_s"]]
        rows = list(zip(*(map(float, full[stage]) for stage in _STAGES), strict=True))
        chosen: Iterable[int] = range(number)
        if number and not with_all:
            compute_s = [forward_s + backward_s + optimizer_s for forward_s, backward_s, optimizer_s, _, _ in rows]
            busy_s = [c + (up_s + down_s) for c, (_, _, _, up_s, down_s) in zip(compute_s, rows, strict=True)]
            chosen = sorted({busy_s.index(max(busy_s)), compute_s.index(max(compute_s))})
        clients = []
        for i in chosen:
            client, times = full["client"][i], StageTimes(**dict(zip(_STAGES, rows[i], strict=True)))
            # Infinity is written as text.
            wait_s = float(full["wait_s"][i]) if "wait_s" in full else round_s - times.busy_s
            joules = float(full["client_j"][i]) if "client_j" in full else self._energy_j(client, times, wait_s)
            if joules is None:
                raise ValueError(f"joules of client {client}: neither there nor its device's power in run.json")
            clients.append(ClientCost(client=client, times=times, wait_s=wait_s, energy_j=joules))
        return tuple(clients)


class _Packing(NamedTuple):
    """Converts a field from a record's value to its form in the ledger, and back."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def _each(fields: Mapping[str, _Packing], side: Literal["pack", "unpack"], values: _Json) -> _Json:
    return {name: getattr(fields[name], side)(v) if name in fields else v for name, v in values.items()}


def _columns(rows: Sequence[Mapping[str, Any]]) -> _Json:
    """A list per field, of one value where all rows have the same; null stands for a row without the field.

    A field of mappings is columns again.
    """
    columns: _Json = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if all(isinstance(value, dict) for value in values if value is not None):
            columns[name] = _columns([value or {} for value in values])
        else:
            columns[name] = values[:1] if all(value == values[0] for value in values) else values
    return columns


def _rows(columns: _Json, number: int | None = None) -> list[_Json]:
    """The rows of columns, without fields that are null or empty; ``number`` of them where no column is full."""
    number = max((len(c) for c in columns.values() if isinstance(c, list)), default=0) if number is None else number
    full = {
        name: _rows(column, number)
        if isinstance(column, dict)
        else column
        if len(column) == number
        else column * number
        for name, column in columns.items()
    }
    rows = zip(*full.values(), strict=True) if full else [()] * number
    return [{name: v for name, v in zip(full, values, strict=True) if v is not None and v != {}} for values in rows]


def _keyed(key: str, names: Sequence[str] = ()) -> _Packing:
    """Rows by key, as columns of which one is the key, or its number in ``names``."""
    numbers: dict[Any, Any] = {name: i for i, name in enumerate(names)}
    keys = dict(enumerate(names))
    return _Packing(
        lambda rows: _columns([{key: numbers.get(k, k), **row} for k, row in rows.items()]),
        lambda columns: {keys.get(k := row.pop(key), k): row for row in _rows(columns)},
    )


def _numbered(names: Sequence[Any]) -> _Packing:
    """Numbers by name, as a list in the order of ``names``."""
    return _Packing(partial(_by_number, names=names), partial(_by_name, names=names))


def _without_zeros(counts: Iterable[int]) -> list[int]:
    """The counts, with ``-n`` for ``n`` zeros in a row: most cells of a confusion matrix are empty."""
    short: list[int] = []
    for is_zero, cells in groupby(counts, key=lambda count: count == 0):
        run = list(cells)
        short += [-len(run)] if is_zero else run
    return short


def _matrix(short: Sequence[int]) -> list[list[int]]:
    """The square matrix of ``_without_zeros``."""
    counts = [count for number in short for count in ([number] if number > 0 else [0] * -number)]
    size = isqrt(len(counts))
    if size * size != len(counts):
        raise ValueError(f"a confusion matrix of {len(counts)} cells")
    return [counts[i : i + size] for i in range(0, len(counts), size)]


def _by_number(values: Mapping[Any, float], names: Sequence[Any]) -> Any:
    """The values in the order of ``names``, null for missing ones; by name if their order differs."""
    known = [name for name in names if name in values]
    if known != [*values]:
        return values
    return [values.get(name) for name in names[: names.index(known[-1]) + 1]] if known else {}


def _by_name(values: Any, names: Sequence[Any]) -> Any:
    if isinstance(values, dict):
        return values
    return {names[i]: value for i, value in enumerate(values) if value is not None}


class Place(NamedTuple):
    """Place of a round in its file.

    Attributes:
        round: its number.
        start: byte at which its line begins.
    """

    round: int
    start: int


class Rounds(Sequence[RoundRecord]):
    """Rounds of a ledger in their order; each access reads and parses anew, so that nothing stays in memory.

    An access raises ``UserError`` where a line is no round's record, or not what it was when the ledger was scanned.
    """

    def __init__(self, path: Path, line_format: LineFormat, places: Sequence[Place], is_light: bool = False) -> None:
        """``places``: of the rounds, in their order; ``is_light``: as ``light`` returns them."""
        self._path, self._format, self.places, self._is_light = path, line_format, tuple(places), is_light

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the rounds; nothing is read."""
        return tuple(place.round for place in self.places)

    def where(self, is_wanted: Callable[[int], bool]) -> Rounds:
        """Return the rounds whose numbers are wanted; nothing is read."""
        return self._of([place for place in self.places if is_wanted(place.round)])

    def light(self) -> Rounds:
        """Return the same rounds for a reader to whom single clients are no matter: smaller records, sooner read.

        They have no confusion matrices and no ``ClientRecord.sq_norm``, and of each clock's clients only the one or two
        from which ``RoundCost`` takes its longest compute time and its link share.
        """
        return Rounds(self._path, self._format, self.places, is_light=True)

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
            return self._of(self.places[index])
        return next(self._parsed([self.places[index]]))

    def __iter__(self) -> Iterator[RoundRecord]:
        """Yield the rounds in order."""
        return self._parsed(self.places)

    def __eq__(self, other: object) -> bool:
        """Return whether the records are equal one by one."""
        if not isinstance(other, Rounds | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Hash the file and the places."""
        return hash((self._path, self.places))

    def _of(self, places: Sequence[Place]) -> Rounds:
        return Rounds(self._path, self._format, places, self._is_light)

    def _parsed(self, places: Sequence[Place]) -> Iterator[RoundRecord]:
        if not places:
            return
        try:
            with opened(self._path) as file:
                for place in places:
                    file.seek(place.start)
                    yield self._parse(file.readline(_LONGEST), place)
        except OSError as error:
            raise UserError(f"{self._path}: {error.strerror}, expected the ledger that was scanned") from error

    def _parse(self, line: bytes, place: Place) -> RoundRecord:
        try:
            return self._format.read(bytes(_body(line)), self._is_light)
        except Unsealed as error:
            raise UserError(
                f"{self._path}: line {_number(self._path, place.start)} changed while it was read ({error}), expected "
                "the ledger that was scanned; read it again, or restore the file"
            ) from error
        except ValueError as error:
            raise _damaged(self._path, place.start, error) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLines:
    """Content of a ledger.

    Attributes:
        rounds: its rounds, in order.
        end: end of the intact part of the file.
        torn: description of a last line that is not whole; None without one.
        damage: error text for such a line that has its end: no driver was interrupted while it wrote that line, its
            bytes have changed since. None without one.
    """

    rounds: Rounds
    end: LedgerEnd
    torn: str | None
    damage: str | None = None


class _Rewound(Exception):
    """Raised where what stands after an earlier scan's end does not follow it."""


def scan(path: Path, line_format: LineFormat, after: LedgerEnd | None = None) -> LedgerLines:
    """Check the lines of a ledger; the last one counts only when it is complete.

    A driver writes a line's break last. So a last line without its break is one that is being written, or that a
    killed driver left; one with its break and another sha256 is damaged, which readers say where no driver is at work.

    ``after``: the end of an earlier scan, whose lines are not read again; where what stands there does not follow it,
    the ledger is read from its first line.

    Raises:
        UserError: a line before the last is damaged, or one is not the line of this run that comes next.
    """
    begin = line_format.begin
    with suppress(_Rewound):
        return _scan(path, line_format, after or begin)
    return _scan(path, line_format, begin)


def _scan(path: Path, line_format: LineFormat, end: LedgerEnd) -> LedgerLines:
    """Check the lines after ``end``.

    Raises:
        UserError: as ``scan``.
        _Rewound: the first of them does not follow ``end``.
    """
    places: list[Place] = []
    is_partial, torn, damage = end != line_format.begin, None, None
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is no file (a pipe has no end), expected the rounds of a run; restore it")
    with suppress(FileNotFoundError), opened(path) as file:
        if is_partial and (file.seek(end.num_bytes - 1), file.read(1)) != (end.num_bytes - 1, b"\n"):
            raise _Rewound
        while line := file.readline(_LONGEST):
            try:
                run, before, round_ = _head_of(line)
            except Unsealed as error:
                if file.read(1):
                    if is_partial and not places:
                        raise _Rewound from error
                    raise _damaged(path, end.num_bytes, error) from error
                number = _number(path, end.num_bytes)
                if line.endswith(b"\n"):
                    torn = f"line {number} was damaged"
                    damage = (
                        f"{path}: line {number}, the last one, is damaged ({error}), expected a round's JSON; restore "
                        "the file, or go on from the newest checkpoint before that round: relief-ray resume "
                        f"{typed(path.parent)}"
                    )
                else:
                    torn = f"line {number} was torn after {len(line)} bytes"
                break
            if why := line_format.refusal(run, before, round_, end):
                if is_partial and not places:
                    raise _Rewound
                raise UserError(
                    f"{path}: line {_number(path, end.num_bytes)} {why}; restore the file or run the cell again"
                )
            places.append(Place(round=round_, start=end.num_bytes))
            end = line_format.after(line, end)
    return LedgerLines(rounds=Rounds(path, line_format, places), end=end, torn=torn, damage=damage)


def _body(line: bytes) -> memoryview:
    """Return a line's record, all but its last brace, without a copy.

    Raises:
        Unsealed: the line has no end, or its bytes are not those that were written.
    """
    if not line.endswith(b"\n"):
        raise Unsealed("it has no end")
    return check(memoryview(line)[:-1], LINE)


def _head_of(line: bytes) -> tuple[str, str, int]:
    """Return the run, the digest of the line before and the round of a line, without parsing the rest.

    Raises:
        Unsealed: the line is not whole, or not a round's.
    """
    match = _HEAD.match(_body(line))
    if match is None:
        raise Unsealed("it does not begin with its run, the line before and a round's number")
    return match[1].decode(), match[2].decode(), int(match[3])


def _number(path: Path, start: int) -> int:
    """Return the number of the line that begins at byte ``start``, from 1."""
    number, last = 1, b"\n"
    with opened(path) as file:
        while start and (piece := file.read(min(start, CHUNK_BYTES))):
            number, start, last = number + piece.count(b"\n"), start - len(piece), piece[-1:]
    return number + (last != b"\n")


def _damaged(path: Path, start: int, why: ValueError) -> UserError:
    return UserError(
        f"{path}: line {_number(path, start)} is damaged ({why}), expected a round's JSON; restore the file or run the "
        "cell again"
    )
