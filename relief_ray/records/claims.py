"""Claims of a study: at most six comparisons of two methods, written down before the first cell is computed.

The file is YAML. A plan keeps its sha256 and a copy, so that a report can tell a claim that was named beforehand from
one that was chosen after looking at results.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from relief_ray.support.errors import UserError, nearest, shown
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.user_yaml import read_bytes

MAX_CLAIMS = 6
CLAIMS_FILE = "claims.yaml"

Figure = Literal["f1", "f1_rare", "f1_own_sensors", "f1_own_subjects", "f1_at_seconds", "f1_at_joules"]

FIGURE_TEXT: Mapping[Figure, str] = {
    "f1": "F1",
    "f1_rare": "rare-modality F1",
    "f1_own_sensors": "F1 through own sensors",
    "f1_own_subjects": "F1 on own subjects",
    "f1_at_seconds": "F1 at equal simulated seconds",
    "f1_at_joules": "F1 at equal joules",
}


def figure_named(name: str, where: str) -> Figure:
    """Return the figure of that name; ``where`` begins the message: ``--figure``, ``figure``.

    Raises:
        UserError: there is none.
    """
    known = {str(figure): figure for figure in FIGURE_TEXT}
    if name not in known:
        hint = nearest(str(name), known)
        raise UserError(f"{where} {shown(name)}: unknown{hint}; expected one of {', '.join(known)}")
    return known[name]


class Claim(FrozenConfig):
    """One comparison: ``first`` is better than ``second``, or with a ``margin`` not worse by that much.

    Attributes:
        first: label of the method that the claim speaks for, as tables print it.
        second: label of the method that it is compared with.
        figure: what is compared.
        margin: points of F1; given, the claim is one-sided: ``first`` is not worse than ``second`` by this or more.
        text: the claim in a sentence of its own; empty: made from the other fields.
        same_work: the methods train the same groups and differ in something else (loss, aggregation). Without it, a
            claim between methods whose assignments were equal in every round is refused.
    """

    first: str = Field(min_length=1)
    second: str = Field(min_length=1)
    figure: Figure = "f1"
    margin: float | None = Field(default=None, gt=0.0)
    text: str = ""
    same_work: bool = False

    @model_validator(mode="after")
    def _two_methods(self) -> Claim:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first!r}, expected two methods")
        return self

    @property
    def brief(self) -> str:
        """``v1 > fedavg in F1``, or ``relief not worse than fedavg by 1 point in F1``."""
        figure = FIGURE_TEXT[self.figure]
        if self.margin is None:
            return f"{self.first} > {self.second} in {figure}"
        points = f"{self.margin:g} point{'' if self.margin == 1 else 's'}"
        return f"{self.first} not worse than {self.second} by {points} in {figure}"

    @property
    def sentence(self) -> str:
        """``text``, or else ``brief``."""
        return self.text or self.brief


class Claims(FrozenConfig):
    """All claims of one study.

    Attributes:
        data: name of the data set.
        split: name of the split.
        where: further keys of the configuration (dotted) and their values, where a study has several settings.
        claims: one to six claims, in the order in which reports list them.
    """

    data: str
    split: str
    where: dict[str, JsonValue] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = Field(min_length=1)

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


def claims_digest(content: bytes) -> str:
    """Return the sha256 of a claims file."""
    return hashlib.sha256(content).hexdigest()


def parse_claims(content: bytes, where: str) -> Claims:
    """Check the content of a claims file; ``where`` names it in errors.

    Raises:
        UserError: it is no YAML, has unknown keys, no or more than six claims, or one of them twice.
    """
    try:
        return Claims.model_validate(read_bytes(content, where))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors()]
        raise UserError("\n".join(f"{where}: {line.replace('Value error, ', '')}" for line in lines)) from error


def read_claims(path: Path) -> tuple[Claims, bytes]:
    """Read a claims file; return its claims and its bytes.

    Raises:
        UserError: it cannot be read, or is not what ``parse_claims`` expects.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a claims file") from error
    return parse_claims(content, str(path)), content


def register_claims(
    folder: Path, source: Path | None, known: PlannedClaims | None, *, begun: int, now: str
) -> PlannedClaims | None:
    """Keep a copy of the claims in a plan's folder; return what the plan file has to say of them.

    ``source``: the claims file that was named, if any; ``known``: what the plan says already; ``begun``: number of its
    cells that were begun.

    Raises:
        UserError: claims that the plan does not have, after a cell was begun.
    """
    if source is None:
        return known
    _, content = read_claims(source)
    digest = claims_digest(content)
    if known is not None and known.sha256 == digest:
        return known
    if begun:
        named = "without any" if known is None else f"under other claims, named {known.at}"
        raise UserError(
            f"{source}: claims have to be there before the first cell is computed, but {folder} holds {begun} cells "
            f"that were begun {named}; choose a new folder with --out DIR"
        )
    with disk_errors(folder, "keep the claims"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / CLAIMS_FILE, content)
    return PlannedClaims(sha256=digest, at=now)
