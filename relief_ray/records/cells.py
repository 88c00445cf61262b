"""Cells: the planned or started runs of a study, and their status.

`plan.json` lists the planned cells of `relief-ray run` or `grid`; every cell has a folder of its own. Its status is
read from that folder each time it is needed and is stored nowhere else, so it survives crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from relief_ray.plugins.parts import OwnParts
from relief_ray.records.checkpoint import AGAIN, last_saved, named, newest_model
from relief_ray.records.identity import other_program
from relief_ray.records.ledger import LedgerLines, LineFormat, Rounds, scan
from relief_ray.records.lock import is_folder_locked
from relief_ray.records.run_folder import (
    ERROR_FILE,
    ROUNDS_FILE,
    RUN_FILE,
    behind,
    is_done,
    other_model,
    read_rounds,
    read_run,
)
from relief_ray.records.schema import MethodFacts, RecordedConfig, RoundRecord, RunRecord, Status, page_of, read_page
from relief_ray.support.errors import UserError, nearest, option, plain, shown
from relief_ray.support.files import (
    disk_errors,
    read_pieces,
    read_whole,
    refuse_links,
    sha256_of,
    stamp,
    values_in,
    write_atomic,
)
from relief_ray.support.frozen import FrozenConfig, strictly
from relief_ray.support.masking import mask_text
from relief_ray.support.text import typed
from relief_ray.support.user_yaml import read_bytes

PLAN_FILE = "plan.json"
# Whether `relief-ray run` or `relief-ray grid` planned the cells: `studies.plan.Plan` says what differs.
KindName = Literal["run", "grid"]
C = TypeVar("C")

STATUS_TEXT: Mapping[Status, str] = {
    "done": "finished, every planned round is there",
    "running": "a process is computing it now",
    "interrupted": "begun, not all rounds are there",
    "stopped": "a try that a search stopped early; its rounds so far are kept",
    "failed": "ended with an error, or its files are damaged",
    "planned": "planned, never begun",
    "stale": "computed by another program or on other frozen weights",
    "untested": "done, but never evaluated on the test part; of reports only",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CellState(Generic[C]):
    """Content of a cell's folder.

    Attributes:
        status: one of ``STATUS_TEXT``.
        why: reason of a failure or of staleness, else how far an open run is; empty for done and planned cells.
        num_rounds: lines of its ledger.
        run: its ``run.json``; None where there is none or it cannot be read.
        rounds: its ledger as it was checked; None where it was not.
        cell: the cell as a plan has it; None where the folder alone was looked at.
        folder: the folder.
    """

    status: Status
    why: str = ""
    num_rounds: int = 0
    run: RunRecord | None = None
    rounds: Rounds | None = None
    cell: C = None  # type: ignore[assignment]
    folder: Path = Path()

    def last_tested(self) -> RoundRecord | None:
        """The last round with an evaluation, of a run's end always its last one; None without one.

        Raises:
            UserError: the ledger was not checked before, and cannot be read.
        """
        rounds = read_rounds(self.folder, self.run) if self.rounds is None else self.rounds
        return next((record for record in reversed(rounds) if record.metrics or record.validation), None)

    @property
    def is_finished(self) -> bool:
        """True where its run came to its end, by this program or by another one."""
        return self.run is not None and self.run.status == "done"

    @property
    def is_open(self) -> bool:
        """True where the cell is neither done nor failed nor stale: a resume goes on with it."""
        return self.status in ("planned", "interrupted", "running")


def look(
    folder: Path,
    *,
    expected_hash: str | None = None,
    other_weights: Callable[[RunRecord], str | None] | None = None,
) -> CellState[None]:
    """Read a cell's status from its folder; change nothing there.

    A process that holds the folder's lock computes the cell now, so an ``error.json`` is of an earlier attempt.

    ``expected_hash`` (of the planned configuration) and ``other_weights`` (says in what frozen weights differ) turn on
    the comparison with this program: a cell of another one is stale.
    """
    if not (folder / RUN_FILE).exists():
        if is_folder_locked(folder):
            return CellState(status="running")
        error = read_error(folder)
        return CellState(status="planned" if error is None else "failed", why=error or "")
    try:
        run = read_run(folder)
    except UserError as damaged:
        return CellState(status="failed", why=str(damaged))
    # Another program may hash the same cell differently, and write other lines: this comes first.
    other = None if expected_hash is None else other_program(run)
    if other is None and expected_hash not in (None, run.config_hash):
        return CellState(status="failed", why=f"{folder}: holds another run; set it aside", run=run)
    if other is None and other_weights is not None:
        other = other_weights(run)
    if not other:
        return status_of(folder, run)
    # Whole lines of another program's ledger, which this one may be unable to parse.
    path = folder / ROUNDS_FILE
    num_rounds = sum(piece.count(b"\n") for piece in read_pieces(path)) if path.is_file() else 0
    return CellState(status="stale", why=other, num_rounds=num_rounds, run=run)


def status_of(folder: Path, run: RunRecord) -> CellState[None]:
    """Decide the status of the run in a folder by its record, ledger and newest checkpoint; no tensor is read."""
    path = folder / ROUNDS_FILE
    try:
        lines = _scanned(path, LineFormat.of(run), stamp(path) if path.exists() else "")
        status, why = _judge(folder, run, lines)
    except (OSError, UserError) as damaged:
        return CellState(status="failed", why=str(damaged), run=run)
    return CellState(status=status, why=why, num_rounds=len(lines.rounds), run=run, rounds=lines.rounds)


def refuse_linked(cell: Path) -> None:
    """Refuse a folder that is a link beside a plan: its name is the plan's, not one that the user typed.

    Raises:
        UserError: it is one.
    """
    if (cell.parent / PLAN_FILE).exists():
        refuse_links([cell])


def refuse_contradicted(folder: Path, run: RunRecord) -> None:
    """Refuse a run whose ledger lacks its newest checkpoint's round, or a finished one that lacks its last round.

    Raises:
        UserError: it says which.
    """
    if run.status == "done":
        if (state := status_of(folder, run)).status == "failed":
            raise UserError(state.why)
    elif why := behind(read_rounds(folder, run).numbers, last_saved(folder)):
        raise UserError(f"{folder / ROUNDS_FILE}: {why}; {AGAIN}")


def _model_conflict(folder: Path, rounds: Rounds) -> str:
    """Return how the newest checkpoint differs from the ledger's line of its round; empty where it does not."""
    if (saved := newest_model(folder)) is None:
        return ""
    round_, model = saved
    for record in rounds.where(lambda number: number == round_):
        if record.model_sha256 != model:
            return f"{folder}: {other_model(round_, model, record.model_sha256)}"
        if round_ == (last := rounds.numbers[-1]):
            return ""
        return (
            f"{folder}: the newest whole checkpoint is of round {round_}, expected one of the last round, {last}; "
            "restore it, or remove the folder and resume its study"
        )
    return f"{folder}: the ledger lacks round {round_} of the checkpoint; expected one run's files; restore both"


