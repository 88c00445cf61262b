"""The ledger of a run, ``rounds.jsonl``: a sealed line per round, chained to its run, checked whole, parsed one by one.

A long run's rounds are hundreds of megabytes as objects. So reading a ledger means to check the seal and the chain of
every line and to note where each round stands (0.7 ms per megabyte). A round is parsed when it is needed, and nothing
is kept; what a reader keeps of it is the reader's choice (``Rounds.without`` leaves parts of it out).

**Chain.** A line begins with its run's id (``RunRecord.id``), the digest of the line before it and its round's number,
and ends with the sha256 of all that, which is its own digest. Before the first line, whose number ``run.json`` names
(``first_round``), stands the run's id as digest. Rounds are numbered without gaps. So a line of another run, a line
that is there twice, two that are swapped and one that is missing are refused by the number of the line; only lines
missing at the end leave a whole chain, which is why a checkpoint names its round and model too. A line break is no part
of the digest. What that means where a ledger is not simply read from end to end:

* a rewind cuts after a line: the rest is a chain, and the next round follows its last line. Rounds that were cut off
  and come from elsewhere do not follow those that were computed again;
* a partial scan goes on from the ``LedgerEnd`` of an earlier one; where the next line does not follow it (the ledger
  was rewound since), all is read anew from the first line;
* a mended break changes no digest, so that the mended ledger is the one that was written;
* the copy of a mirror is a prefix of whole lines, and a prefix of a chain is a chain; a run goes on from it.

**Line.** It has numbers, and names only by their numbers in ``run.json`` (groups, sensors; a client's device follows
from its id); a name that is not there is spelled out. Clients and costs are columns: a list per field, or a single
value where all rows share it; null, or no list at all, is the field's default. A confusion matrix is its cells, row by
row, with ``-n`` for ``n`` empty ones. What follows from the rest is left out:
what a client uploads where it is what it trained, participants where all answered, a clock's column that is the first
clock's, waiting where it is the round without the client's busy time, joules that are its device's power times those
seconds. ``LineFormat`` has writer and reader side by side; what it reads is the record that was written, to the bit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from itertools import chain, groupby, takewhile
from math import isqrt
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias, overload

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from relief_ray.core.messages import ClientCost, Power, RoundCost, StageTimes
from relief_ray.records.schema import ClientRecord, RoundRecord, RunRecord
from relief_ray.support.errors import UserError
from relief_ray.support.files import LINE, Unsealed, check, sealed
from relief_ray.support.text import typed

# Lines of a hundred clients are longer than Python's usual buffer.
_BUFFER_BYTES = 2**20
_HEAD = re.compile(rb'\{"run":"([0-9a-f]+)","before":"([0-9a-f]+)","round":(\d+)[,}]')
_NUM_DIGITS = 64
# What a line holds, as JSON; keys and lists are this module's own.
_Json: TypeAlias = dict[str, Any]
_Columns: TypeAlias = dict[str, list[Any]]

_STAGES: Final = ("forward_s", "backward_s", "optimizer_s", "up_s", "down_s")
_FREE: _Columns = {"client": [], **{stage: [0.0] for stage in _STAGES}}
_CLIENT_DEFAULTS: Mapping[str, object] = {
    **{f.name: f.default for f in fields(ClientRecord) if f.default is not MISSING},
    **{f.name: f.default_factory() for f in fields(ClientRecord) if f.default_factory is not MISSING},
}
# Parts of a line that a reader may do without (``Rounds.without``).
LinePart = Literal["clients", "client_costs", "norms", "confusion"]


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
        first_round: number of its first round.
        groups: names of the model's parameter groups.
        sensors: names of the sensors.
        devices: device type by client.
        powers: power of each device type.
    """

    run: str
    first_round: int
    groups: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    powers: tuple[tuple[str, Power], ...] = ()

    @classmethod
    def of(cls, run: RunRecord) -> LineFormat:
        """The format that ``run.json`` describes."""
        sensors, clients = (run.fleet.get(key) for key in ("modalities", "clients"))
        return cls(
            run=run.id,
            first_round=run.first_round,
            groups=run.groups,
            sensors=tuple(map(str, sensors)) if isinstance(sensors, list | tuple) else (),
            devices=tuple(
                str(c["device"]) for c in (clients if isinstance(clients, list | tuple) else ()) if isinstance(c, dict)
            ),
            powers=tuple(run.devices.items()),
        )

    @property
    def begin(self) -> LedgerEnd:
        """The end of a ledger without a line."""
        return LedgerEnd(num_bytes=0, digest=self.run, next_round=self.first_round)

    def line(self, record: RoundRecord, end: LedgerEnd) -> bytes:
        """Return the line of the round that follows ``end``, with its seal and break.

        Raises:
            ValueError: another round is next.
        """
        if record.round != end.next_round:
            raise ValueError(f"round {record.round}, expected round {end.next_round}: a ledger has no gaps")
        head = {"run": self.run, "before": end.digest, "round": record.round}
        return sealed(to_json(head | self._written(record), inf_nan_mode="strings"), LINE) + b"\n"

    @staticmethod
    def after(line: bytes, end: LedgerEnd) -> LedgerEnd:
        """The end of a ledger once a whole line that follows ``end`` is added."""
        digest = line[-len(LINE.after) - _NUM_DIGITS - 1 : -len(LINE.after) - 1].decode()
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

    # Writing

    def _written(self, record: RoundRecord) -> _Json:
        special = {"round", "participants", "clients", "costs", "totals", "left_out", "d_bar", "divergence", "physical"}
        line: _Json = record.model_dump(mode="json", exclude_defaults=True, exclude=special)
        selections: dict[tuple[str, ...], int] = {}
        clients = _columns([self._client(client, selections) for client in record.clients])
        if clients.get("uploaded") == clients.get("trained"):
            clients.pop("uploaded", None)
        if list(record.participants) != [client.client for client in record.clients]:
            line["participants"] = record.participants
        totals = _columns([total.model_dump() for total in record.totals.values()])
        if list(record.totals) != list(record.costs):
            totals["clock"] = list(record.totals)
        line |= {
            "selections": [[self._token(token) for token in texts] for texts in selections],
            "clients": clients,
            "costs": self._written_costs(record.costs),
            "totals": totals,
            "left_out": {c: self._left(c, left.model_dump()) for c, left in record.left_out.items()},
            "d_bar": _by_number(record.d_bar, self.groups),
            "divergence": _by_number(record.divergence, self.groups),
            "physical": _columns(
                [{"client": c, **p.model_dump(exclude_defaults=True)} for c, p in record.physical.items()]
            ),
        }
        for part in ("metrics", "validation"):
            if (metrics := getattr(record, part)) is not None:
                line[part]["f1_by_modality"] = _by_number(metrics.f1_by_modality, self.sensors)
                line[part]["confusion"] = [_without_zeros(chain(*matrix)) for matrix in metrics.confusion]
        return {name: value for name, value in line.items() if value not in ({}, [])}

    def _client(self, client: ClientRecord, selections: dict[tuple[str, ...], int]) -> _Json:
        """A client's row; what it trained and uploaded is a number in ``selections``, which grow by what is new."""

        def number(texts: tuple[str, ...]) -> int:
            return selections.setdefault(texts, len(selections))

        special = ("trained", "uploaded", "measured_stages", "sq_norm", "probes")
        row: _Json = {f.name: getattr(client, f.name) for f in fields(client) if f.name not in special}
        row = {name: value for name, value in row.items() if value != _CLIENT_DEFAULTS.get(name)}
        row |= {"trained": number(client.trained), "uploaded": number(client.uploaded)}
        row |= {f"measured_{stage}": s for stage, s in asdict(client.measured_stages).items() if s != 0.0}
        if client.sq_norm:
            groups = list(map(_group_of, client.uploaded))
            row["sq_norm"] = list(client.sq_norm.values()) if list(client.sq_norm) == groups else client.sq_norm
        if client.probes:
            row["probes"] = [
                {**probe.model_dump(mode="json", exclude_defaults=True), "trained": number(probe.trained)}
                for probe in client.probes
            ]
        return row

    def _token(self, token: str) -> int | str | list[int | str]:
        """A whole group as its number, a part of one as its number and the part, another name as text."""
        group, _, part = token.partition("[")
        if (number := self._numbers.get(group)) is None:
            return token
        return [number, part.removesuffix("]")] if part else number

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {group: number for number, group in enumerate(self.groups)}

    def _left(self, client: int, facts: _Json) -> list[Any]:
        known = [facts["cause"], facts["since"]]
        return known if facts["device"] == self._device(client) else [*known, facts["device"]]

    def _device(self, client: int) -> str:
        return self.devices[client] if 0 <= client < len(self.devices) else ""

    # Reading

    def read(self, body: bytes, without: frozenset[LinePart] = frozenset()) -> RoundRecord:
        """Parse a line that was sealed, from its brace to its last value.

        Raises:
            ValueError: it is no round's record.
        """
        try:
            line: _Json = from_json(body + b"}")
            selections = [tuple(map(self._text, texts)) for texts in line.pop("selections", ())]
            clients = line.pop("clients", {})
            if "norms" in without:
                clients.pop("sq_norm", None)
            rows = [] if "clients" in without else [self._read_client(row, selections) for row in _rows(clients)]
            costs = line.get("costs", {})
            totals = line.pop("totals", {})
            clocks = totals.pop("clock", list(costs))
            line |= {
                "participants": line.get("participants", clients.get("client", [])),
                "clients": rows,
                "costs": self._read_costs(costs, "client_costs" not in without),
                "totals": dict(zip(clocks, _rows(totals, len(clocks)), strict=True)),
                "left_out": {c: self._read_left(int(c), *left) for c, left in line.get("left_out", {}).items()},
                "physical": {row.pop("client"): row for row in _rows(line.get("physical", {}))},
            }
            for part in ("d_bar", "divergence"):
                line[part] = _by_name(line.get(part, {}), self.groups)
            for part in ("metrics", "validation"):
                if part in line:
                    line[part]["f1_by_modality"] = _by_name(line[part].get("f1_by_modality", {}), self.sensors)
                    confusion = () if "confusion" in without else line[part].get("confusion", ())
                    line[part]["confusion"] = list(map(_matrix, confusion))
            del line["run"], line["before"]
            return RoundRecord.model_validate(line)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"]) from error
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from error

    def _read_client(self, row: _Json, selections: Sequence[tuple[str, ...]]) -> _Json:
        row["trained"] = selections[row["trained"]]
        row["uploaded"] = selections[uploaded] if (uploaded := row.get("uploaded")) is not None else row["trained"]
        row["measured_stages"] = {s: value for s in _STAGES if (value := row.pop(f"measured_{s}", None)) is not None}
        if isinstance(norms := row.get("sq_norm"), list):
            row["sq_norm"] = dict(zip(map(_group_of, row["uploaded"]), norms, strict=True))
        row["probes"] = [{**probe, "trained": selections[probe["trained"]]} for probe in row.get("probes", ())]
        return row

    def _text(self, token: int | str | list[Any]) -> str:
        if isinstance(token, list):
            return f"{self.groups[token[0]]}[{token[1]}]"
        return token if isinstance(token, str) else self.groups[token]

    def _read_left(self, client: int, cause: str, since: int, device: str | None = None) -> _Json:
        return {"device": self._device(client) if device is None else device, "cause": cause, "since": since}

    # Costs

    def _energy_j(self, client: int, times: StageTimes, wait_s: float) -> float | None:
        """Joules of a client's round by its device's power; None where that is not known."""
        power = self._powers.get(self._device(client))
        return None if power is None else power.energy_j(times, wait_s)

    @cached_property
    def _powers(self) -> Mapping[str, Power]:
        return dict(self.powers)

    def _written_costs(self, costs: Mapping[str, RoundCost]) -> _Json:
        """Columns of every clock: without stages that cost nothing, what is as in the first clock, and what follows."""
        written: _Json = {}
        first = _FREE
        for clock, cost in costs.items():
            own = _columns([{"client": c.client, **asdict(c.times)} for c in cost.clients]) or {"client": []}
            changed = {name: column for name, column in own.items() if column != first.get(name)}
            if any(c.wait_s != cost.round_s - c.times.busy_s for c in cost.clients):
                changed["wait_s"] = [c.wait_s for c in cost.clients]
            if any(c.energy_j != self._energy_j(c.client, c.times, c.wait_s) for c in cost.clients):
                changed["client_j"] = [c.energy_j for c in cost.clients]
            first = first if written else {**_FREE, **own}
            written[clock] = {"round_s": cost.round_s, "energy_j": cost.energy_j, **changed}
        return written

    def _read_costs(self, costs: _Json, with_clients: bool) -> _Json:
        """Costs by clock; without clients, only the one or two that decide the properties of ``RoundCost``."""
        read: _Json = {}
        first = _FREE
        for clock, columns in costs.items():
            round_s, energy_j = float(columns.pop("round_s")), float(columns.pop("energy_j"))
            own = {**first, **columns}
            first = first if read else {name: own[name] for name in _FREE}
            clients = self._read_client_costs(own, round_s, with_clients)
            read[clock] = RoundCost(clients=clients, round_s=round_s, energy_j=energy_j)
        return read

    def _read_client_costs(self, columns: _Columns, round_s: float, with_all: bool) -> tuple[ClientCost, ...]:
        """Costs of all clients, or of the busiest and of the one that computes longest."""
        if unknown := columns.keys() - {*_FREE, "wait_s", "client_j"}:
            raise ValueError(f"costs have {sorted(unknown)}, expected stages")
        number = len(columns["client"])
        full = {name: column if len(column) == number else column * number for name, column in columns.items()}
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


