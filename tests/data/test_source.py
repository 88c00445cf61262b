"""Raw files are found where users put them; failures say where was looked and what to do."""

import json
import os
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.data.loader import require_members
from relief_ray.data.registry import get_spec
from relief_ray.data.source import MARKER, find_source, narrow, open_source, search_roots
from relief_ray.support.errors import UserError
from relief_ray.support.files import cache_root

MHEALTH = get_spec("mhealth")


def put(folder: Path, number: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"mHealth_subject{number}.log").write_bytes(b"content")
    return folder


def pack(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, b"content")
    return path


@pytest.mark.parametrize("place", ["", "MHEALTHDATASET", "mhealth/MHEALTHDATASET"])
def test_folders(tmp_path: Path, place: str) -> None:
    put(tmp_path / place)
    source = find_source(MHEALTH, tmp_path)
    with open_source(MHEALTH, source) as members:
        assert [members.read(name) for name in members.names] == [b"content"]


@pytest.mark.parametrize("place", ["mhealth+dataset.zip", "mhealth/mhealth+dataset.zip"])
def test_zips(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    path = pack(tmp_path / place, ["MHEALTHDATASET/mHealth_subject1.log", "README.txt"])
    for root in (tmp_path, path):
        source = find_source(MHEALTH, root)
        assert source.path == path
        with open_source(MHEALTH, source) as members:
            assert members.names == ("MHEALTHDATASET/mHealth_subject1.log",)


def test_a_zip_in_a_zip(tmp_path: Path) -> None:
    inner = pack(
        tmp_path / "inner", ["PAMAP2_Dataset/Protocol/subject101.dat", "PAMAP2_Dataset/Optional/subject101.dat"]
    )
    with zipfile.ZipFile(tmp_path / "pamap2+physical.zip", "w") as out:
        out.write(inner, "PAMAP2_Dataset.zip")
    inner.unlink()
    source = find_source(get_spec("pamap2"), tmp_path)
    assert source.inner == "PAMAP2_Dataset.zip"
    with open_source(get_spec("pamap2"), source) as members:
        assert members.names == ("PAMAP2_Dataset/Protocol/subject101.dat",)
        assert members.read(members.names[0]) == b"content"


def test_not_found_says_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_source(MHEALTH, tmp_path / "nowhere")
    for said in (str(tmp_path / "nowhere"), "does not exist", "data fetch mhealth", "--from", "synth", "RELIEF_DATA"):
        assert said in str(caught.value)


def test_not_found_shows_the_pattern_as_it_was_written_and_what_lies_there(tmp_path: Path) -> None:
    """Of a built-in dataset and of a user's own."""
    place, empty = tmp_path / "there", tmp_path / "empty"
    (place / "videos").mkdir(parents=True)
    empty.mkdir()
    for name in ("b.csv", "a.csv", ".hidden"):
        (place / name).touch()
    own = replace(MHEALTH, name="mine:MINE", member=r"(^|/)mine_\d+\.csv$")
    for spec in (MHEALTH, own):
        with pytest.raises(UserError) as caught:
            find_source(spec, place)
        assert f"looked for files like '{spec.member}'" in str(caught.value), "no backslash is doubled"
        assert f"{place} (found there: a.csv, b.csv, videos/)" in str(caught.value)
    for name in ("c.csv", "d.csv"):
        (place / name).touch()
    with pytest.raises(UserError, match=r"\(found there: a\.csv, b\.csv, c\.csv, d\.csv, \.\.\)"):
        find_source(own, place)
    with pytest.raises(UserError, match=r"empty \(found there: nothing\)"):
        find_source(own, empty)


def test_a_folder_with_other_names_than_the_loaders_says_which(tmp_path: Path) -> None:
    source = find_source(MHEALTH, put(put(tmp_path / "mhealth"), 2))
    with pytest.raises(
        UserError, match=r"none of them in .*mhealth, but mHealth_subject1\.log, mHealth_subject2\.log\. F"
    ):
        narrow(MHEALTH, source, ["person_1.log", "person_2.log"])


def test_a_file_that_the_pattern_does_not_match_is_not_called_missing(tmp_path: Path) -> None:
    ends = [f"steps{number}.npz" for number in range(1, 12)]
    for end in ends:
        (tmp_path / end).touch()
    own = replace(MHEALTH, name="mine:MINE", member=r"(^|/)steps\d\.npz$", hints=())
    unlike = rf"\(9 of 11 files\); in it, but not like '{re.escape(own.member)}': "
    with pytest.raises(UserError, match=unlike + r"steps10.npz, steps11.npz. Fix: mend `member` of the loader; set"):
        narrow(own, find_source(own, tmp_path), ends)
    (tmp_path / "steps10.npz").unlink()
    with pytest.raises(UserError, match=unlike + "steps11.npz. Fix: mend"):
        narrow(own, find_source(own, tmp_path), ends)
    (tmp_path / "steps11.npz").unlink()
    with pytest.raises(UserError, match=r"files\); missing: steps10.npz, steps11.npz. Fix: add what is missing"):
        narrow(own, find_source(own, tmp_path), ends)


def copies(root: Path, kinds: dict[str, str]) -> None:
    """Places of two files each: a folder, a zip or one that lacks a file, all with these bytes."""
    for name, content in kinds.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        ends = [f"mHealth_subject{number}.log" for number in (1, 2)][: 1 if content == "half" else 2]
        if name == ".":
            for end in ends:
                (root / end).write_text(content)
        elif name.endswith(".zip"):
            with zipfile.ZipFile(root / name, "w") as out:
                for end in ends:
                    out.writestr(f"MHEALTHDATASET/{end}", content)
        else:
            for end in ends:
                put(root / name / "MHEALTHDATASET", int(end[-5]))
                (root / name / "MHEALTHDATASET" / end).write_text(content)


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        ({"mhealth_a": "rows", "mhealth_b": "rowz"}, ("mhealth_a/MHEALTHDATASET", "mhealth_b/MHEALTHDATASET")),
        (
            {"mhealth": "rows", "mhealth_old.zip": "others"},
            ("mhealth/MHEALTHDATASET", "mhealth_old.zip/MHEALTHDATASET"),
        ),
        ({"mhealth": "rows", "mhealth/old.zip": "rowz"}, ("mhealth/MHEALTHDATASET", "mhealth/old.zip/MHEALTHDATASET")),
        ({"mhealth": "rows", "mhealth/mhealth.zip": "rows"}, "mhealth"),
        ({".": "rows", "mhealth_old": "others"}, ("mhealth_old/MHEALTHDATASET", ".")),
        ({".": "rows", "mhealth.zip": "others"}, ("mhealth.zip/MHEALTHDATASET", ".")),
        ({".": "rows", "mhealth_old": "half"}, "."),
        ({".": "rows", "mhealth_old": "rows", "backup": "others"}, "mhealth_old"),
        ({"mhealth_a": "half", "mhealth_b": "rows"}, "mhealth_b"),
        ({"mhealth_a": "rows", "mhealth_b": "half"}, "mhealth_a"),
        ({"mhealth": "rows", "backup": "others"}, "mhealth"),
    ],
)
@pytest.mark.parametrize("name", ["mhealth", "mine:MINE"])
def test_two_whole_copies_have_the_same_bytes(tmp_path: Path, kinds, taken, name: str) -> None:
    """Of a built-in dataset and of a user's own: else both are named; one that lacks a file is none."""
    copies(tmp_path, kinds)
    spec, expected = replace(MHEALTH, name=name), ["mHealth_subject1.log", "mHealth_subject2.log"]
    if isinstance(taken, str):
        assert find_source(spec, tmp_path, expected).path == tmp_path / taken
        return
    both = " and ".join(re.escape(str(tmp_path / place)) for place in taken)
    with pytest.raises(
        UserError, match=rf"{both} each hold all of its 2 files, but mHealth_subject1\.log, mHealth.* with"
    ):
        find_source(spec, tmp_path, expected)


