"""Digests remembered by stamp, and errors of the cache folder."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from relief_ray.support.errors import UserError
from relief_ray.support.files import digest_files, sha256_file, sha256_json, write_atomic


def test_digests_follow_changes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, memory = tmp_path / "file", tmp_path / "memory.json"
    file.write_bytes(b"one")
    expected = {"file": hashlib.sha256(b"one").hexdigest()}
    assert digest_files({"file": file}, memory) == expected == {"file": sha256_file(file)}
    with monkeypatch.context() as patch:
        patch.setattr("relief_ray.support.files.sha256_file", lambda path: pytest.fail(f"read {path} again"))
        assert digest_files({"file": file}, memory) == expected
    file.write_bytes(b"longer")
    assert digest_files({"file": file}, memory) == {"file": hashlib.sha256(b"longer").hexdigest()}


@pytest.mark.parametrize("kind", ["link to nothing", "link to itself", "folder", "gone"])
def test_a_file_that_cannot_be_hashed_is_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "raw"
    if kind == "folder":
        file.mkdir()
    elif kind != "gone":
        file.symlink_to(file if kind == "link to itself" else "/nowhere/raw")
    with pytest.raises(UserError, match=f"{file}: cannot be read \\(.*\\), expected a file"):
        digest_files({"raw": file}, tmp_path / "memory.json")
    assert not (tmp_path / "memory.json").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"file": 3}'])
def test_a_damaged_memory_is_made_again(tmp_path: Path, damage: bytes) -> None:
    file, memory = tmp_path / "file", tmp_path / "memory.json"
    file.write_bytes(b"one")
    memory.write_bytes(damage)
    assert digest_files({"file": file}, memory) == {"file": sha256_file(file)}


def test_json_digest_ignores_key_order() -> None:
    assert sha256_json({"a": 1, "b": 2}) == sha256_json({"b": 2, "a": 1}) != sha256_json({"a": 1, "b": 3})


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_cache_that_cannot_be_written_names_its_variable(tmp_path: Path, monkeypatch, code: int) -> None:
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match=r"set RELIEF_CACHE to a folder of yours with room") as error:
        write_atomic(tmp_path / "cache" / "x" / "file", b"")
    assert os.strerror(code) in str(error.value) and os.listdir(tmp_path / "cache" / "x") == []
    with pytest.raises(UserError) as error:
        write_atomic(tmp_path / "elsewhere", b"")
    assert "RELIEF_CACHE" not in str(error.value)