def _group_of(token: str) -> str:
    return token.partition("[")[0]


def _columns(rows: Sequence[Mapping[str, Any]]) -> _Columns:
    """A list per field, of one value where all rows have the same; null stands for a row without the field."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return {n: column[:1] if all(value == column[0] for value in column) else column for n, column in columns.items()}


def _rows(columns: _Columns, number: int | None = None) -> list[_Json]:
    """The rows of columns, without fields that are null; ``number`` of them where no column is full."""
    number = max(map(len, columns.values()), default=0) if number is None else number
    full = {name: column if len(column) == number else column * number for name, column in columns.items()}
    return [
        {name: value for name, value in zip(full, values, strict=True) if value is not None}
        for values in zip(*full.values(), strict=True)
    ]


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


def _by_number(values: Mapping[str, float], names: Sequence[str]) -> Any:
    """The values in the order of ``names``, null where there is none; where they stand otherwise, by name."""
    numbers = {name: i for i, name in enumerate(names)}
    places = [numbers.get(name, -1) for name in values]
    if -1 in places or places != sorted(places):
        return values
    return [values.get(name) for name in names[: places[-1] + 1]] if places else {}


def _by_name(values: Any, names: Sequence[str]) -> Any:
    if isinstance(values, dict):
        return values
    return {names[i]: value for i, value in enumerate(values) if value is not None}


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

    def __init__(
        self, path: Path, line_format: LineFormat, places: Sequence[Place], without: frozenset[LinePart] = frozenset()
    ) -> None:
        """``places``: of the rounds, in their order; ``without``: parts that records lack."""
        self._path, self._format, self.places, self._without = path, line_format, tuple(places), without

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the rounds; nothing is read."""
        return tuple(place.round for place in self.places)

    def where(self, is_wanted: Callable[[int], bool]) -> Rounds:
        """Return the rounds whose numbers are wanted; nothing is read."""
        return self._of([place for place in self.places if is_wanted(place.round)])

    def without(self, *parts: LinePart) -> Rounds:
        """Return the same rounds for a reader who asks for no ``parts``: their records are smaller and sooner read.

        ``clients``: no client's work. ``client_costs``: of each clock's clients only the one or two from which
        ``RoundCost`` takes its longest compute time and its link share. ``norms``: no ``ClientRecord.sq_norm``.
        ``confusion``: no confusion matrices.
        """
        return Rounds(self._path, self._format, self.places, self._without | set(parts))

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
            return self._of(self.places[index])
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

    def _of(self, places: Sequence[Place]) -> Rounds:
        return Rounds(self._path, self._format, places, self._without)

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
            return self._format.read(bytes(_body(line)), self._without)
        except Unsealed as error:
            raise UserError(
                f"{self._path}: line {_number(self._path, place.start)} changed while it was read ({error}), expected "
                "the ledger that was scanned; read it again, or restore the file"
            ) from error
        except ValueError as error:
            raise _damaged(self._path, place.start, str(error)) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Lines:
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


