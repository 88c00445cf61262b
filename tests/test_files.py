from __future__ import annotations

import errno
import hashlib
import os

import pytest

from relief_ray import files
from relief_ray.errors import UserError


def test_replace_file_writes_and_leaves_nothing_else(tmp_path):
    for data in (b"old", b"newer", b""):
        files.replace_file(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_write_all_goes_on_after_short_writes(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    files.write_file(tmp_path / "f", b"0123456789")
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
        with files.disk_errors("/dev/full", "write it"):
            files.write_file("/dev/full", b"x")


def test_a_failed_replace_keeps_the_old_file_and_removes_its_own(tmp_path, monkeypatch):
    files.replace_file(tmp_path / "f", b"old")

    def refuse(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match=r"cannot write: Input/output error; .*check the disk"):
        files.replace_file(tmp_path / "f", b"new")
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
