"""Copies of run folders at a URI: whoever writes them may be killed anywhere, and a store may fail or be another's."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.sync.mirror import MEMORY_FILE, MIRROR_FILE, PART, Mirror, MirrorStore, TakenOver, fetch
from relief_ray.records.sync.sender import Sender
from relief_ray.support.errors import UserError
from tests.sealed import change_run

PROGRAM = Path(__file__).with_name("mirror_program.py")


@pytest.fixture
def kills(environment, tmp_path):
    """Rows of ``mirror_program``."""

    def call(command, scheme, every):
        words = [sys.executable, str(PROGRAM), command, scheme, str(tmp_path), str(every)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return call


ALL = [("sweep", "halves"), ("sweep", "s3"), ("moments", "halves"), ("threads", "s3"), ("threads", "halves")]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "scheme", "every"),
    [("sweep", "halves", 7), *(pytest.param(*case, 1, marks=pytest.mark.slow) for case in ALL)],
)
def test_a_copy_whose_writer_is_killed_anywhere_ends_with_the_same_bits(kills, command, scheme, every):
    """In the middle of an upload, between two, before a removal; on stores that show halves and on others."""
    rows = kills(command, scheme, every)
    assert len(rows) >= 9 and {row["signal"] for row in rows} == {9}
    signed = [row for row in rows if row["signed"]]
    assert len(signed) >= 0.75 * len(rows) and all(row["equal"] and not row["notes"] for row in signed), signed
    rounds = [row["rounds"] for row in signed]
    assert rounds[-1] == 4 and (command == "threads" or rounds == sorted(rounds)), "it gets on with the run"


@pytest.fixture
def place(finished, tmp_path):
    """A folder with a finished run, and the URI of an empty store."""
    shutil.copytree(finished, tmp_path / "here" / "run")
    return tmp_path / "here", f"file://{tmp_path}/there"


def mirror_of(root, uri, **pace):
    mirror = Mirror(root, None, uri)
    vars(mirror).update(pace)
    return mirror


def sent(root, uri):
    """A mirror that has sent all there is."""
    mirror = mirror_of(root, uri)
    mirror.connect()
    mirror.send()
    return mirror


def done(sender):
    sender.stop()
    return sender.wait()


def there(uri):
    return Path(uri.removeprefix("file://"))


def test_a_copy_is_a_folder_of_runs_and_only_what_changed_is_sent(scenario, place):
    here, uri = place
    first = Mirror(here, None, uri)
    first.connect()
    assert first.send() and not first.send()
    first.close()
    assert scenario.outcome(there(uri) / "run") == scenario.outcome(here / "run")
    assert read_run(there(uri) / "run") == read_run(here / "run")
    assert not list(there(uri).rglob("*.lock")) and json.loads((there(uri) / MIRROR_FILE).read_text())["id"]
    second = sent(here, uri)
    assert second.num_changes == 0, "the next command knows what is there"
    (there(uri) / "run" / "rounds.jsonl").unlink()
    (here / "run" / "error.json").write_text("{}")
    third = sent(here, uri)
    assert scenario.outcome(there(uri) / "run") == scenario.outcome(here / "run"), "what was lost is sent again"
    (here / "run" / "error.json").unlink()
    third.send()
    assert not (there(uri) / "run" / "error.json").exists()


def test_two_generations_are_kept_and_never_fewer_rounds_than_the_checkpoint_has(scenario, tmp_path):
    mirror, uri = mirror_of(tmp_path, f"file://{tmp_path}/there"), tmp_path / "there"
    mirror.connect()
    seen = []

    def look(round_):
        mirror.send()
        seen.append([checkpoint.round_of(g) for g in checkpoint.generations(uri / "run")])
        assert read_rounds(uri / "run")[-1].round == round_

    scenario.drive(tmp_path / "run", saved=look)
    assert seen == [[1], [2, 1], [3, 2], [4, 3]]


def test_a_store_with_other_files_or_of_another_folder_is_refused(place, tmp_path):
    here, uri = place
    there(uri).mkdir()
    (there(uri) / "thesis.tex").touch()
    with pytest.raises(
        UserError, match=r"there': holds other files \(thesis.tex\), expected an empty folder or the copy"
    ):
        Sender(mirror_of(here, uri), print)
    (there(uri) / "thesis.tex").unlink()
    sent(here, uri)
    shutil.copytree(here / "run", tmp_path / "other" / "run")
    with pytest.raises(TakenOver, match=r"holds the copy of .*:.*/here, .*relief-ray resume file://"):
        sent(tmp_path / "other", uri)


@pytest.mark.ci
def test_whoever_fetched_a_copy_goes_on_with_it_and_the_first_one_stops(place, tmp_path):
    here, uri = place
    notes: list[str] = []
    first = Sender(mirror_of(here, uri, interval_s=0.02, patience_s=5.0), notes.append)
    assert until(lambda: (there(uri) / "run" / "run.json").exists())
    fetched = fetch(uri, tmp_path / "fetched").folder
    (fetched / "run" / "error.json").write_text("{}")
    sent(fetched, uri)
    (here / "run" / "error.json").write_text('{"error": "from the first one"}')
    assert not done(first)
    assert (there(uri) / "run" / "error.json").read_text() == "{}"
    assert len(notes) == 1 and f"{fetched} goes on with this copy since" in notes[0]


def until(condition, seconds=20.0):
    end_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    return condition()


def test_a_store_that_fails_is_told_once_tried_again_and_stops_nothing(scenario, tmp_path):
    notes, blocked = [], tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    mirror = mirror_of(tmp_path, f"file://{blocked}/copy", interval_s=0.01, retry_s=0.01)
    sender = Sender(mirror, notes.append)
    scenario.drive(tmp_path / "run")
    assert until(lambda: sender._units[tmp_path].num_failures > 2) and len(notes) == 1 and "NotADirectory" in notes[0]
    assert sender.is_behind
    blocked.unlink()
    assert done(sender) and [n.rpartition(": ")[2] for n in notes[1:]] == ["works again"]
    assert scenario.outcome(blocked / "copy" / "run") == scenario.outcome(tmp_path / "run")


def test_a_store_that_stays_away_leaves_the_copy_behind(scenario, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    mirror = mirror_of(tmp_path, f"file://{tmp_path}/file/copy", interval_s=0.01, retry_s=0.01, patience_s=0.1)
    sender = Sender(mirror, lambda text: None)
    scenario.drive(tmp_path / "run")
    assert not done(sender) and sender.is_behind


def test_a_run_that_was_set_aside_leaves_nothing_in_its_successors_copy(scenario, place, tmp_path):
    """Its checkpoints would fit the new run's configuration."""
    here, uri = place
    sent(here, uri)
    (here / "run").rename(tmp_path / "aside")
    scenario.drive(here / "run", rounds=1)
    change_run(here / "run", created="2025-01-02T00:00:00Z")
    sent(here, uri)
    assert [checkpoint.round_of(g) for g in checkpoint.generations(there(uri) / "run")] == [1]
    assert len(read_rounds(there(uri) / "run")) == 1