def _judge(folder: Path, run: RunRecord, lines: LedgerLines) -> tuple[Status, str]:
    """Return the status of a run whose record and ledger could be read, and why."""
    path, numbers = folder / ROUNDS_FILE, lines.rounds.numbers
    if is_done(run, numbers):
        conflict = _model_conflict(folder, lines.rounds)
        return ("failed" if conflict else "done"), conflict
    if run.status == "done":
        planned = run.config.get("rounds")
        why = (
            f"{path}: ends with {named(max(numbers, default=0))} ({len(numbers)} of {planned or '?'} rounds), expected "
            f"round {planned} of a finished run; restore the file, or remove the folder and resume"
        )
        return "failed", "; ".join(filter(None, (why, lines.torn)))
    if is_folder_locked(folder):
        return "running", ""
    if lines.damage:
        return "failed", lines.damage
    if run.status == "stopped":
        return "stopped", run.note
    error = read_error(folder)
    if error is not None or run.status == "failed":
        return "failed", error or run.note or "the run failed"
    lacks = f"{lines.torn}; a resume cuts it off" if lines.torn else behind(numbers, last_saved(folder))
    return "interrupted", "; ".join(filter(None, (run.note, lacks and f"{path}: {lacks}")))


@lru_cache(maxsize=4096)
def _scanned(path: Path, line_format: LineFormat, stamped: str) -> LedgerLines:
    """A ledger's lines; checked once as long as its ``stamp`` stays.

    Raises:
        UserError: as ``scan``.
    """
    return scan(path, line_format)


