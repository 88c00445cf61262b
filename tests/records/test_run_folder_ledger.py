from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from relief_ray.errors import UserError
from relief_ray.records import RunFolder, read_rounds, read_run
from relief_ray.records.run_folder import ROUNDS_FILE, Lines, scan


@pytest.fixture
def path(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def resume(path: Path) -> RunFolder:
    return RunFolder.resume(path, min_free_bytes=0)


@pytest.mark.parametrize(
    "tail",
    [b'{"round": 4, "phase"', b"x", b"\0" * 64, b'{"round": 4}\n', b"\xff\xfe\n", b"\n"],
)
def test_a_torn_last_line_is_left_out_by_readers_and_cut_off_by_the_driver(path, finished, tail):
    ledger = path / "rounds.jsonl"
    with ledger.open("ab") as file:
        file.write(tail)
    assert [r.round for r in read_rounds(path)] == [0, 1, 2, 3]
    assert ledger.read_bytes().endswith(tail)
    with resume(path) as folder:
        assert len(folder.repairs) == 1 and "line 5 was torn" in folder.repairs[0]
    assert ledger.read_bytes() == (finished / "rounds.jsonl").read_bytes()
    with resume(path) as folder:
        assert folder.repairs == ()


def test_a_ledger_torn_at_any_byte_gives_its_whole_lines(path):
    data = (path / "rounds.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(0, len(data) + 1, 13):
        (path / "rounds.jsonl").write_bytes(data[:cut])
        assert len(read_rounds(path)) == sum(end <= cut for end in ends)


def test_a_driver_removes_what_killed_writers_of_its_files_left(path):
    left = [path / f".{name}.0123456789ab.part" for name in ("run.json", "rounds.jsonl", "sync.json")]
    for part in left:
        part.write_bytes(b"{")
    read_run(path)
    assert all(part.exists() for part in left), "a reader changes nothing"
    resume(path).close()
    assert [part.exists() for part in left] == [False, False, True], "an export may be writing sync.json now"


def test_of_a_repeated_round_the_last_line_counts(path):
    with resume(path) as folder:
        again = folder.rounds()[1].model_copy(update={"wall_s": 77.0})
        folder.append(again)
        assert [r.round for r in folder.rounds()] == [0, 1, 2, 3]
        assert folder.rounds()[1].wall_s == 77.0


def test_a_damaged_line_in_the_middle_is_an_error(path):
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 2 is damaged \(.*\), expected a round's JSON; restore"):
        read_rounds(path)
    with pytest.raises(UserError, match="line 2 is damaged"):
        resume(path)
    (path / "rounds.jsonl").write_bytes(b"".join(lines))
    resume(path).close()


def test_a_second_run_in_the_same_folder_is_refused(path, scenario):
    with pytest.raises(UserError, match=rf"already holds run {read_run(path).cell}; resume it or choose another"):
        RunFolder.create(path, scenario.make_run())
    resume(path).close()


def test_update_checks_its_fields_and_is_read_back(path):
    with resume(path) as folder:
        folder.update(status="interrupted", note="stopped at http://me:pw@h")
        with pytest.raises(ValueError, match="status"):
            folder.update(status="sleeping")
    assert (read_run(path).status, read_run(path).note) == ("interrupted", "stopped at http://***@h")


def test_rewind_to_a_round_the_ledger_lacks_is_refused(path):
    with resume(path) as folder:
        assert len(folder.rewind(2)) == 3
        with pytest.raises(UserError, match="ends with round 2, expected round 3 of the checkpoint"):
            folder.rewind(3)
        assert folder.rewind(None) == ()
        with pytest.raises(UserError, match="ends with no round, expected round 0"):
            folder.rewind(0)


def test_appending_after_a_rewind_goes_on_at_the_end(path, finished):
    with resume(path) as folder:
        last = folder.rounds()[3]
        folder.rewind(2)
        folder.append(last)
    assert (path / "rounds.jsonl").read_bytes() == (finished / "rounds.jsonl").read_bytes()


def test_appending_after_a_failed_append_leaves_no_torn_line(path, finished, scenario):
    with resume(path) as folder:
        last = folder.rounds()[3]
        folder.rewind(2)
        for blocked in (("write",), ("write", "ftruncate"), ("fsync",)):

            def strike(number, name, half, blocked=blocked):
                if name in blocked:
                    half()
                    raise OSError(28, "No space left on device")

            with scenario.intercepted(strike), pytest.raises(UserError, match="append round 3: No space left"):
                folder.append(last)
        folder.append(last)
    assert (path / "rounds.jsonl").read_bytes() == (finished / "rounds.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("version", "fix"),
    [
        (0, "release that wrote it"),
        (None, "release that wrote it"),
        (2, "release"),
        (4, "upgrade relief-ray"),
        ("1", "release"),
    ],
)
def test_another_schema_version_is_refused_with_the_way_out(path, version, fix):
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**run, "schema_version": version, "a field of that time": 1}))
    for reader in (read_run, resume):
        with pytest.raises(UserError, match=rf"run\.json: schema_version is {version!r}, expected 3; .*{fix}"):
            reader(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "unreadable"),
        ("[]", "schema_version is None"),
        ('{"schema_version": 3}', "expected a RunRecord"),
        ("\xff", "unreadable"),
    ],
)
def test_a_damaged_run_file_is_named(path, text, message):
    (path / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=rf"run\.json: .*{message}"):
        read_run(path)


def test_a_folder_without_run_is_refused_and_left_alone(tmp_path):
    with pytest.raises(UserError, match=r"no run\.json, expected a run folder; name one"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_refused_before_the_first_round(program):
    # Below the system's own temporary folder: a user without rights must get as far as the run folder.
    base = Path(tempfile.mkdtemp(prefix="relief-"))
    try:
        base.chmod(0o755)
        (base / "run").mkdir()
        (base / "run").chmod(0o555)
        message = program("unprivileged", base / "run").stdout
        assert "Permission denied" in message and "choose a folder that you may write to (--out DIR)" in message
        assert list((base / "run").iterdir()) == []
        below = program("unprivileged", base / "run" / "deeper").stdout
        assert "cannot use this folder for a run: Permission denied" in below
    finally:
        os.chmod(base / "run", 0o755)
        shutil.rmtree(base)


def test_a_reader_who_had_read_further_than_a_resumed_ledger_begins_anew(finished, tmp_path):
    """A resume drops the rounds after its checkpoint; others, of other lengths, take their place."""
    path = tmp_path / ROUNDS_FILE
    whole = (finished / ROUNDS_FILE).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole))
    read = scan(path)
    assert scan(path, read.num_bytes) == Lines(rounds=(), num_bytes=read.num_bytes, torn=None)
    other = [line.replace(b'"wall_s":', b'"wall_s":1') for line in whole[1:]]
    path.write_bytes(b"".join([whole[0], *other, *other]))
    again = scan(path, read.num_bytes)
    assert [r.round for r in again.rounds] == [r.round for r in read.rounds] and again == scan(path)
    path.write_bytes(whole[0])
    assert scan(path, read.num_bytes) == scan(path), "shorter than what was read"
