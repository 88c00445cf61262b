from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from relief_ray.records import ledger as ledger_module
from relief_ray.records.cells import look
from relief_ray.records.ledger import LineFormat, scan
from relief_ray.records.lock import lock_folder
from relief_ray.records.run_folder import ROUNDS_FILE, RunFolder, read_rounds, read_run, restore
from relief_ray.report.runs import load_runs, take_inventory
from relief_ray.support.errors import UserError
from relief_ray.support.files import PAGE, sealed
from tests.sealed import change_rounds, change_run, page, put_page, put_rounds


@pytest.fixture
def path(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def resume(path: Path) -> RunFolder:
    return RunFolder.resume(path)


@pytest.mark.parametrize(
    "tail",
    [b'{"round": 5, "phase"', b"x", b"\0" * 64, b'{"round": 5}\n', b"\xff\xfe\n", b"\n"],
)
def test_a_torn_last_line_is_left_out_by_readers_and_cut_off_by_the_driver(path, finished, tail):
    ledger = path / "rounds.jsonl"
    with ledger.open("ab") as file:
        file.write(tail)
    assert [r.round for r in read_rounds(path)] == [1, 2, 3, 4]
    assert ledger.read_bytes().endswith(tail)
    with resume(path) as folder:
        what = "damaged" if tail.endswith(b"\n") else "torn"
        assert len(folder.repairs) == 1 and f"line 5 was {what}" in folder.repairs[0]
        assert ledger.read_bytes().endswith(tail), "nothing is cut before it is sure that the run can go on"
        folder.rewind(4)
    assert ledger.read_bytes() == (finished / "rounds.jsonl").read_bytes()
    with resume(path) as folder:
        assert folder.repairs == ()


def test_a_ledger_torn_at_any_byte_gives_its_whole_lines(path):
    change_run(path, status="running")
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


def test_a_record_that_is_nested_without_end_is_damaged(path):
    (path / "run.json").write_bytes(sealed(b'{"id": ' + b"[" * 200_000 + b"}", PAGE))
    with pytest.raises(UserError, match=r"run\.json: unreadable \(nested too deep\)"):
        read_run(path)


@pytest.mark.parametrize("name", ["rounds.jsonl", "run.json", "checkpoints", "report", "driver.lock", "x"])
def test_a_link_in_a_run_folder_is_refused_before_anything_is_written(path, tmp_path, name):
    target = tmp_path / "elsewhere"
    if (path / name).exists():
        shutil.move(path / name, target)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)

    def times():
        return {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != "driver.lock"}

    before = times()
    with pytest.raises(UserError, match=rf"{name}: is a link"):
        resume(path)
    assert times() == before


def test_a_backup_of_hard_links_keeps_its_rounds(path, tmp_path):
    change_run(path, status="running")
    backup = tmp_path / "backup"
    shutil.copytree(path, backup, copy_function=os.link)
    before = {p.name: p.read_bytes() for p in backup.iterdir() if p.is_file()}
    with resume(path) as folder:
        folder.rewind(2)
    assert len(read_rounds(path)) == 2
    assert {p.name: p.read_bytes() for p in backup.iterdir() if p.is_file()} == before


def test_only_the_next_round_is_written(path):
    with resume(path) as folder:
        for record in (folder.rounds()[1], folder.rounds()[3].model_copy(update={"round": 6})):
            with pytest.raises(ValueError, match=rf"round {record.round}, expected round 5"):
                folder.append(record)
        assert folder.rounds().numbers == (1, 2, 3, 4)


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
        assert len(folder.rewind(3)) == 3
        with pytest.raises(UserError, match="ends with round 3, expected round 4 of the checkpoint"):
            folder.rewind(4)
        assert folder.rewind(0) == ()
        with pytest.raises(UserError, match="ends with no round, expected round 1"):
            folder.rewind(1)


def test_appending_after_a_rewind_goes_on_at_the_end(path, finished):
    with resume(path) as folder:
        last = folder.rounds()[3]
        folder.rewind(3)
        folder.append(last)
    assert (path / "rounds.jsonl").read_bytes() == (finished / "rounds.jsonl").read_bytes()