def test_real_before_synthetic(tmp_path: Path) -> None:
    made = put(tmp_path / "a_mhealth_SYNTHETIC")
    (made / MARKER).write_text(json.dumps({"origin": "SYNTHETIC"}))
    assert find_source(MHEALTH, tmp_path).synthetic
    put(tmp_path / "mhealth")
    assert not find_source(MHEALTH, tmp_path).synthetic
    shutil.rmtree(tmp_path / "mhealth")
    assert find_source(MHEALTH, tmp_path).synthetic


def test_a_marker_inside_a_zip_counts(tmp_path: Path) -> None:
    pack(tmp_path / "mhealth.zip", ["mHealth_subject1.log", f"x/{MARKER}"])
    assert find_source(MHEALTH, tmp_path).synthetic


def test_a_zip_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    archive = pack(tmp_path / "mhealth.zip", ["other.log"])
    with pytest.raises(UserError, match="not found"):
        find_source(MHEALTH, tmp_path)
    pack(archive, ["mHealth_subject1.log"])
    assert find_source(MHEALTH, tmp_path).path == archive
    pack(archive, ["mHealth_subject1.log", MARKER])
    assert find_source(MHEALTH, tmp_path).synthetic


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_roots(tmp_path) == (tmp_path,)
    assert search_roots(None) == (cache_root() / "datasets",)
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    assert search_roots(None) == (tmp_path, cache_root() / "datasets")
    monkeypatch.delenv("RELIEF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "relief-ray"


@pytest.mark.parametrize("home", ["/dev/null", "/proc/1/no", "not/absolute"])
def test_a_home_without_room_for_a_cache(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIEF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"relief-ray-{os.getuid()}"
    assert cache_root() == own == cache_root() and own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with pytest.raises(UserError, match=rf"{own}: others can write there, expected a folder of this user's; set REL"):
        cache_root()
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(UserError, match="others can write there"):
        cache_root()
    own.unlink()
    own.touch()
    with pytest.raises(UserError, match=rf"{own}: cannot make a folder: File exists; set RELIEF_CACHE to one of yours"):
        cache_root()


def test_missing_members_are_counted_and_named(tmp_path: Path) -> None:
    expected = [f"mHealth_subject{number}.log" for number in range(1, 11)]
    assert require_members(MHEALTH, ["x/" + name for name in expected], expected, tmp_path)[0] == "x/" + expected[0]
    with pytest.raises(UserError, match=r"8 of 10 files .*mHealth_subject3\.log.* and 3 more"):
        require_members(MHEALTH, expected[:2], expected, tmp_path)
    both = r"backup/mHealth_subject1\.log and mHealth_subject1\.log are all called as one file of 'mhealth'"
    with pytest.raises(UserError, match=both):
        require_members(MHEALTH, ["backup/" + expected[0], *expected], expected, tmp_path)
