"""The ledger is scanned by its seals; rounds are parsed when they are used, and nothing of them is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from relief_ray.records import RoundRecord, RunFolder, checkpoint, read_rounds, restore
from relief_ray.records.checkpoint import Checkpoint, Tally
from relief_ray.records.ledger import line_of, scan
from relief_ray.records.left_out import LeftOutLog, left_out_of
from relief_ray.records.schema import LeftOutFacts
from relief_ray.support.errors import UserError
from relief_ray.support.files import LINE, sealed
from tests.sealed import change_run


@pytest.fixture
def path(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def parsed(monkeypatch) -> list[int]:
    """Numbers of the rounds that were parsed, in order."""
    seen, parse = [], RoundRecord.model_validate_json

    def counted(data: bytes) -> RoundRecord:
        record = parse(data)
        seen.append(record.round)
        return record

    monkeypatch.setattr(RoundRecord, "model_validate_json", counted)
    return seen


def test_it_is_a_sequence_that_parses_what_is_used(path, parsed):
    rounds = read_rounds(path)
    assert (len(rounds), rounds.numbers, parsed) == (4, (0, 1, 2, 3), [])
    assert rounds[-1].round == 3 and next(reversed(rounds)).round == 3 and parsed == [3, 3]
    assert rounds.where(lambda number: number % 2 == 0).numbers == (0, 2) and rounds[1:3].numbers == (1, 2)
    assert [record.round for record in rounds[1:3]] == [1, 2] and parsed == [3, 3, 1, 2]
    assert rounds == tuple(rounds) and rounds != tuple(rounds)[1:] and hash(rounds) == hash(read_rounds(path))
    assert b"".join(rounds.lines()) == (path / "rounds.jsonl").read_bytes()
    with pytest.raises(IndexError):
        rounds[4]


def test_a_resume_parses_the_last_round_alone(path, scenario, parsed):
    with RunFolder.resume(path, min_free_bytes=0) as folder:
        restored = restore(folder, scenario.BINDING)
    assert parsed == [3] and restored.last.round == 3 and restored.rounds.numbers == (0, 1, 2, 3)


def test_a_ledger_that_changes_while_it_is_read_says_so(path):
    rounds, data = read_rounds(path), (path / "rounds.jsonl").read_bytes()
    (path / "rounds.jsonl").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 4 changed while it was read .*; read it again"):
        rounds[3]
    (path / "rounds.jsonl").write_bytes(data.replace(b'"wall_s":', b'"wall_S":', 1))
    with pytest.raises(UserError, match="line 1 changed while it was read"):
        rounds[0]
    assert rounds[1].round == 1
    (path / "rounds.jsonl").unlink()
    with pytest.raises(UserError, match=r"rounds\.jsonl: No such file .* expected the ledger that was scanned"):
        rounds[1]


def test_a_line_of_another_program_is_named_when_it_is_read(path):
    ledger = path / "rounds.jsonl"
    first, *rest = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([first, sealed(b'{"round":1,"mood":"good"}', LINE) + b"\n", *rest[1:]]))
    rounds = read_rounds(path)
    assert rounds[0].round == 0
    with pytest.raises(UserError, match=r"line 2 is damaged \(.*\), expected a round's JSON"):
        rounds[1]
    ledger.write_bytes(b"".join([first, sealed(b'{"mood":"good"}', LINE) + b"\n", *rest[1:]]))
    with pytest.raises(UserError, match=r"line 2 is damaged .*does not begin with a round's number"):
        read_rounds(path)


def test_the_line_of_damage_counts_from_the_beginning_wherever_reading_began(path):
    ledger = path / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([*lines[:2], b"{}\n", lines[3]]))
    with pytest.raises(UserError, match="line 3 is damaged"):
        scan(ledger, len(lines[0]) + len(lines[1]))
    ledger.write_bytes(b"".join([*lines[:3], lines[3][:40]]))
    assert scan(ledger, len(lines[0])).torn == "line 4 was torn after 40 bytes"


def test_what_was_counted_over_rounds_comes_back_with_the_checkpoint(path, scenario):
    """So that a resumed run tells the same as one that was never interrupted."""
    change_run(path, status="running")
    left = LeftOutFacts(device="C", cause="timeout", since=2)
    records = [
        r.model_copy(update={"left_out": {1: left}, "rejected": {1: "no"}}) for r in tuple(read_rounds(path))[2:]
    ]
    log = LeftOutLog()
    for record in records:
        log.add(record)
    (path / "rounds.jsonl").write_bytes(b"".join(map(line_of, [*read_rounds(path)[:2], *records])))
    point = checkpoint.load(path, scenario.BINDING)
    tally = Tally(untrained={"fusion.B": 4}, left_out=log.summary())
    again = Checkpoint(round=3, state=point.state, clients=point.clients, tally=tally)
    checkpoint.save(path, again, scenario.BINDING)
    with RunFolder.resume(path, min_free_bytes=0) as folder:
        restored = restore(folder, scenario.BINDING)
    resumed = LeftOutLog.resumed(restored.checkpoint.tally.left_out, restored.last)
    assert restored.checkpoint.tally == tally
    assert (resumed.entries, resumed.last, resumed.summary()) == (log.entries, log.last, left_out_of(records))
