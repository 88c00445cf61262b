"""Zips that climb, link, explode or are cut are refused; nothing is ever written."""

import io
import random
import stat
import zipfile
from pathlib import Path

import pytest

from relief_ray.data import source
from relief_ray.data.source import check_members, open_zip
from relief_ray.errors import UserError


def archive(path: Path, name: str, mode: int = 0) -> zipfile.ZipFile:
    with zipfile.ZipFile(path, "w") as out:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        out.writestr(info, b"content")
    return open_zip(path)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/out", "C:/out", "..\\out"])
def test_climbing_names(tmp_path: Path, name: str) -> None:
    with archive(tmp_path / "x.zip", name) as opened, pytest.raises(UserError, match="outside"):
        check_members(opened, tmp_path / "x.zip")


def test_links(tmp_path: Path) -> None:
    with archive(tmp_path / "x.zip", "a", stat.S_IFLNK | 0o777) as opened, pytest.raises(UserError, match="is a link"):
        check_members(opened, tmp_path / "x.zip")


def test_plain_members_pass(tmp_path: Path) -> None:
    with archive(tmp_path / "x.zip", "a/b..c/d") as opened:
        check_members(opened, tmp_path / "x.zip")


def test_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("zeros", bytes(5_000_000))
    with open_zip(path) as opened:
        check_members(opened, path)  # a high ratio alone is no bomb
        monkeypatch.setattr(source, "MAX_BYTES", 1_000_000)
        with pytest.raises(UserError, match="bomb"):
            check_members(opened, path)


def test_a_member_that_is_too_large_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("zeros", bytes(5_000_000))
        out.writestr("noise", random.Random(0).randbytes(3_000))
    with open_zip(path) as opened:
        monkeypatch.setattr(source, "_MAX_PACKED_WELL", 4_000_000)
        with pytest.raises(UserError, match=r"bomb\.zip: member 'zeros' has \d+ bytes that claim to unpack to 5000000"):
            check_members(opened, path)
        monkeypatch.setattr(source, "_MAX_PACKED_WELL", 6_000_000)
        check_members(opened, path)
        monkeypatch.setattr(source, "MAX_MEMBER_BYTES", 2_000)
        with pytest.raises(UserError, match=r"member 'noise' .* expected at most 2000; archive refused"):
            check_members(opened, path)
        monkeypatch.setattr(source, "MAX_MEMBERS", 1)
        with pytest.raises(UserError, match=r"2 members, expected at most 1"):
            check_members(opened, path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_cut_archive_names_file_and_size(tmp_path: Path, share: float) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as out:
        out.writestr("a", b"x" * 1000)
    path = tmp_path / "cut.zip"
    path.write_bytes(whole.getvalue()[: int(share * len(whole.getvalue()))])
    with pytest.raises(UserError, match=rf"cut\.zip: not a whole zip archive .*{path.stat().st_size} bytes"):
        open_zip(path)
