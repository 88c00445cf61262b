"""Whole, sealed lines in a ledger that they do not belong to: every command that reads it refuses it by its line."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path

import pytest

from tests.actors.conftest import SMALL, Invoke
from tests.sealed import change_run

Lines = list[bytes]
# What is done to the three lines of RELIEF, ``a``, with those of FedAvg, ``b``, or of another seed, ``c``; the line
# that is refused, and the words.
ATTACKS: Mapping[str, tuple[Callable[[Lines, Lines, Lines], Lines], int, str]] = {
    "the ledger of another method": (lambda a, b, c: b, 1, "is of another run"),
    "the ledger of another seed": (lambda a, b, c: c, 1, "is of another run"),
    "two lines of another method": (lambda a, b, c: [a[0], *b], 2, "is of another run"),
    "two lines of another seed": (lambda a, b, c: [a[0], *c[1:]], 2, "is of another run"),
    "a line of another method after the last": (lambda a, b, c: [*a, b[1]], 4, "is of another run"),
    "the first round removed": (lambda a, b, c: a[1:], 1, "is round 2, expected round 1: a line is missing"),
    "a middle round removed": (lambda a, b, c: [a[0], a[2]], 2, "is round 3, expected round 2: a line is missing"),
    "a line twice": (lambda a, b, c: [a[0], a[1], a[1], a[2]], 3, "is round 2 again, expected round 3"),
    "two lines swapped": (lambda a, b, c: [a[1], a[0], a[2]], 1, "is round 2, expected round 1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ledgers(invoke: Invoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of FedAvg and RELIEF with seeds 0 and 1."""
    out = tmp_path_factory.mktemp("ledgers") / "study"
    line = ["run", "quick", "--strategies", "fedavg,relief", "--seeds", "0-1", "--rounds", 3, "--out", out, *SMALL]
    done = invoke(*line)
    assert done.exit_code == 0, done.output
    return out


def lines_of(folder: Path) -> Lines:
    return (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.suffix != ".lock"
    }


@pytest.mark.ci
@pytest.mark.parametrize(("attack", "status"), list(zip(ATTACKS, cycle(("done", "interrupted")))))
def test_every_command_refuses_the_line(
    attack: str, status: str, ledgers: Path, invoke: Invoke, tmp_path: Path
) -> None:
    change, number, words = ATTACKS[attack]
    study = Path(shutil.copytree(ledgers, tmp_path / "study"))
    run, page = study / "relief-s0", tmp_path / "page"
    change_run(run, status=status)
    changed = change(*(lines_of(study / name) for name in ("relief-s0", "fedavg-s0", "relief-s1")))
    (run / "rounds.jsonl").write_bytes(b"".join(changed))
    said, before = f"rounds.jsonl: line {number} {words}", files_of(run)
    for line in (
        ["compare", run],
        ["compare", study],
        ["sync", run],
        ["model", "export", run, "--out", tmp_path / "model"],
        ["resume", run],
        ["resume", study],
    ):
        done = invoke(*line)
        assert done.exit_code == 2 and said in " ".join(done.output.split()), (line, done.output)
    # A report has a page on what could not be read, too.
    done = invoke("report", run, "--out", page)
    assert done.exit_code == 0 and "1 failed" in done.output and said in (page / "report.md").read_text()
    assert not (tmp_path / "model").exists() and files_of(run) == before
