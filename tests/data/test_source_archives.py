"""Zips that climb, link, explode or are cut are refused; nothing is ever written."""

import io
import random
import resource
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from relief_ray.data import source
from relief_ray.data.registry import get_spec
from relief_ray.data.source import check_members, find_source, open_source, open_zip
from relief_ray.support.errors import UserError


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


SUBJECT = "PAMAP2_Dataset/Protocol/subject101.dat"


def packed(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return out.getvalue()


def lying(whole: bytes, size: int) -> bytes:
    """The archive of one member with another size of it in the directory at its end, which readers go by."""
    at = whole.rindex(b"PK\x01\x02") + 24
    return whole[:at] + struct.pack("<I", size) + whole[at + 4 :]


@pytest.mark.parametrize("name", [SUBJECT, "inner.zip"])
def test_a_member_that_unpacks_to_more_than_it_claims_is_cut_there_and_refused(tmp_path: Path, name: str) -> None:
    """Also one that is an archive itself, and is copied: 50 MB that claim to be 100 bytes take no room."""
    spec = get_spec("pamap2")
    (tmp_path / "pamap2.zip").write_bytes(lying(packed({name: bytes(50_000_000)}), 100))
    said = rf"pamap2\.zip, member {name}: Bad CRC-32 .*; the archive is damaged: fetch it again"
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=said), open_source(spec, find_source(spec, tmp_path)) as opened:
            opened.read(SUBJECT)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_full_disk_while_an_inner_zip_is_copied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest size of a file stands in for the disk's end."""
    spec, full = get_spec("pamap2"), tmp_path / "full"
    full.mkdir()
    (tmp_path / "pamap2.zip").write_bytes(packed({"inner.zip": packed({SUBJECT: random.Random(0).randbytes(50_000)})}))
    source = find_source(spec, tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(full))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        said = r"full: cannot unpack .*pamap2\.zip!inner\.zip there .*; free some space"
        with pytest.raises(UserError, match=said), open_source(spec, source):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(full.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_cut_archive_names_file_and_size(tmp_path: Path, share: float) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as out:
        out.writestr("a", b"x" * 1000)
    path = tmp_path / "cut.zip"
    path.write_bytes(whole.getvalue()[: int(share * len(whole.getvalue()))])
    with pytest.raises(UserError, match=rf"cut\.zip: not a whole zip archive .*{path.stat().st_size} bytes"):
        open_zip(path)
