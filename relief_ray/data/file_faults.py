"""Faults in one person's file: the file that a user's `parse` failed on, held against one that it reads."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from relief_ray.data.loader import Loader, Members

# Subjects that are tried until the loader reads one.
_MOST_TRIED = 4
# Bytes of a file in which its first line is looked for, and names that are shown.
_HEAD_BYTES, _MOST_SHOWN = 1 << 16, 20


@dataclass(slots=True)
class Reading:
    """A loader's files; ``names``: those that it has read so far, in order. Nothing else is done while it reads."""

    members: Members
    names: dict[str, None] = field(default_factory=dict)

    @property
    def watched(self) -> Members:
        """The files, every reading of which is noted."""
        return replace(self.members, read=self.read)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, and note its name."""
        content = self.members.read(name)
        self.names[name] = None
        return content

    def columns(self, loader: Loader, subject: int) -> dict[str, list[str]]:
        """The columns of the subject's files, also where the loader opened them past ``members.read``."""
        ends = () if self.names else tuple(loader.files(loader.spec, subject))
        names = self.names or [name for name in self.members.names if name.endswith(ends)]
        return {name: columns(self.members.read(name)) for name in names}


def file_fault(loader: Loader, reading: Reading, path: Path, subject: int) -> str:
    """Say which file `parse` failed on and how it differs from another person's; empty where no file is to blame.

    A file is to blame where the loader reads the files of another subject without an error.
    """
    mine, sound = reading.columns(loader, subject), _sound(loader, reading.members, path, subject)
    if not mine or not sound:
        return ""
    out = f", or leave subject {subject} out of `subjects`"
    for (name, here), (peer, there) in zip(mine.items(), sound.items(), strict=False):
        other = PurePosixPath(peer).name
        missing = [column for column in there if column not in here]
        # Names are not held against the numbers of a file without a heading.
        if here and missing and (here[0] == "1") == (there[0] == "1"):
            lacks, present = f"lacks the {_words(missing, 'column')}", ", ".join(_cut(here))
            pronoun = "it" if len(missing) == 1 else "them"
            return (
                f"; {path / name} {lacks}, which {other} has; its columns are {present}. Add or rename {pronoun} in "
                f"that file{out}, or, where the person has no such sensor, name it in `lacks` and return NaN for it"
            )
    files, others = (_words([PurePosixPath(name).name for name in side], "file") for side in (mine, sound))
    is_read = "is read" if len(sound) == 1 else "are read"
    where = path / next(iter(mine)) if len(mine) == 1 else f"{files} in {path}"
    return f"; {others} {is_read} without an error, so look into {where} first. Mend that or the loader{out}"


def _sound(loader: Loader, members: Members, path: Path, subject: int) -> dict[str, list[str]]:
    """The columns of the files of the first other subject that the loader reads; empty where it reads none."""
    for other in [s for s in loader.spec.subjects if s != subject][:_MOST_TRIED]:
        reading = Reading(members)
        try:
            loader.parse(loader.spec, reading.watched, path, other)
            return reading.columns(loader, other)
        except Exception:
            continue
    return {}


def columns(content: bytes) -> list[str]:
    """Names of a file's columns: its first line, or the arrays of an ``.npz``; empty where it names none.

    A line with a number in it is data, no heading: such a file has the columns 1, 2, ...
    """
    if _is_archive(content):
        try:
            names = zipfile.ZipFile(io.BytesIO(content)).namelist()
        except zipfile.BadZipFile:
            return []
        return [name.removesuffix(".npy") for name in names]
    try:
        line = content[:_HEAD_BYTES].decode("utf-8-sig", "strict" if len(content) < _HEAD_BYTES else "ignore")
        first = line.splitlines()[0]
    except (UnicodeDecodeError, IndexError):
        return []
    if not first.replace("\t", "").isprintable():
        return []
    mark = max(",;\t", key=first.count)
    cells = next(csv.reader([first], delimiter=mark)) if mark in first else first.split()
    names = [cell.strip() for cell in cells]
    return [str(number) for number in range(1, len(names) + 1)] if any(map(_is_number, names)) else names


def _is_archive(content: bytes) -> bool:
    return content[:4] == b"PK\x03\x04"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _words(names: Sequence[str], kind: str) -> str:
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(_cut(names))}"


def _cut(names: Sequence[str]) -> list[str]:
    """The names, or the first of many and the number of the others."""
    return [*names[:_MOST_SHOWN], *([f"and {len(names) - _MOST_SHOWN} more"] if len(names) > _MOST_SHOWN else [])]
