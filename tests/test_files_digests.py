"""Atomic writing and digests remembered by stamp."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from relief_ray.errors import UserError
from relief_ray.files import digest_files, folder_atomic, sha256_file, sha256_json, write_atomic


def test_write_atomic_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_atomic(tmp_path / "deep" / "file", data)
    assert (tmp_path / "deep" / "file").read_bytes() == b"two"
    assert os.listdir(tmp_path / "deep") == ["file"]


def test_a_failed_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), folder_atomic(tmp_path / "entry") as part:
        (part / "half").write_bytes(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_folders_stays(tmp_path: Path) -> None:
    with folder_atomic(tmp_path / "entry") as late:
        (late / "who").write_text("late")
        with folder_atomic(tmp_path / "entry") as early:
            (early / "who").write_text("early")
    assert (tmp_path / "entry" / "who").read_text() == "early"
    assert os.listdir(tmp_path) == ["entry"]


def test_digests_follow_changes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, memory = tmp_path / "file", tmp_path / "memory.json"
    file.write_bytes(b"one")
    expected = {"file": hashlib.sha256(b"one").hexdigest()}
    assert digest_files({"file": file}, memory) == expected == {"file": sha256_file(file)}
    with monkeypatch.context() as patch:
        patch.setattr("relief_ray.files.sha256_file", lambda path: pytest.fail(f"read {path} again"))
        assert digest_files({"file": file}, memory) == expected
    file.write_bytes(b"longer")
    assert digest_files({"file": file}, memory) == {"file": hashlib.sha256(b"longer").hexdigest()}


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"file": 3}'])
def test_a_damaged_memory_is_made_again(tmp_path: Path, damage: bytes) -> None:
    file, memory = tmp_path / "file", tmp_path / "memory.json"
    file.write_bytes(b"one")
    memory.write_bytes(damage)
    assert digest_files({"file": file}, memory) == {"file": sha256_file(file)}


def test_json_digest_ignores_key_order() -> None:
    assert sha256_json({"a": 1, "b": 2}) == sha256_json({"b": 2, "a": 1}) != sha256_json({"a": 1, "b": 3})


def test_no_permission_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="RELIEF_CACHE"):
        write_atomic(tmp_path / "x" / "file", b"")


def test_a_read_only_place_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\); set RELIEF_CACHE"):
        write_atomic(tmp_path / "x" / "file", b"")
