"""A user's dataset for tests: a folder of small files, a sound loader, and loaders that each break one rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.own import Write

MODULE = """
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from relief_ray.data.loader import DatasetSpec, Loader, Recording, bouts_of, require_members

SPEC = DatasetSpec(
    name="lab",
    title="Three gestures, made up",
    rate_hz=10,
    raw_rate_hz=10,
    modalities=(("wrist", 2), ("hip", 1), ("ankle", 2)),
    classes=("wave", "clap", "point"),
    labels=(1, 2, 3),
    null_labels=(0,),
    subjects=(1, 2, 3, 4),
    citation="nobody",
    licence="CC0",
    member=r"(^|/)person\\d\\.npy$",
)


def files(spec, subject):
    return [f"person{subject}.npy"]


def read(spec, members, path, subject):
    (name,) = require_members(spec, members.names, files(spec, subject), path)
    return np.load(io.BytesIO(members.read(name)))


def recording(subject, table, **changed):
    labels = table[:, 5].astype(np.int16)
    bouts = bouts_of(labels)
    fields = dict(subject=subject, signal=table[:, :5].copy(), labels=labels, bouts=bouts[labels[bouts[:, 0]] > 0])
    return Recording(**{**fields, **changed})


def parse(spec, members, path, subject):
    return recording(subject, read(spec, members, path, subject))


