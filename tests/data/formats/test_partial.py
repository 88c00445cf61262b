"""The partial MHEALTH fixture: segments become bouts, pickles and damage are refused."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data.loader import Members
from relief_ray.support.errors import UserError
from tests.data.formats import mhealth_partial as partial

SPEC = partial.SPEC
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