def test_a_checkpoint_computed_anew_never_stands_beside_the_ledger_of_another(scenario, place, monkeypatch):
    """A resume with --other-code comes to the same round with another model, which the ledger names."""
    here, uri = place
    mirror = sent(here, uri)
    point, seen, write = checkpoint.load(here / "run", scenario.BINDING), [], mirror.store.write
    newest = checkpoint.save(here / "run", replace(point, state=replace(point.state, facts={})), scenario.BINDING)
    os.utime(here / "run" / "rounds.jsonl")

    def look(name, data):
        seen.append((name, (there(uri) / "run" / "checkpoints" / newest.name).exists()))
        write(name, data)

    monkeypatch.setattr(mirror.store, "write", look)
    mirror.send()
    assert seen[0] == ("run/rounds.jsonl", False)
    assert scenario.outcome(there(uri) / "run") == scenario.outcome(here / "run")


@pytest.mark.parametrize("damage", ["flipped", "half", "ahead"])
def test_a_damaged_checkpoint_is_left_out_by_name(scenario, place, tmp_path, damage):
    here, uri = place
    sent(here, uri)
    copy = there(uri) / "run"
    newest = checkpoint.generations(copy)[0]
    if damage == "flipped":
        data = bytearray((newest / "state.safetensors").read_bytes())
        data[-1] ^= 1
        (newest / "state.safetensors").write_bytes(data)
    elif damage == "half":
        (newest / "manifest.json").unlink()
    else:
        lines = (copy / "rounds.jsonl").read_bytes().splitlines(keepends=True)
        (copy / "rounds.jsonl").write_bytes(b"".join(lines[:-1]))
    shutil.copytree(checkpoint.generations(here / "run")[0], copy / "checkpoints" / "round-000003", dirs_exist_ok=True)
    fetched = fetch(uri, tmp_path / "fetched")
    said = {"flipped": "does not match its sha256", "half": "", "ahead": "the ledger ends with round 3"}[damage]
    assert said in " ".join(fetched.notes)
    assert newest.name not in [g.name for g in checkpoint.generations(fetched.folder / "run")]
    assert (fetched.folder / MEMORY_FILE).exists() and fetched.num_runs == 1


