from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relief_ray.support import files
from relief_ray.support.errors import UserError


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv")
def test_root_without_its_rights_is_told_as_on_a_server_that_takes_them(tmp_path):
    """As NFS's root_squash does: the folder belongs to another user, and root may not write into it."""
    place = tmp_path / "theirs"
    place.mkdir(mode=0o755)
    os.chown(place, 65534, 65534)
    program = (
        "import pathlib, sys; from relief_ray.support.files import preflight; preflight(pathlib.Path(sys.argv[1]), 0)"
    )
    words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", sys.executable, "-c", program, str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (
        "Permission denied; expected a writable place; root may not, as with NFS's root_squash: work as" in done.stderr
    )


def test_write_atomic_writes_and_leaves_nothing_else(tmp_path):
    for data in (b"old", b"newer", b""):
        files.write_atomic(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_that_may_have_been_moved_away_is_not_made_anew(tmp_path):
    with pytest.raises(UserError, match="cannot write: No such file or directory"):
        files.write_atomic(tmp_path / "gone" / "f", b"x", make_folder=False)
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_and_the_mode_is_the_users(tmp_path):
    files.write_atomic(tmp_path / "a" / "b" / "f", b"x")
    with files.folder_atomic(tmp_path / "a" / "folder") as part:
        (part / "f").write_bytes(b"x")
    (tmp_path / "plain").write_bytes(b"")
    (tmp_path / "plain_folder").mkdir()
    modes = [(tmp_path / p).stat().st_mode for p in ("a/b/f", "plain", "a/folder", "plain_folder")]
    assert modes[0] == modes[1] and modes[2] == modes[3], "a shared cache can be read by others"


RACE = """
import sys
from pathlib import Path
from relief_ray.support.files import folder_atomic, write_atomic

name, root = sys.argv[1], Path(sys.argv[2])
body = name.encode() * 100_000
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    write_atomic(root / f"file{number}", body)
    with folder_atomic(root / f"folder{number}") as part:
        (part / "deep").mkdir()
        (part / "deep" / "one").write_bytes(body)
        (part / "two").write_bytes(body)
"""


def test_processes_that_race_end_with_one_good_copy(tmp_path):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, name, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert [(racer.communicate(), racer.returncode)[1] for racer in racers] == [0, 0]
    bodies = [name.encode() * 100_000 for name in "ab"]
    for number in range(20):
        folder = tmp_path / f"folder{number}"
        assert (tmp_path / f"file{number}").read_bytes() in bodies
        assert (folder / "deep" / "one").read_bytes() == (folder / "two").read_bytes()
    assert len(list(tmp_path.iterdir())) == 40, "nothing half-made is left"


def test_a_failed_folder_leaves_nothing_behind(tmp_path):
    with pytest.raises(RuntimeError), files.folder_atomic(tmp_path / "entry") as part:
        (part / "half").write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_folders_stays(tmp_path):
    with files.folder_atomic(tmp_path / "entry") as late:
        (late / "who").write_text("late")
        with files.folder_atomic(tmp_path / "entry") as early:
            (early / "who").write_text("early")
    assert (tmp_path / "entry" / "who").read_text() == "early"
    assert os.listdir(tmp_path) == ["entry"]


def test_an_empty_folder_is_replaced_and_a_file_is_not(tmp_path):
    (tmp_path / "entry").mkdir()
    with files.folder_atomic(tmp_path / "entry") as part:
        (part / "f").write_text("new")
    assert (tmp_path / "entry" / "f").read_text() == "new"
    (tmp_path / "file").write_text("old")
    with pytest.raises(NotADirectoryError), files.folder_atomic(tmp_path / "file") as part:
        (part / "f").write_text("new")
    assert (tmp_path / "file").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["entry", "file"]


def test_everything_in_a_folder_reaches_the_disk_before_its_name_does(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(files, "sync", lambda path: events.append(path.name))
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("replace") or real(*paths))
    with files.folder_atomic(tmp_path / "entry") as part:
        (part / "deep").mkdir()
        (part / "deep" / "one").write_bytes(b"1")
    at = events.index("replace")
    assert sorted(events[:at]) == sorted([part.name, "deep", "one"]) and events[at + 1 :] == [tmp_path.name]


def test_write_all_goes_on_after_short_writes(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    files.write_pieces(tmp_path / "f", [b"0123456789"])
    assert (tmp_path / "f").read_bytes() == b"0123456789"


def test_pieces_are_written_in_order_small_ones_together(tmp_path, monkeypatch):
    real, sizes = os.write, []
    monkeypatch.setattr(os, "write", lambda fd, data: sizes.append(len(data)) or real(fd, data))
    large = bytes(range(256)) * (files.CHUNK_BYTES // 256)
    pieces = [b"ab", memoryview(b"c"), large, b"", b"d", memoryview(large), b"e"]
    digest = files.write_pieces(tmp_path / "f", iter(pieces))
    whole = b"".join(pieces)
    assert (tmp_path / "f").read_bytes() == whole and digest == hashlib.sha256(whole).hexdigest()
    assert sizes == [3, len(large), 1, len(large), 1]


def test_a_full_device_is_named():
    with pytest.raises(UserError, match=r"/dev/full: cannot write it: No space left on device; .*free some space"):
        with files.disk_errors(Path("/dev/full"), "write it"):
            files.write_pieces(Path("/dev/full"), [b"x"])


def test_a_failed_replace_keeps_the_old_file_and_removes_its_own(tmp_path, monkeypatch):
    files.write_atomic(tmp_path / "f", b"old")

    def refuse(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match=r"cannot write: Input/output error; .*check the disk"):
        files.write_atomic(tmp_path / "f", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"old")]


def test_preflight_makes_the_folder_and_leaves_it_empty(tmp_path):
    files.preflight(tmp_path / "a" / "b", 1)
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_preflight_wants_room(tmp_path):
    with pytest.raises(UserError, match=r"MiB free, expected at least 1000000000000 MiB .*--out DIR") as error:
        files.preflight(tmp_path, 10**12 * 2**20)
    assert isinstance(error.value.__cause__, OSError) and error.value.__cause__.errno == errno.ENOSPC, "exit code 4"


def test_preflight_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot use this folder for a run: Not a directory"):
        files.preflight(tmp_path / "file" / "run", 1)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_what_is_no_file_is_not_read(tmp_path, kind):
    path = tmp_path / "f"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    path = Path("/dev/zero") if kind == "device" else path
    for read in (files.read_whole, files.sha256_file):
        with pytest.raises(OSError, match="Is a directory" if kind == "folder" else "Not a regular file"):
            read(path)


def test_a_file_is_measured_before_it_is_read(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"1234")
    assert files.read_whole(path, 4) == b"1234"
    with pytest.raises(OSError, match="expected at most"):
        files.read_whole(path, 3)
    os.truncate(path, 20 * 2**30)
    with pytest.raises(OSError, match="20480 MiB, expected at most 1024") as caught:
        files.read_whole(path)
    assert caught.value.errno == errno.EINVAL, "the disk is not full"