def read_error(folder: Path) -> str | None:
    """Error that a grid kept in ``error.json``, credentials masked; None where the cell did not fail."""
    path = folder / ERROR_FILE
    if not path.exists():
        return None
    try:
        return mask_text(str(values_in(read_whole(path))["error"]))
    except (OSError, ValueError, KeyError, TypeError):
        return f"failed; its {ERROR_FILE} is damaged"


def _plain_name(name: str) -> str:
    """The name of a folder beside the plan file, ``.`` for the file's own: a path would lead anywhere."""
    if name != "." and (name in ("", "..") or "/" in name or not name.isprintable()):
        raise ValueError(f"found {name!r}, expected one plain name of a folder")
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]


class PlannedCell(FrozenConfig):
    """Row of a plan file, unparsed: a resume and a report read plans whose configurations this program cannot check.

    Attributes:
        folder: name of its folder beside the plan file.
        label: name of its strategy.
        setting: grid only; its name without method, fold and seed.
        hash: that of its configuration's identity when it was planned; a resume of the begun cell goes by it, since
            another program may hash the same configuration differently. Empty where it is not known.
        method: facts of its method.
        config: its configuration as JSON, credentials masked.
    """

    folder: PlainName
    label: str
    setting: str = ""
    hash: str = ""
    method: MethodFacts
    config: RecordedConfig


class SuggestedSearch(FrozenConfig):
    """A search whose tries a sampler suggests, so that a resume can ask it again.

    Attributes:
        sampler: name of the sampler.
        tries: tries of every method at every place.
        seed: of the sampler.
        target: the grid, by name or file.
        settings: the user's settings of the grid.
        bounds: smallest and largest value of every number, by method and dotted key.
    """

    sampler: Literal["optuna"]
    tries: int
    seed: int
    target: str
    settings: tuple[str, ...] = ()
    bounds: dict[str, dict[str, tuple[float, float]]] = Field(default_factory=dict)

    @property
    def sources(self) -> dict[str, str]:
        """Sha256 of the target's file as it is now, by its name; empty where the target is no file."""
        file = Path(self.target)
        return {self.target: sha256_of(file.read_bytes())} if file.is_file() else {}


class EarlyStopping(FrozenConfig):
    """Rule by which a search stops weak tries before their last round.

    Attributes:
        scheduler: ``asha``, asynchronous successive halving (Li et al., MLSys 2020).
        grace_rounds: rounds that every try gets; the first rung.
        reduction_factor: the next rung has so many times the rounds, and about one try of so many goes on there.
    """

    scheduler: Literal["asha"]
    grace_rounds: int = Field(ge=1)
    reduction_factor: int = Field(ge=2)

    @property
    def words(self) -> str:
        """The rule as options of the command."""
        numbers = f"--grace-rounds {self.grace_rounds} --reduction-factor {self.reduction_factor}"
        return f"stopped by --scheduler {self.scheduler} {numbers}"


# Claims of a study: at most six comparisons of two methods, written down before the first cell is computed. The file is
# YAML. A plan keeps its sha256 and a copy, so that a report can tell a claim that was named beforehand from one that
# was chosen after looking at results.

MAX_CLAIMS = 6
CLAIMS_FILE = "claims.yaml"

_FIGURE_TEXT: Mapping[str, str] = {
    "f1": "F1",
    "f1_rare": "rare-modality F1",
    "f1_own_sensors": "F1 through own sensors",
    "f1_own_subjects": "F1 on own subjects",
    "f1_at_seconds": "F1 at equal simulated seconds",
    "f1_own_sensors_at_seconds": "F1 through own sensors at equal simulated seconds",
    "f1_at_joules": "F1 at equal joules",
}


def figure_named(name: str, where: str, own: Iterable[str] = ()) -> str:
    """Return the name of a figure; ``where`` begins the message: ``--figure``, ``figure``.

    ``own``: users' metrics, import paths or their last part, which are figures too.

    Raises:
        UserError: there is none.
    """
    known = dict.fromkeys([*_FIGURE_TEXT, *(path.rpartition(":")[2] for path in own)])
    if name not in known:
        hint = nearest(str(name), known)
        raise UserError(f"{where} {shown(name)}: unknown{hint}; expected one of {', '.join(known)}")
    return name