def scan(path: Path, line_format: LineFormat, after: LedgerEnd | None = None) -> Lines:
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


def _scan(path: Path, line_format: LineFormat, end: LedgerEnd) -> Lines:
    """Check the lines after ``end``.

    Raises:
        UserError: as ``scan``.
        _Rewound: the first of them does not follow ``end``.
    """
    places: list[Place] = []
    is_partial, torn, damage = end != line_format.begin, None, None
    with suppress(FileNotFoundError), path.open("rb", buffering=_BUFFER_BYTES) as file:
        if is_partial and (file.seek(end.num_bytes - 1), file.read(1)) != (end.num_bytes - 1, b"\n"):
            raise _Rewound
        for line in file:
            try:
                run, before, round_ = _head_of(line)
            except Unsealed as error:
                if next(file, b""):
                    if is_partial and not places:
                        raise _Rewound from error
                    raise _damaged(path, end.num_bytes, str(error)) from error
                number = _number(path, end.num_bytes)
                if line.endswith(b"\n"):
                    torn, damage = f"line {number} was damaged", _last_damaged(path, number, str(error))
                else:
                    torn = f"line {number} was torn after {len(line)} bytes"
                break
            if why := line_format.refusal(run, before, round_, end):
                if is_partial and not places:
                    raise _Rewound
                raise UserError(
                    f"{path}: line {_number(path, end.num_bytes)} {why}; restore the file or run the cell again"
                )
            places.append(Place(round=round_, start=end.num_bytes, num_bytes=len(line)))
            end = line_format.after(line, end)
    return Lines(rounds=Rounds(path, line_format, places), end=end, torn=torn, damage=damage)


# The end of a sealed line, one byte, and the beginning of another line.
_JOINT = re.compile(rb',"sha256":"[0-9a-f]{64}"\}([^\n])\{"run":"')


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