@pytest.mark.parametrize("at", [0, 40, -3])
def test_a_damaged_memory_is_taken_for_missing_by_the_folder_itself_alone(place, tmp_path, at):
    here, uri = place
    sent(here, uri)
    data = bytearray((here / MEMORY_FILE).read_bytes())
    data[at] ^= 1
    (here / MEMORY_FILE).write_bytes(data)
    shutil.copytree(here, tmp_path / "other")
    sent(here, uri)
    with pytest.raises(TakenOver, match="expected an empty folder or the copy of"):
        sent(tmp_path / "other", uri)
    (here / MEMORY_FILE).unlink()
    with pytest.raises(TakenOver):
        sent(here, uri)


@pytest.mark.parametrize("name", ["../up/run.json", "run/../../up/run.json", "/up/run.json", "a\\..\\..\\up/run.json"])
def test_a_file_that_would_lie_outside_is_refused(place, tmp_path, monkeypatch, name):
    here, uri = place
    sent(here, uri)
    sizes = MirrorStore.sizes
    monkeypatch.setattr(MirrorStore, "sizes", lambda store: sizes(store) | {name: 2})
    with pytest.raises(UserError, match="expected plain names of folders and files"):
        fetch(uri, tmp_path / "out" / "study")
    assert not (tmp_path / "out" / "study").exists() and not list(tmp_path.rglob("up"))


def test_what_cannot_be_fetched_is_refused_and_leaves_nothing(place, tmp_path):
    here, uri = place
    with pytest.raises(UserError, match=r"there: no mirror.json there; expected the URI that --mirror named"):
        fetch(uri, tmp_path / "out")
    change_run(here / "run", config={"rounds": 4})
    sent(here, uri)
    with pytest.raises(UserError, match=r"here: exists already; to go on with what is there: relief-ray resume"):
        fetch(uri, here)
    ledger = there(uri) / "run" / "rounds.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(UserError, match=r"rounds.jsonl: line \d+.* damaged"):
        fetch(uri, tmp_path / "out")
    ledger.write_bytes(whole)
    (there(uri) / "run" / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run.json: unreadable"):
        fetch(uri, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("/mnt/disk", r"runtime.mirror = '/mnt/disk': not the address of one store; expected SCHEME"),
        ("://bucket", "not the address of one store; expected SCHEME"),
        ("zip://a::file:///new.zip", "not the address of one store; expected SCHEME"),
        ("reference://x", r"runtime.mirror = 'reference://x': cannot be used \(.*missing 1 required"),
        ("dir://x", r"runtime.mirror = 'dir://x': cannot be used \("),
        ("jupyter://x", r"runtime.mirror = 'jupyter://x': cannot be used \("),
        ("s4://bucket", r"runtime.mirror = 's4://bucket': cannot be used \(Protocol not known: s4\)"),
        ("adl://user:word@host/x", r"runtime.mirror = 'adl://\*\*\*@host/x': cannot be used \(.*adlfs"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_the_first_round(uri, said):
    with pytest.raises(UserError, match=said):
        MirrorStore(uri)


def test_a_store_of_objects_is_written_without_renames(place):
    here, _ = place
    sizes = sent(here, "memory://runs/copy").store.sizes()
    assert {"mirror.json", "run/run.json", "run/rounds.jsonl"} <= sizes.keys()
    assert sizes["run/rounds.jsonl"] == (here / "run" / "rounds.jsonl").stat().st_size
    assert not any(name.endswith(PART) for name in sizes)