def figure_text(figure: str) -> str:
    """The figure in words; a user's metric is its name."""
    return _FIGURE_TEXT.get(figure, figure)


class Claim(FrozenConfig):
    """One comparison: ``first`` is better than ``second``, or with a ``margin`` not worse by that much.

    Attributes:
        first: label of the method that the claim speaks for, as tables print it.
        second: label of the method that it is compared with.
        figure: what is compared; also a metric of the user's own, by its name.
        margin: points of F1; given, the claim is one-sided: ``first`` is not worse than ``second`` by this or more.
        text: the claim in a sentence of its own; empty: made from the other fields.
    """

    first: str = Field(min_length=1)
    second: str = Field(min_length=1)
    figure: str = Field(default="f1", pattern=r"^[^\W\d]\w*$")
    margin: float | None = Field(default=None, gt=0.0)
    text: str = ""

    @model_validator(mode="after")
    def _two_methods(self) -> Claim:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first!r}, expected two methods")
        return self

    @property
    def brief(self) -> str:
        """``v1 > fedavg in F1``, or ``relief not worse than fedavg by 1 point in F1``."""
        figure = figure_text(self.figure)
        if self.margin is None:
            return f"{self.first} > {self.second} in {figure}"
        points = f"{self.margin:g} point{'' if self.margin == 1 else 's'}"
        return f"{self.first} not worse than {self.second} by {points} in {figure}"


class Claims(FrozenConfig):
    """All claims of one study.

    Attributes:
        data: name of the data set, of one's own loader also without its object's name; empty: of any.
        split: name of the split; empty: of any.
        where: further keys of the configuration (dotted) and their values, where a study has several settings.
        claims: one to six claims, in the order in which reports list them.
    """

    data: str = ""
    split: str = ""
    where: dict[str, JsonValue] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = Field(min_length=1)

    def is_of(self, data: str) -> bool:
        """True where they are about this data set."""
        module = data.partition(":")[0]
        return self.data in ("", data, module, Path(module).stem)

    @model_validator(mode="after")
    def _few_and_different(self) -> Claims:
        if len(self.claims) > MAX_CLAIMS:
            raise ValueError(
                f"{len(self.claims)} claims, expected at most {MAX_CLAIMS}: each further one makes all of them harder "
                "to support"
            )
        twice = [brief for brief, number in Counter(c.brief for c in self.claims).items() if number > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} is named twice")
        return self


class PlannedClaims(FrozenConfig):
    """Facts that a plan file keeps of its claims: the file's sha256, and when it was taken in (UTC, ISO 8601)."""

    sha256: str
    at: str


def parse_claims(content: bytes, where: str) -> Claims:
    """Check the content of a claims file; ``where`` names it in errors.

    Raises:
        UserError: it is no YAML, has unknown keys, no or more than six claims, or one of them twice.
    """
    try:
        return strictly(Claims, read_bytes(content, where))
    except ValidationError as error:
        faults = [f for f in error.errors() if f["type"] != "too_short" or not f["input"]]  # too few that are valid
        raise UserError("\n".join(f"{where}: {_said(fault)}" for fault in faults)) from error


def _said(fault: ErrorDetails) -> str:
    """Describe a fault of a claims file: the key, the found and the expected value."""
    key, kind = ".".join(map(str, fault["loc"])), fault["type"]
    found = f"{key} = {shown(fault['input'])}" if key else f"holds {shown(fault['input'])}"
    if kind == "extra_forbidden":
        known = Claim.model_fields if "." in key else Claims.model_fields
        return f"unknown key {key!r}{nearest(key.rpartition('.')[2], known)}; expected one of {', '.join(known)}"
    if kind == "model_type" and not key:
        kind = "file_type"
    fits = _FITS.get(kind) or plain(fault["msg"])
    return f"{key if kind in ('missing', 'value_error') else found}: {fits}".removeprefix(": ")


