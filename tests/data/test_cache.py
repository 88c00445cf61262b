"""The cache answers with what was parsed, never with something else, and says what to delete when it is damaged."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import Dataset
from relief_ray.data import dataset as cached
from relief_ray.data.loader import Recording
from relief_ray.data.registry import get_spec
from relief_ray.data.source import MARKER, Source
from relief_ray.support.errors import UserError
from relief_ray.support.files import page, values_in

SPEC = get_spec("mhealth")


def recording(subject: int, rows: int, *, synthetic: bool = False) -> Recording:
    rng = np.random.default_rng(subject)
    return Recording(
        subject=subject,
        signal=rng.normal(size=(rows, 23)).astype(np.float32),
        labels=np.where(np.arange(rows) < 10, 0, 12).astype(np.int16),
        bouts=np.array([[0, rows // 2], [rows // 2, rows]]),
        synthetic=synthetic,
        facts={"longest_walk_s": 0.5},
        filled=np.arange(rows)[:, None] < np.full(23, 3),
    )


def test_subjects_are_joined(tmp_path: Path) -> None:
    recordings = [recording(1, 40), recording(2, 60)]
    cached.store(SPEC, recordings, Source(path=tmp_path), tmp_path / "entry")
    entry = cached.read_entry(tmp_path / "entry")
    signal = np.load(entry.signal_path, mmap_mode="r")
    np.testing.assert_array_equal(signal, np.concatenate([r.signal for r in recordings]))
    assert entry.bouts.tolist() == [[0, 0, 20], [0, 20, 40], [1, 40, 70], [1, 70, 100]]
    assert entry.labels.tolist() == [-1] * 10 + [11] * 30 + [-1] * 10 + [11] * 50
    assert (entry.origin, entry.facts["2"]) == ("real", {"longest_walk_s": 0.5})
    assert np.flatnonzero(entry.filled).tolist() == [0, 1, 2, 40, 41, 42]


@pytest.mark.parametrize(("marked", "watermarked"), [(True, False), (False, True)])
def test_one_synthetic_subject_makes_all_synthetic(tmp_path: Path, marked: bool, watermarked: bool) -> None:
    recordings = [recording(1, 40), recording(2, 40, synthetic=watermarked)]
    cached.store(SPEC, recordings, Source(path=tmp_path, synthetic=marked), tmp_path / "entry")
    assert cached.read_entry(tmp_path / "entry").origin == "SYNTHETIC"
    assert (tmp_path / "entry" / MARKER).exists()


def test_an_unknown_origin_counts_as_synthetic(tmp_path: Path) -> None:
    cached.store(SPEC, [recording(1, 40)], Source(path=tmp_path), tmp_path / "entry")
    meta = values_in((tmp_path / "entry" / "meta.json").read_bytes())
    (tmp_path / "entry" / "meta.json").write_bytes(page(json.dumps({**meta, "origin": "?"})))
    assert cached.read_entry(tmp_path / "entry").origin == "SYNTHETIC"


@pytest.mark.parametrize("text", ["[]", "{}", '{"arrays": {}, "origin": "real"}', None])
def test_other_facts_than_these_are_damage_too(tmp_path: Path, mini: Dataset, text: str | None) -> None:
    meta = shutil.copytree(mini.signal_path.parent, tmp_path / "entry") / "meta.json"
    meta.write_text(text or meta.read_text().replace('"started"', '"begun"', 1))
    with pytest.raises(UserError, match=r"meta.json: damaged cache entry .* delete the folder .*, it is made"):
        cached.read_entry(meta.parent)


@pytest.mark.parametrize("file", ["signal.npy", "labels.npy", "bouts.npy", "filled.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "pickle"])
def test_damage_names_the_folder(tmp_path: Path, mini: Dataset, file: str, damage: str) -> None:
    folder = shutil.copytree(mini.signal_path.parent, tmp_path / "entry")
    whole = (folder / file).read_bytes()
    if damage == "gone":
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"\x80\x04]\x94.")
    with pytest.raises(UserError, match=rf"entry/{file}: damaged cache entry .* delete the folder .*, it is made"):
        cached.read_entry(folder)


def test_keys_follow_bytes_units_and_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = get_spec("dsa")
    keys = [
        cached.cache_key(spec, "a"),
        cached.cache_key(spec, "b"),
        cached.cache_key(replace(spec, units=("T",)), "a"),
    ]
    monkeypatch.setattr(cached, "PARSER_VERSION", cached.PARSER_VERSION + 1)
    assert len({*keys, cached.cache_key(spec, "a")}) == 4


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    def digest(name: str, data: bytes) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "mHealth_subject1.log").write_bytes(data)
        return cached.source_digest(SPEC, Source(path=folder))

    assert digest("a", b"1") == digest("b", b"1")
    assert digest("a", b"1") != digest("b", b"22")
    made = Source(path=tmp_path / "a", synthetic=True)
    assert cached.source_digest(SPEC, made) != cached.source_digest(SPEC, replace(made, synthetic=False))
