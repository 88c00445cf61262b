"""The packaged lists: complete, well-formed, and compared by name."""

import hashlib
import re
from pathlib import Path

import pytest

from relief_ray.data.describe import compare, digests, known_digests
from relief_ray.data.registry import get_spec
from relief_ray.data.source import Source


@pytest.mark.parametrize(("name", "count"), [("pamap2", 9), ("mhealth", 10), ("dsa", 1), ("dsa_mini", 1)])
def test_lists(name: str, count: int) -> None:
    listed = known_digests(name)
    assert len(listed) == count
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in listed.values())


def test_no_list() -> None:
    assert known_digests("unlisted") == {}


def test_states() -> None:
    listed = known_digests("mhealth")
    present = dict.fromkeys(
        ("mHealth_subject1.log", "mHealth_subject2.log", "other.log"), listed["mHealth_subject1.log"]
    )
    assert compare(listed, present) == {
        "mHealth_subject1.log": "known",
        "mHealth_subject2.log": "differs",
        "other.log": "unlisted",
    }


def test_members_go_by_the_lists_names(tmp_path: Path) -> None:
    folder = tmp_path / "PAMAP2_Dataset" / "Protocol"
    folder.mkdir(parents=True)
    (folder / "subject101.dat").write_bytes(b"content")
    by_member = digests(get_spec("pamap2"), Source(path=tmp_path))
    assert by_member == {"Protocol/subject101.dat": hashlib.sha256(b"content").hexdigest()}


def test_the_original_dsa_is_known(dsa_zip: Path) -> None:
    spec = get_spec("dsa")
    assert set(compare(known_digests("dsa"), digests(spec, Source(path=dsa_zip))).values()) == {"known"}