_FITS = {
    "missing": "found no value, expected one; set it",
    "string_type": "expected a text",
    "string_too_short": "expected the name of a method",
    "string_pattern_mismatch": "expected the name of a figure",
    "float_type": "expected a number",
    "tuple_type": "expected a list",
    "too_short": "expected at least one claim",
    "model_type": "expected a mapping, e.g. {first: relief, second: fedavg, figure: f1}",
    "file_type": "expected a mapping, e.g. claims: [{first: relief, second: fedavg, figure: f1}]",
    "dict_type": "expected a mapping",
}


def read_claims(path: Path) -> tuple[Claims, bytes]:
    """Read a claims file; return its claims and its bytes.

    Raises:
        UserError: it cannot be read, or is not what ``parse_claims`` expects.
    """
    try:
        content = read_whole(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a claims file") from error
    return parse_claims(content, str(path)), content


def register_claims(
    folder: Path, source: Path | None, known: PlannedClaims | None, *, begun: int, now: str
) -> PlannedClaims | None:
    """Copy the claims to a plan's folder; return their entry for the plan file.

    ``source``: the claims file that was named, if any; ``known``: what the plan says already; ``begun``: number of its
    cells that were begun.

    Raises:
        UserError: claims that the plan does not have, after a cell was begun.
    """
    if source is None:
        return known
    _, content = read_claims(source)
    digest = sha256_of(content)
    if known is not None and known.sha256 == digest:
        return known
    if begun:
        named = "without any" if known is None else f"under other claims, named {known.at}"
        raise UserError(
            f"{source}: claims have to be there before the first cell is computed, but {folder} holds {begun} cells "
            f"that were begun {named}; choose a new folder with {option('out', 'DIR')}"
        )
    with disk_errors(folder, "keep the claims"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / CLAIMS_FILE, content)
    return PlannedClaims(sha256=digest, at=now)


class PlanFile(FrozenConfig):
    """Content of `plan.json`.

    Attributes:
        kind: the command that planned it, ``run`` or ``grid``.
        name: name of the preset or grid.
        title: a grid's own; empty for a run.
        claims: those that the cells are to judge, if any.
        search: how a search whose tries are suggested one after the other goes on; None: all cells are listed.
        stopping: how weak tries are stopped early; None: every try is trained to its end.
        own_parts: parts of notebooks and scripts that the cells need, by file.
        cells: the planned cells, in order of computation.
    """

    kind: KindName
    name: str
    title: str = ""
    claims: PlannedClaims | None = None
    search: SuggestedSearch | None = None
    stopping: EarlyStopping | None = None
    own_parts: OwnParts = Field(default_factory=dict)
    cells: tuple[PlannedCell, ...]


def read_plan_file(path: Path) -> PlanFile:
    """Planned cells, in order of computation.

    Raises:
        UserError: the file is damaged, or not there.
    """
    try:
        return read_page(path, PlanFile)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: damaged ({error}), expected a plan that `relief-ray run` or `relief-ray grid` wrote; move it "
            "away; start again every `relief-ray grid` of this --out DIR, which goes on with the cells that are there; "
            f"of `relief-ray run` first finish what was begun (relief-ray resume {typed(path.parent / 'RUN')}), then "
            "start it again, which reuses finished runs"
        ) from error


def write_plan_file(path: Path, plan: PlanFile) -> None:
    """Write a plan; fields that are empty (a run's title and setting) are left out."""
    write_atomic(path, page_of(plan, exclude_defaults=True))


def count_begun(out: Path, cells: Sequence[str]) -> int:
    """Number of the cells (names of folders in ``out``) of which a run was begun."""
    return sum((out / name / RUN_FILE).exists() for name in cells)


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Run folders among and directly below ``folders``, in the order named, each once.

    Raises:
        UserError: a folder holds none.
    """
    runs: list[Path] = []
    for folder in folders:
        below = folder.glob(f"*/{RUN_FILE}")
        inside = [folder] if (folder / RUN_FILE).exists() else sorted(path.parent for path in below)
        if not inside:
            raise UserError(
                f"{folder}: no {RUN_FILE} there or one folder below; name a folder that `relief-ray run` made"
            )
        runs += inside
    return list(dict.fromkeys(runs))