def test_appending_after_a_failed_append_leaves_no_torn_line(path, finished, scenario):
    with resume(path) as folder:
        last = folder.rounds()[3]
        folder.rewind(3)
        for blocked in (("write",), ("write", "ftruncate"), ("fsync",)):

            def strike(number, name, half, blocked=blocked):
                if name in blocked:
                    half()
                    raise OSError(28, "No space left on device")

            with scenario.intercepted(strike), pytest.raises(UserError, match="append round 4: No space left"):
                folder.append(last)
        folder.append(last)
    assert (path / "rounds.jsonl").read_bytes() == (finished / "rounds.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("version", "fix"),
    [
        (0, "release that wrote it"),
        (None, "release that wrote it"),
        (2, "release"),
        (3, "release"),
        (5, "upgrade relief-ray"),
        ("1", "release"),
    ],
)
def test_another_schema_version_is_refused_with_the_way_out(path, version, fix):
    run = page(path / "run.json")
    put_page(path / "run.json", {**run, "schema_version": version, "a field of that time": 1})
    for reader in (read_run, resume):
        with pytest.raises(UserError, match=rf"run\.json: schema_version is {version!r}, expected 4; .*{fix}"):
            reader(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "unreadable"),
        (sealed(b"{}", PAGE).decode(), "schema_version is None"),
        ('{"schema_version": 4}', "does not end with its sha256"),
        (sealed(b'{"schema_version": 4}', PAGE).decode(), "expected a RunRecord"),
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


@pytest.mark.ci
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
    shutil.copy(finished / "run.json", tmp_path)
    lines = LineFormat.of(read_run(finished))
    read = scan(path, lines)
    nothing = scan(path, lines, read.end)
    assert (nothing.rounds, nothing.end, nothing.torn) == ((), read.end, None)
    first, *rest = tuple(read_rounds(finished))
    for wall_s, number in ((7.5, 6), (0.5, 6), (123456.75, 3)):
        other = [rest[i % 3].model_copy(update={"round": 2 + i, "wall_s": wall_s + i}) for i in range(number)]
        put_rounds(tmp_path, [first, *other])
        again = scan(path, lines, read.end)
        assert again.rounds.numbers == tuple(range(1, number + 2)) and again == scan(path, lines), wall_s
    path.write_bytes(whole[0])
    assert scan(path, lines, read.end) == scan(path, lines), "shorter than what was read"


def test_the_torn_last_line_of_a_finished_run_is_told_and_computed_again(path, finished, scenario):
    change_run(path, config=read_run(path).config | {"rounds": 4})
    data = (path / "rounds.jsonl").read_bytes()
    (path / "rounds.jsonl").write_bytes(data[:-50])
    with pytest.raises(UserError, match=r"line 4 was torn after .* of a finished run; restore"):
        read_rounds(path)
    assert re.search(r"of a finished run; restore the file, .*; line 4 was torn after", look(path).why)
    flipped = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
    (path / "rounds.jsonl").write_bytes(flipped)
    assert "relief-ray resume" not in look(path).why, "which would refuse it: to it the run is finished"
    assert look(path).status == "failed" and look(path).why.endswith("line 4 was damaged")
    (path / "rounds.jsonl").write_bytes(data[:-50])
    with resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
    assert restored.checkpoint.round == 3 and [r.round for r in restored.rounds] == [1, 2, 3]
    assert "round-000004: the ledger ends with round 3" in " ".join(restored.repairs)
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


def test_a_damaged_last_line_of_a_run_that_nobody_computes_is_refused_and_a_resume_goes_on(path, finished, scenario):
    change_run(path, status="interrupted")
    ledger = path / "rounds.jsonl"
    data = bytearray(ledger.read_bytes())
    data[-100] ^= 1
    ledger.write_bytes(data)
    refused = r"rounds\.jsonl: line 4, the last one, is damaged \(.*sha256 differs\), .*; restore the file, or .*resume"
    with pytest.raises(UserError, match=refused):
        read_rounds(path)
    state = look(path)
    assert state.status == "failed" and re.search(refused, state.why) and state.num_rounds == 3
    item = take_inventory([path]).items[0]
    assert item.status == "failed" and re.search(refused, item.why), "of a report"
    with pytest.raises(UserError, match=refused):
        load_runs([path])
    with lock_folder(path, "the run folder"):
        assert [r.round for r in read_rounds(path)] == [1, 2, 3] and look(path).status == "running"
    with resume(path) as folder:
        restored = restore(folder, scenario.BINDING)
        assert restored.checkpoint.round == 3 and "line 4 was damaged; it was cut off" in restored.repairs[0]
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


@pytest.mark.parametrize("byte", [b"\x0b", b"\x8a", b"J"])
def test_a_line_break_that_became_another_byte_is_refused_and_nothing_is_written(path, byte):
    """Two lines then read as one, which is damaged like any other."""
    ledger = path / "rounds.jsonl"
    whole = ledger.read_bytes()
    breaks = [place for place, each in enumerate(whole) if each == 10]
    change_run(path, status="interrupted")
    for number, place in enumerate(breaks[:-2], 1):
        damaged = whole[:place] + byte + whole[place + 1 :]
        ledger.write_bytes(damaged)
        for use in (read_rounds, resume):
            with pytest.raises(UserError, match=rf"rounds\.jsonl: line {number}.* is damaged"):
                use(path)
        assert ledger.read_bytes() == damaged


