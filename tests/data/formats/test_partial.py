"""npz loaders: segments become bouts, pickles and damage are refused, the excerpt equals its source."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import Dataset
from relief_ray.data.formats import partial
from relief_ray.data.formats.dsa import read_segment
from relief_ray.data.source import Members, Source, open_source
from relief_ray.data.spec import DATASETS, DSA_UNITS
from relief_ray.errors import UserError

SPEC = DATASETS["mhealth_partial"]
KEYS = ("signal", "label", "sample_index", "segment")


def packed(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def good() -> dict[str, np.ndarray]:
    return {
        "signal": np.ones((60, 6), np.float32),
        "label": np.repeat(np.array([0, 1, 2], np.int8), 20),
        "sample_index": np.concatenate([np.arange(30), np.arange(100, 130)]),
        "segment": np.repeat(np.array([0, 1], np.int16), [45, 15]),
    }


def parse(pack: Callable[[dict[str, bytes]], Members], data: bytes) -> object:
    return partial.parse(SPEC, pack({"subject01.npz": data}), Path("here"), 1)


def test_bouts_end_with_segments_and_jumps(members_of: Callable[[dict[str, bytes]], Members]) -> None:
    recording = partial.parse(SPEC, members_of({"subject01.npz": packed(**good())}), Path("here"), 1)
    assert recording.bouts.tolist() == [[0, 30], [30, 45], [45, 60]]


def test_pickles_are_never_loaded() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("a pickle was loaded",)

    trapped = np.array([Trap()], dtype=object)
    out = io.BytesIO()
    np.savez(out, **{**good(), "signal": trapped})
    with pytest.raises(UserError, match="plain arrays"):
        partial.read_arrays(out.getvalue(), "f.npz", KEYS)
    with pytest.raises(UserError, match="plain arrays"):
        partial.read_arrays(pickle.dumps({"signal": [1]}), "f.npz", KEYS)


def test_damage_is_named(members_of: Callable[[dict[str, bytes]], Members]) -> None:
    whole = packed(**good())
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        with pytest.raises(UserError, match="subject01"):
            parse(members_of, whole[:cut])
    lacking = {key: value for key, value in good().items() if key != "segment"}
    with pytest.raises(UserError, match=r"\['segment'\] are missing"):
        parse(members_of, packed(**lacking))
    with pytest.raises(UserError, match=r"shape \(60, 5\)"):
        parse(members_of, packed(**{**good(), "signal": np.ones((60, 5), np.float32)}))


def test_the_excerpt_equals_the_archive(mini: Dataset, dsa_zip: Path) -> None:
    unit = DSA_UNITS.index(mini.spec.units[0])
    signal = mini.signal()
    with open_source(DATASETS["dsa"], Source(name="dsa", path=dsa_zip)) as members:
        for subject, start, stop in mini.bouts[::9]:
            code = mini.spec.labels[mini.labels[start]]
            names = [f"data/a{code:02d}/p{subject + 1}/s{part:02d}.txt" for part in range(1, 25)]
            raw = np.concatenate([read_segment(members, name) for name in names])[:, 9 * unit : 9 * unit + 9]
            step = np.abs(signal).max(axis=0) / 32767
            assert stop - start == 3000
            assert (np.abs(signal[start:stop] - raw) <= 0.51 * step).all()
