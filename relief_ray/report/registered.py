"""Claims that were named before the first run: read from the plans of the folders that a report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from relief_ray.records.cells import (
    CLAIMS_FILE,
    MAX_CLAIMS,
    PLAN_FILE,
    Claims,
    PlannedCell,
    PlannedClaims,
    claims_digest,
    parse_claims,
    read_plan_file,
)
from relief_ray.records.committed import CommittedClaims, read_committed
from relief_ray.report.inventory import choice_kind, variant_names
from relief_ray.report.runs import Repetition, Replicate, below, flat, is_committed, repetition_of, replicate_of
from relief_ray.support.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Registered:
    """Claims of a plan.

    Attributes:
        claims: the claims.
        text: content of their file.
        at: since when they have been there (UTC, ISO 8601).
        planned: replicates of each method that the plan has in the claims' data and split, with what they repeat.
    """

    claims: Claims
    text: str
    at: str
    planned: Mapping[str, Mapping[Replicate, Repetition]]

    @property
    def sha256(self) -> str:
        """Digest of the claims file."""
        return claims_digest(self.text.encode())

    def planned_pairs(self, first: str, second: str) -> frozenset[Replicate]:
        """The replicates that were planned for both methods."""
        return frozenset(self.planned.get(first, {}).keys() & self.planned.get(second, {}).keys())

    @property
    def committed(self) -> CommittedClaims:
        """The form in which a file of committed results keeps them."""
        planned = {
            name: tuple((*replicate, *repetition) for replicate, repetition in replicates.items())
            for name, replicates in self.planned.items()
        }
        return CommittedClaims(text=self.text, at=self.at, planned=planned)


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """All claims of a page, each file once, and sentences on those that cannot be used."""

    files: tuple[Registered, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def num_claims(self) -> int:
        """Number of claims over which p-values are corrected."""
        return sum(len(f.claims.claims) for f in self.files)


def registry_of(folders: Iterable[Path]) -> Registry:
    """The claims of every plan in, below or right above the folders, and of committed results among them.

    None where they are more than six in all.
    """
    folders = [Path(folder) for folder in folders]
    files: dict[str, Registered] = {}
    problems: list[str] = []
    for path in dict.fromkeys(_plans(folders)):
        try:
            plan = read_plan_file(path)
            if plan.claims is not None:
                found = _registered(path.parent / CLAIMS_FILE, plan.claims, plan.cells)
                files.setdefault(found.sha256, found)
        except UserError as error:
            problems.append(str(error))
    for path in filter(is_committed, folders):
        if (kept := read_committed(path).claims) is not None:
            known_claims = _kept(path, kept)
            files.setdefault(known_claims.sha256, known_claims)
    known = Registry(files=tuple(files.values()), problems=tuple(problems))
    if known.num_claims <= MAX_CLAIMS:
        return known
    many = (
        f"{len(known.files)} claims files with {known.num_claims} claims stand on this page, expected at most "
        f"{MAX_CLAIMS}: none is judged; report one study at a time"
    )
    return Registry(problems=(*known.problems, many))


def _plans(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        yield from (path.resolve() for path in below(folder, PLAN_FILE))
        if (above := folder.resolve().parent / PLAN_FILE).exists():
            yield above


def _registered(path: Path, planned: PlannedClaims, cells: Sequence[PlannedCell]) -> Registered:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): no claim of it is judged; restore it") from error
    if claims_digest(content) != planned.sha256:
        raise UserError(
            f"{path}: was changed after the plan was made (sha256 {claims_digest(content)[:12]}, in the plan "
            f"{planned.sha256[:12]}): no claim of it is judged; restore the file"
        )
    claims = parse_claims(content, str(path))
    return Registered(claims=claims, text=content.decode(), at=planned.at, planned=planned_replicates(claims, cells))


def _kept(path: Path, kept: CommittedClaims) -> Registered:
    """The claims that committed results carry."""
    return Registered(
        claims=parse_claims(kept.text.encode(), f"{path}: claims"),
        text=kept.text,
        at=kept.at,
        planned={name: {row[:3]: row[3:] for row in rows} for name, rows in kept.planned.items()},
    )


def planned_replicates(claims: Claims, cells: Sequence[PlannedCell]) -> dict[str, dict[Replicate, Repetition]]:
    """Replicates by method of the planned cells that the claims are about."""
    planned = [cell for cell in cells if is_about(claims, cell.config)]
    about = [(cell.method.name, cell.config) for cell in planned]
    replicates: dict[str, dict[Replicate, Repetition]] = {}
    for name, (_, config) in zip(variant_names(about, [cell.method for cell in planned]), about, strict=True):
        replicates.setdefault(name, {})[replicate_of(config)] = repetition_of(config)
    return replicates


def is_about(claims: Claims, config: Mapping[str, JsonValue]) -> bool:
    """True for a run of the claims' data, split and further values; a search's cells only where the claims say so."""
    values = flat(config) | {"choice": choice_kind(config)}
    wanted = {"data.name": claims.data, "data.split": claims.split, "choice": "", **claims.where}
    return all(values.get(key) == value for key, value in wanted.items())