def test_two_last_lines_that_read_as_one_are_cut_off_by_a_resume(path):
    change_run(path, status="interrupted")
    ledger = path / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:2]) + lines[2][:-1] + b"J" + lines[3])
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 3, the last one, is damaged"):
        read_rounds(path)
    with resume(path) as folder:
        assert folder.repairs == ("rounds.jsonl: line 3 was damaged; it was cut off",)


def test_a_resume_that_cannot_go_on_leaves_the_ledger_as_it_was(path, scenario):
    """Two lines are cut, so that no checkpoint is reached: what is left of the second one may yet be mended by hand."""
    change_run(path, status="interrupted")
    ledger = path / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    left = b"".join(lines[:2]) + lines[2][:-50]
    ledger.write_bytes(left)
    with resume(path) as folder, pytest.raises(UserError, match="no usable checkpoint"):
        restore(folder, scenario.BINDING)
    assert ledger.read_bytes() == left


def test_a_ledger_that_ends_before_its_checkpoint_is_told(path):
    """A cut at the end of a line leaves whole lines, so that no seal is broken."""
    change_run(path, status="interrupted")
    ledger = path / "rounds.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    said = "rounds.jsonl: ends with round 2, expected round 4 of the checkpoint"
    assert look(path).status == "interrupted" and said in look(path).why
    assert said in take_inventory([path]).items[0].why, "of a report"
    ledger.write_bytes(b"")
    assert "ends with no round, expected round 4" in look(path).why


def test_a_line_without_its_break_is_told_by_the_cell_and_its_report(path):
    """A killed driver leaves it: that is no damage."""
    change_run(path, status="running")
    ledger = path / "rounds.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-1])
    assert len(read_rounds(path)) == 3
    state = look(path)
    assert state.status == "interrupted" and "rounds.jsonl: line 4 was torn after" in state.why
    assert "rounds.jsonl: line 4 was torn after" in take_inventory([path]).items[0].why


def test_every_flipped_bit_of_the_ledger_and_of_the_run_file_is_seen(path):
    """Each byte in turn, a bit that its place decides; but for the last break, a flip is refused by file and line."""
    change_run(path, status="interrupted")
    for name in ("rounds.jsonl", "run.json"):
        data = (path / name).read_bytes()
        intact, unseen = (read_run(path), read_rounds(path)), []
        for place in range(0, len(data), 7):
            flipped = bytearray(data)
            flipped[place] ^= 1 << (place % 8)
            (path / name).write_bytes(flipped)
            try:
                run, rounds = read_run(path), read_rounds(path)
            except UserError as error:
                assert name in str(error)
                continue
            is_torn = place == len(data) - 1 and rounds == intact[1][:-1]
            if run != intact[0] or not is_torn:
                unseen.append(place)
        (path / name).write_bytes(data)
        assert unseen == []


def test_a_ledger_that_is_removed_or_replaced_under_a_run_is_noticed(path):
    with resume(path) as folder:
        last = folder.rounds()[3]
        kept = (path / "rounds.jsonl").read_bytes()
        (path / "rounds.jsonl").unlink()
        with pytest.raises(UserError, match=r"rounds\.jsonl: removed or replaced while this run was writing"):
            folder.append(last)
        (path / "rounds.jsonl").write_bytes(kept)
        with pytest.raises(UserError, match="removed or replaced"):
            folder.append(last)
    assert (path / "rounds.jsonl").read_bytes() == kept


def test_a_ledger_and_a_checkpoint_of_two_runs_are_refused(path, scenario):
    change_rounds(path, model_sha256="0" * 64)
    with resume(path) as folder, pytest.raises(UserError, match=r"round 4 holds the model .*, the ledger names 0000"):
        restore(folder, scenario.BINDING)


@pytest.mark.parametrize("begin", [b"", b"x", b'{"run":"'])
def test_a_hole_at_the_end_of_a_ledger_is_not_read_to_its_end(path, begin, monkeypatch):
    monkeypatch.setattr(ledger_module, "_LONGEST", 2**24)
    ledger = path / "rounds.jsonl"
    with ledger.open("ab") as file:
        file.write(begin)
    os.truncate(ledger, 20 * 2**30)
    with pytest.raises(UserError, match=r"rounds\.jsonl: line 5 is damaged \(it has no end\)"):
        read_rounds(path)
    assert look(path).status == "failed"
    with pytest.raises(UserError, match="line 5 is damaged"):
        resume(path)
