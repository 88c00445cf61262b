"""Verification of a dataset: sha256 digests against the packaged lists, and the structure of the parsed recordings."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from relief_ray.data import cache
from relief_ray.data.dataset import locate, parse_source
from relief_ray.data.loader import DatasetSpec, Recording
from relief_ray.data.registry import get_loader, get_spec
from relief_ray.data.source import Source, open_source
from relief_ray.support.files import sha256_file

FileCheck = Literal["known", "differs", "unlisted"]

_ASSETS = Path(__file__).parent / "assets"


def known_digests(name: str) -> dict[str, str]:
    """File name (as the list gives it) to sha256; empty where no list is known."""
    path = _ASSETS / f"{name}.sha256"
    if not path.exists():
        return {}
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {file: digest for digest, file in (line.split(maxsplit=1) for line in lines)}


def digests(spec: DatasetSpec, source: Source) -> dict[str, str]:
    """The sha256 of the source's files by the list's names: of each member, or of the complete archive."""
    listed = known_digests(spec.name)
    archive = next((name for name in listed if name.endswith((".zip", ".npz"))), None)
    if archive is not None and source.path.is_file():
        return {archive: sha256_file(source.path)}
    with open_source(spec, source) as members:
        names = {name: next((end for end in listed if name.endswith(end)), name) for name in members.names}
        return {end: hashlib.sha256(members.read(name)).hexdigest() for name, end in names.items()}


def compare(spec: DatasetSpec, computed: Mapping[str, str]) -> dict[str, FileCheck]:
    """Compare each computed digest with the list: the same, different, or not listed."""
    listed = known_digests(spec.name)
    return {name: _check(listed.get(name), digest) for name, digest in computed.items()}


def _check(listed: str | None, digest: str) -> FileCheck:
    if listed is None:
        return "unlisted"
    return "known" if listed == digest else "differs"


_SLACK = 3.0


class VerifyReport(TypedDict):
    """Result of a check of a dataset's files; JSON-able.

    Attributes:
        name: the dataset's name.
        path: place of the raw files.
        origin: `real` or `SYNTHETIC`.
        files: ``known``, ``differs`` or ``unlisted`` by file, from its digest.
        num_known: number of known files.
        problems: faults of structure or content.
        warnings: oddities that are no faults.
        ok: whether there are no problems; digests do not count.
    """

    name: str
    path: str
    origin: str
    files: dict[str, str]
    num_known: int
    problems: list[str]
    warnings: list[str]
    ok: bool


def verify(name: str, root: str | Path | None = None) -> VerifyReport:
    """Hash all files again (cached digests are not trusted), parse them, and compare the cache entry, if there is one.

    Raises UserError where the files cannot be parsed at all.
    """
    return verify_source(get_spec(name), locate(get_loader(name), root))


def verify_source(spec: DatasetSpec, source: Source) -> VerifyReport:
    """Verify the files of a source, as `verify` does."""
    computed = digests(spec, source)
    states = compare(spec, computed)
    listed = known_digests(spec.name)
    recordings = parse_source(spec, source)
    synthetic = source.synthetic or any(recording.synthetic for recording in recordings)
    warnings = [
        f"{file}: sha256 {computed[file]} {_explain(state, listed.get(file, ''))}"
        for file, state in states.items()
        if listed and state != "known" and not (state == "unlisted" and len(states) > 100)
    ]
    problems = [text for recording in recordings for text in structure(spec, recording)]
    problems += _cache_problems(spec, source, recordings)
    return {
        "name": spec.name,
        "path": str(source.path),
        "origin": "SYNTHETIC" if synthetic else "real",
        "files": dict(states),
        "num_known": sum(state == "known" for state in states.values()),
        "problems": problems,
        "warnings": warnings,
        "ok": not problems,
    }


def _explain(state: str, expected: str) -> str:
    if state == "differs":
        return f"differs from the list's {expected}; the structural checks decide"
    return "is not in the list; the structural checks decide"


def structure(spec: DatasetSpec, recording: Recording) -> list[str]:
    """Implausible facts about one subject, in words: activity lengths (absent ones aside), NaN shares, value ranges."""
    subject = f"subject {recording.subject}"
    return [
        f"{subject}: {text}" for text in (*_lengths(spec, recording), *_nan(spec, recording), *_ranges(spec, recording))
    ]


def _activity_seconds(spec: DatasetSpec, labels: NDArray[np.int16]) -> dict[str, float]:
    """Seconds per class (raw codes in, names out)."""
    return {
        name: float((labels == code).sum()) / spec.rate_hz for code, name in zip(spec.labels, spec.classes, strict=True)
    }


def _lengths(spec: DatasetSpec, recording: Recording) -> list[str]:
    if spec.activity_s == (0.0, 0.0):  # its description says nothing about lengths
        return []
    shortest, longest = spec.activity_s[0] / _SLACK, spec.activity_s[1] * _SLACK
    return [
        f"{name} lasts {seconds:.0f} s, expected {shortest:.0f} to {longest:.0f} s (or none)"
        for name, seconds in _activity_seconds(spec, recording.labels).items()
        if seconds and not shortest <= seconds <= longest
    ]


def _nan(spec: DatasetSpec, recording: Recording) -> list[str]:
    shares = {key: recording.facts[key] for key in ("nan_share", "nan_share_imu") if key in recording.facts}
    return [
        f"{key} is {share:.2f}, expected at most {spec.max_nan_share:g}"
        for key, share in shares.items()
        if isinstance(share, float) and share > spec.max_nan_share
    ]


def _ranges(spec: DatasetSpec, recording: Recording) -> list[str]:
    if not spec.max_abs:
        return []
    problems = []
    for (name, first, stop), limit in zip(spec.columns(), spec.max_abs, strict=True):
        largest = float(np.abs(recording.signal[:, first:stop]).max())
        if largest > limit and name in spec.sensors_of(recording.subject):
            problems.append(f"{name} reaches {largest:g}, expected at most {limit:g} in absolute value")
    return problems


def _cache_problems(spec: DatasetSpec, source: Source, recordings: Sequence[Recording]) -> list[str]:
    """Damaged cache entries of the dataset, and arrays of these files' entry that are not what was just parsed."""
    problems = []
    here = cache.entry_folder(spec, cache.source_digest(spec, source, trust_stamps=False))
    for folder in cache.entries(spec.name):
        try:
            entry = cache.read_entry(folder, again=True)
        except cache.DamagedEntry as error:
            problems.append(str(error))
            continue
        if folder == here:
            problems += _altered(entry, cache.assemble(spec, recordings))
    return problems


def _altered(entry: cache.Entry, parsed: cache.Arrays) -> list[str]:
    """Arrays of an entry that differ from what was parsed, bit by bit."""
    signal = np.load(entry.signal_path, mmap_mode="r", allow_pickle=False)
    pairs: dict[str, tuple[NDArray[np.generic], NDArray[np.generic]]] = {
        cache.SIGNAL: (signal.view(np.int32), np.ascontiguousarray(parsed.signal).view(np.int32)),
        cache.LABELS: (entry.labels, parsed.labels),
        cache.BOUTS: (entry.bouts, parsed.bouts),
    }
    return [
        f"{entry.folder / name}: not what the raw files say when they are parsed anew; delete the folder "
        f"{entry.folder}, it is made again"
        for name, (cached, fresh) in pairs.items()
        if not np.array_equal(cached, fresh)
    ]
