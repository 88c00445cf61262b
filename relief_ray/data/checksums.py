"""The sha256 lists that travel with the package, and how a download compares to them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from relief_ray.data.files import sha256_file
from relief_ray.data.source import Source, open_source
from relief_ray.data.spec import DatasetSpec

Status = Literal["known", "differs", "unlisted"]
_ASSETS = Path(__file__).parent / "assets"


def known_digests(name: str) -> dict[str, str]:
    """File name (as the list gives it) to sha256; empty where no list is known."""
    path = _ASSETS / f"{name}.sha256"
    if not path.exists():
        return {}
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}


def digests(spec: DatasetSpec, source: Source) -> dict[str, str]:
    """The sha256 of every listed file of `source`, by the list's name: of members, or of the archive as a whole."""
    listed = known_digests(spec.name)
    if source.path.name in listed or (spec.name == "dsa" and source.path.is_file()):
        return {next(iter(listed)): sha256_file(source.path)}
    with open_source(spec, source) as members:
        names = {name: next((end for end in listed if name.endswith(end)), name) for name in members.names}
        return {end: hashlib.sha256(members.read(name)).hexdigest() for name, end in names.items()}


def compare(spec: DatasetSpec, found: Mapping[str, str]) -> dict[str, Status]:
    """Each digest against the list."""
    listed = known_digests(spec.name)
    return {name: _status(listed.get(name), digest) for name, digest in found.items()}


def _status(listed: str | None, digest: str) -> Status:
    if listed is None:
        return "unlisted"
    return "known" if listed == digest else "differs"