GOOD = Loader(spec=SPEC, files=files, parse=parse)
"""

# For each broken rule, a loader called MINE and words of what is found. `parse`, `read` and `recording` are above.
BROKEN: dict[str, tuple[str, str]] = {
    "description": ('MINE = replace(GOOD, spec=replace(SPEC, member="("))', "member = '(' is no regular expression"),
    "files": ("MINE = replace(GOOD, spec=replace(SPEC, subjects=(1, 2, 3, 4, 9)))", "4 of 5 files"),
    "parses": ("MINE = replace(GOOD, parse=lambda *given: {}['sgnal'])", "KeyError: 'sgnal'"),
    "subjects": (
        "def mine(spec, members, path, subject):\n"
        "    return recording(subject, read(spec, members, path, 1))\n"
        "MINE = replace(GOOD, parse=mine)",
        "subjects 1 and 2 have the same recording",
    ),
    "labels": (
        "MINE = replace(GOOD, spec=replace(SPEC, labels=(0, 1, 2), null_labels=()))",
        "subjects 1, 2, 3 and 4: code 3 in 1600 rows of 5200; the files have the codes [0, 1, 2, 3], labels lists "
        "[0, 1, 2]",
    ),
    "channels": (
        'MINE = replace(GOOD, spec=replace(SPEC, modalities=(("wrist", 2), ("hip", 4))))',
        "the signal has 5 channels, but modalities declare 6 (wrist 2 + hip 4)",
    ),
    "rates": (
        "MINE = replace(GOOD, spec=replace(SPEC, activity_s=(4.0, 5.0)))",
        "wave lasts 40 s, expected 1 to 15 s",
    ),
    "finite": (
        "def mine(spec, members, path, subject):\n"
        "    made = parse(spec, members, path, subject)\n"
        "    made.signal[7:9, 2] = np.nan\n"
        "    return made\n"
        "MINE = replace(GOOD, parse=mine)",
        "hip has 2 of 1300 values that are NaN or infinite, the first in row 7, column 2",
    ),
    "bouts": (
        "def mine(spec, members, path, subject):\n"
        "    made = parse(spec, members, path, subject)\n"
        "    return replace(made, bouts=np.array([[0, 400], [399, 800]]))\n"
        "MINE = replace(GOOD, parse=mine)",
        "bouts [0, 400] and [399, 800] overlap",
    ),
    "constant": (
        "def mine(spec, members, path, subject):\n"
        "    made = parse(spec, members, path, subject)\n"
        "    made.signal[:, 2] = 7.0\n"
        "    return made\n"
        "MINE = replace(GOOD, parse=mine)",
        "hip, column 2, of subjects 1, 2, 3 and 4",
    ),
    "repeats": (
        "COUNT = []\n"
        "def mine(spec, members, path, subject):\n"
        "    COUNT.append(1)\n"
        "    made = parse(spec, members, path, subject)\n"
        "    return replace(made, signal=made.signal + len(COUNT))\n"
        "MINE = replace(GOOD, parse=mine)",
        "subjects 1, 2, 3 and 4 of 4 have other bits",
    ),
    "place": (
        "def mine(spec, members, path, subject):\n"
        "    made = parse(spec, members, path, subject)\n"
        "    return replace(made, signal=made.signal * (2 if Path('../lab').exists() else 1))\n"
        "MINE = replace(GOOD, parse=mine)",
        "have other bits",
    ),
    "windows": (
        "def mine(spec, members, path, subject):\n"
        "    made = parse(spec, members, path, subject)\n"
        "    made.labels[:20] = 4\n"
        "    return made\n"
        'FOUR = replace(SPEC, classes=("wave", "clap", "point", "rest"), labels=(1, 2, 3, 4))\n'
        "MINE = replace(GOOD, spec=FOUR, parse=mine)",
        "no training window of rest; no test window of rest",
    ),
    "leakage": (
        "def mine(spec, members, path, subject):\n"
        "    table = read(spec, members, path, subject)\n"
        "    parts = [table[table[:, 5] == code] for code in (1, 2, 3)]\n"
        "    return recording(subject, np.concatenate([part for part in parts for _ in range(2)]))\n"
        "MINE = replace(GOOD, parse=mine)",
        "of the test part are in training too, bit by bit",
    ),
}


# Loaders whose labels column is not what their description says, and what is found; `rest` has no row.
ABSENT = (
    'MINE = replace(GOOD, spec=replace(SPEC, classes=("wave", "clap", "point", "rest"), labels=(1, 2, 3, 9)))',
    "no row in any file has code 9 (rest); the files have the codes [0, 1, 2, 3]",
)
SHIFTED = {
    "a code lower, one taken for no activity": (
        "def mine(spec, members, path, subject):\n"
        "    table = read(spec, members, path, subject)\n"
        "    table = table[table[:, 5] > 0]\n"
        "    table[:, 5] -= 1\n"
        "    return recording(subject, table)\n"
        "MINE = replace(GOOD, parse=mine)",
        "your codes look shifted by one: the files have [0, 1, 2], labels lists [1, 2, 3], null_labels [0]; expected "
        "labels=(0, 1, 2) with null_labels=(), or, where point really has no row, classes and labels without it",
    ),
    "a code higher": (
        "def mine(spec, members, path, subject):\n"
        "    table = read(spec, members, path, subject)\n"
        "    return recording(subject, table[table[:, 5] > 0])\n"
        "MINE = replace(GOOD, spec=replace(SPEC, labels=(0, 1, 2), null_labels=()), parse=mine)",
        "your codes look shifted by one: the files have [1, 2, 3], labels lists [0, 1, 2], null_labels []; expected "
        "labels=(1, 2, 3) with null_labels=()",
    ),
}


# A loader with everything that is odd and not refused: code 0 of all files, which is a class to its owner, counts as no
# activity; `rest` has few rows and only in two files; a channel stands still; a third of the readings was missing.
ODD = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    made.signal[:, 2] = 7.0
    if subject > 2:
        made.labels[:60] = 4
    filled = np.zeros(made.signal.shape, bool)
    filled[::3, :2] = True
    return replace(made, bouts=bouts_of(made.labels), filled=filled)
FIVE = dict(classes=("wave", "clap", "point", "rest", "sit"), labels=(1, 2, 3, 4, 9))
MINE = replace(GOOD, spec=replace(SPEC, **FIVE), parse=mine)
"""
ODDITIES = (
    "hip: column 2 is 7 in all 5200 rows",
    "subjects 1, 2, 3 and 4: wrist: 33.4% of a channel's readings were missing and filled in, the longest gap within "
    "a bout lasts 0.1 s",
    "class 'rest' has 12 s of data in all, fewer than 10 windows",
    "class 'sit' (code 9) has no row in any file",
    "no data of rest from subjects 1 and 2",
    "no test window of rest",
)


def write_people(folder: Path, people: range = range(1, 5), offset: int = 0) -> None:
    """Write one file per person: five channels and a code, three activities of 40 s with pauses at 10 Hz."""
    folder.mkdir(parents=True, exist_ok=True)
    for person in people:
        random = np.random.default_rng(100 * offset + person)
        codes = np.concatenate(
            [np.repeat(code, rows) for code, rows in ((1, 400), (0, 50), (2, 400), (0, 50), (3, 400))]
        )
        time_s = np.arange(len(codes)) / 10
        waves = np.sin(2 * np.pi * np.outer(time_s, np.arange(1, 6)) * codes[:, None] / 9)
        table = np.column_stack([waves + 0.3 * random.normal(size=waves.shape), codes])
        np.save(folder / f"person{person}.npy", table.astype(np.float32))


def write_lab(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str = "MINE = GOOD") -> str:
    """Write the files and a loader beside them; return the loader's import path."""
    write_people(tmp_path / "lab")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "lab"))
    return f"{write(MODULE + body)}:MINE"
