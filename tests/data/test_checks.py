"""A user's loader whose description or recordings contradict themselves is refused; files are taken from one folder."""

import io
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from relief_ray.conformance.datasets import check_loader
from relief_ray.data import load_dataset
from relief_ray.data.checks import in_words, recording_violations, refuse, spec_violations, with_own_types
from relief_ray.data.dataset import locate
from relief_ray.data.fetch import import_from
from relief_ray.data.loader import Recording
from relief_ray.data.registry import DATASETS, get_loader, get_spec, load_own
from relief_ray.plugins.blame import staying
from relief_ray.support.errors import UserCodeError, UserError
from tests.data.formats import mhealth_partial
from tests.loaders import BROKEN, SHIFTED, write_lab, write_people

SPEC = mhealth_partial.SPEC  # 6 channels, labels 1 to 12


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_built_in_descriptions_have_no_fault(name: str) -> None:
    assert spec_violations(get_spec(name)) == []


@pytest.mark.parametrize(
    ("changed", "rule", "said"),
    [
        ({"classes": SPEC.classes[:11]}, "labels", "11 classes but 12 labels"),
        ({"labels": (1, 1, *range(3, 13))}, "labels", "labels lists 1 more than once"),
        ({"classes": ("", *SPEC.classes[1:])}, "labels", "classes has '', expected names of one line each, none empty"),
        ({"classes": ("a", " ", "\t", *SPEC.classes[3:])}, "labels", "classes has ' ' and '.t', expected names"),
        ({"classes": ("walk\nrun", *SPEC.classes[1:])}, "labels", "classes has 'walk.nrun', expected names"),
        (
            {"labels": tuple(range(12))},
            "labels",
            r"code 0 stands in labels and in null_labels.*take it out of null_labels",
        ),
        ({"classes": ("a",), "labels": (1,)}, "labels", "1 class, expected at least two"),
        ({"modalities": (("acc", 3), ("acc", 3))}, "channels", "modalities lists 'acc' more than once"),
        *(
            (
                {"modalities": ((name, 3), ("gyro", 3))},
                "channels",
                f"modalities has the name {re.escape(repr(name))}, exp",
            )
            for name in ("acc+gyro", "a|b", "a.b", "a b", "a,b", "a=b", "a/b", "", "-a", "a:b", "a[1]", "a\n", "all")
        ),
        ({"modalities": (("acc", 0), ("gyro", 3))}, "channels", "modality 'acc' has 0 channels"),
        ({"modalities": (), "max_abs": ()}, "channels", "modalities is empty"),
        ({"max_abs": (1.0,)}, "channels", "max_abs has 1 values for 2 modalities"),
        ({"subjects": (1, 2, 2)}, "subjects", "subjects lists 2 more than once"),
        ({"subjects": ()}, "subjects", "subjects is empty"),
        ({"rate_hz": 0}, "rates", "rate_hz = 0, expected samples per second above 0"),
        ({"rate_hz": 100}, "rates", "rate_hz = 100 is above raw_rate_hz = 50"),
        ({"window_s": 0.1}, "rates", "windows of 0.1 s at 50 Hz hold 5 samples, expected at least 8"),
        ({"max_nan_share": 1.0}, "description", "max_nan_share = 1, expected a share"),
        ({"lacks": (3, "acc")}, "description", r"lacks = \[3, 'acc'\]: expected an object"),
        ({"null_labels": 0}, "description", r"null_labels = 0: expected a tuple; .* ends with a comma: \(0,\)"),
        ({"member": "a{99999999999}"}, "description", r"member = 'a.99999999999.' is no regular expression \(the rep"),
        ({"window_s": float("nan")}, "rates", "window_s = nan, expected seconds above 0"),
        ({"max_abs": np.array([20.0])}, "channels", "max_abs has 1 values for 2 modalities"),
        ({"subjects": np.arange(0)}, "subjects", "subjects is empty"),
        ({"modalities": np.array([("acc", 0), ("gyro", 3)], object)}, "channels", "modality 'acc' has 0 channels"),
        ({"rate_hz": "50"}, "description", r"rate_hz = '50': expected a valid integer"),
        ({"labels": (True, *range(2, 13))}, "description", r"labels\[0\] = True: expected a valid integer"),
        ({"subjects": (object(), 2)}, "description", r"subjects\[0\] = .*object.*: expected a valid integer"),
        (
            {"modalities": (("acc", 3.5), ("gyro", 3))},
            "description",
            r"modalities\[0\]\[1\] = 3\.5: expected a valid int",
        ),
        ({"lacks": {(1,): ("acc",)}}, "description", "a field of DatasetSpec: keys must be str, int, .*"),
        ({"lacks": {11: ("acc",)}}, "description", r"lacks\[11\] = \('acc',\): there is no subject 11"),
        ({"lacks": {1: "acc"}}, "description", r"lacks\['1'\] = 'acc': expected a tuple; .*: \('acc',\)"),
        (
            {"lacks": {1: ("mag",)}},
            "description",
            r"lacks\[1\] = \('mag',\), expected a tuple of some of the modalities",
        ),
        ({"lacks": {1: ()}}, "description", r"lacks\[1\] = \(\), expected a tuple of some of the modalities"),
        (
            {"lacks": {1: ("acc", "gyro")}},
            "description",
            ".* are all of its sensors; leave that person out of subjects",
        ),
    ],
)
def test_contradictions_of_a_description(changed: dict[str, object], rule: str, said: str) -> None:
    faults = spec_violations(replace(SPEC, **changed))
    assert [fault.rule for fault in faults] == [rule]
    with pytest.raises(UserError, match=rf"(?s)lab: 1 error\n  {rule}: {said}.*\n    fix: "):
        refuse("lab", faults)


def test_arrays_and_patterns_are_taken_as_tuples_and_texts() -> None:
    changed = {
        "subjects": np.arange(1, 5),
        "labels": np.array(SPEC.labels),
        "classes": np.array(SPEC.classes),
        "modalities": np.array(SPEC.modalities, object),
        "max_abs": np.array([20.0, 20.0]),
        "null_labels": np.array([0]),
        "member": re.compile(SPEC.member),
    }
    spec = replace(SPEC, **changed)
    assert spec_violations(spec) == []
    assert with_own_types(spec) == replace(SPEC, subjects=(1, 2, 3, 4), max_abs=(20.0, 20.0), null_labels=(0,))


@pytest.fixture
def sound() -> Recording:
    labels = np.repeat(np.arange(1, 5, dtype=np.int16), 25)
    return Recording(
        subject=3, signal=np.ones((100, 6), np.float32), labels=labels, bouts=np.array([[0, 60], [60, 100]])
    )


# Float64 can hold it, float32 cannot.
HUGE = np.eye(100, 6, dtype=float) * np.repeat([0.0, 1e39, 0.0], [3, 1, 2])


def changed_signal(value: float) -> np.ndarray:
    signal = np.ones((100, 6), np.float32)
    signal[10, 4] = value
    return signal


@pytest.mark.parametrize(
    ("changed", "rule", "said"),
    [
        ({"subject": 4}, "subjects", "parse() returned subject 4, expected 3"),
        ({"subject": "3"}, "subjects", "parse() returned subject '3', expected 3"),
        ({"subject": np.array([3, 3])}, "subjects", "parse() returned subject array([3, 3]), expected 3"),
        ({"synthetic": "no"}, "description", "synthetic is 'no', expected True or False"),
        ({"facts": {1: 2}}, "description", "facts are {1: 2}, expected a mapping from names to findings"),
        ({"signal": np.ones((100, 5), np.float32)}, "channels", "the signal has 5 channels, but modalities declare 6"),
        ({"signal": np.ones(100, np.float32)}, "channels", "signal has shape (100,), expected (rows, 6)"),
        ({"signal": np.ones((6, 100), np.float32)}, "channels", "expected rows x channels; transpose it (signal.T)"),
        ({"labels": np.ones(90, np.int16)}, "labels", "labels have shape (90,) for 100 rows"),
        ({"labels": np.ones(100, np.float32)}, "labels", "labels are float32, expected integers"),
        ({"labels": np.repeat(np.int16([1, 13]), [80, 20])}, "labels", "code 13 in 20 rows of 100"),
        ({"labels": np.zeros(100, np.int16)}, "subjects", "none of 100 rows has one of the labels"),
        ({"bouts": np.empty((0, 2), np.int64)}, "subjects", "no bout"),
        ({"bouts": np.array([[0, 101]])}, "bouts", "bout 0 is [0, 101], expected first < stop within 0 to 100"),
        ({"bouts": np.array([[50, 100], [0, 50]])}, "bouts", "overlap or are out of order"),
        ({"bouts": np.array([0, 100])}, "bouts", "bouts have shape (2,), expected (n, 2)"),
        ({"signal": changed_signal(np.nan)}, "finite", "gyro has 1 of 300 values that are NaN or infinite"),
        ({"signal": changed_signal(np.inf)}, "finite", "the first in row 10, column 4"),
        (
            {"signal": pd.DataFrame(changed_signal(0.0))},
            "channels",
            "signal are of type DataFrame, expected numbers",
        ),
        ({"signal": np.ma.masked_less(changed_signal(0.0), 0)}, "channels", "signal are of type MaskedArray"),
        ({"signal": changed_signal(0.0).astype(complex)}, "channels", "signal are complex128, expected numbers"),
        ({"signal": changed_signal(0.0).astype(object)}, "channels", "signal are object, expected numbers"),
        ({"labels": [1] * 100}, "labels", "labels are of type list, expected integers in a numpy array: np.asarray("),
        ({"bouts": np.array([[0.0, 100.0]])}, "bouts", "bouts are float64, expected integers"),
        ({"facts": [1]}, "description", "facts are [1], expected a mapping"),
        (
            {"signal": np.where(changed_signal(0.0) == 0, 1e39, 1.0)},
            "finite",
            "values that are NaN or infinite as float32, the first in",
        ),
        ({"filled": np.arange(600).reshape(100, 6) % 10 < 3}, "finite", "30% of all readings were filled in, expected"),
        *(
            ({"filled": wrong}, "finite", "filled is ")
            for wrong in (np.zeros(100, bool), np.zeros((100, 6)), [[False] * 6] * 100, np.ones((6, 100), bool), "no")
        ),
    ],
)
def test_contradictions_of_a_recording(sound: Recording, changed: dict[str, object], rule: str, said: str) -> None:
    assert recording_violations(SPEC, 3, sound) == []
    (fault,) = recording_violations(SPEC, 3, replace(sound, **changed))
    (text,) = in_words([fault])
    assert (fault.rule, fault.subject) == (rule, 3) and text.startswith("subject 3: ") and said in text


def test_the_same_wrong_code_of_several_people_is_said_once(sound: Recording) -> None:
    """The numbers of rows differ from person to person, the mistake does not: rows are added up."""
    faults = []
    for person, rows in ((1, 20), (2, 30), (3, 25)):
        labels = np.repeat(np.int16([1, 13]), [100 - rows, rows])
        faults += recording_violations(SPEC, person, replace(sound, subject=person, labels=labels))
    (text,) = in_words(faults)
    assert text.startswith("subjects 1, 2 and 3: code 13 in 75 rows of 300; the files have the codes [1, 13]")


def test_what_is_no_recording_is_said(sound: Recording) -> None:
    (fault,) = recording_violations(SPEC, 3, sound.signal)
    assert "parse() returned a ndarray, expected a Recording" in fault.found


def test_null_labels_are_the_loaders(sound: Recording) -> None:
    labels = np.repeat(np.array([1, 99], np.int16), [80, 20])
    assert recording_violations(replace(SPEC, null_labels=(0, 99)), 3, replace(sound, labels=labels)) == []


NOT_REFUSED = {"constant", "repeats", "place", "rates", "windows", "leakage"}  # judged by `conformance` alone


@pytest.mark.parametrize("rule", sorted(set(BROKEN) - NOT_REFUSED))
def test_a_broken_loader_is_refused_before_anything_is_cached(rule: str, lab) -> None:
    body, said = BROKEN[rule]
    path = lab(body)
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            load_dataset(path)
        assert said in str(caught.value)


@pytest.mark.parametrize("case", SHIFTED)
def test_codes_that_are_off_by_one_are_refused_as_such(case: str, lab) -> None:
    body, said = SHIFTED[case]
    with pytest.raises(UserError) as caught:
        load_dataset(lab(body))
    assert said in str(caught.value)


def test_an_error_inside_a_loader_names_its_line(lab) -> None:
    path = lab("def mine(spec, members, path, subject):\n    return {}['sgnal']\nMINE = replace(GOOD, parse=mine)")
    with pytest.raises(
        UserError, match=r"parse\(\) of subject 1 fails with KeyError: 'sgnal' \(.*\.py, line \d+, in mine"
    ):
        load_dataset(path)


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        ('MINE = Loader(spec={"name": "x"}, files=files, parse=parse)', "its `spec` is a dict, expected a DatasetSpec"),
        ("MINE = Loader(spec=None, files=files, parse=parse)", "its `spec` is a NoneType, expected a DatasetSpec"),
        *(
            (
                f"MINE = replace(GOOD, files=lambda spec, subject: {given})",
                r"files\(\) returned .* for subject 1, expected a",
            )
            for given in ('f"person{subject}.npy"', "[Path('person1.npy')]", "[subject]", "None", "[]", "4")
        ),
    ],
)
def test_a_loader_of_other_kinds_is_refused(lab, mine: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_dataset(lab(mine))


def test_conformance_judges_a_description_of_arrays_as_one_of_tuples(lab) -> None:
    path = lab("MINE = replace(GOOD, spec=replace(SPEC, subjects=np.arange(1, 5), labels=np.array([1, 2, 3])))")
    assert load_own(path).spec == get_spec(path)
    assert all(verdict.status == "kept" for verdict in check_loader(load_own(path), {}))


def test_numbers_of_numpy_are_taken_as_pythons(lab) -> None:
    mine = 'parse(*given), subject=np.int64(given[3]), synthetic=np.bool_(False), facts={"gaps": np.int64(3)})'
    dataset = load_dataset(lab(f"MINE = replace(GOOD, parse=lambda *given: replace({mine})"))
    assert dataset.origin == "real" and dataset.facts["2"] == {"gaps": 3}
    assert [row["subject"] for row in dataset.sensors][:4] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("os._exit(0)", r"ended the process \(os\._exit\(0\)\), expected that it returns"),
        ("sys.exit(0)", r"ended the process \(sys\.exit\(0\)\), expected that it returns"),
        ("sys.stdout.close()", "closed sys.stdout, expected that it stays open"),
    ],
)
@pytest.mark.parametrize("function", ["parse", "files"])
def test_a_loader_that_ends_or_spoils_the_process_is_refused(lab, monkeypatch, line, said, function: str) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    mine = f"import os, sys\ndef mine(*given):\n    {line}\nMINE = replace(GOOD, {function}=mine)"
    with staying(), pytest.raises(UserCodeError, match=rf"{function}\(\).* {said} \(.*\.py, line \d+, in mine\)"):
        load_dataset(lab(mine))


def test_a_sound_loader_is_loaded(lab) -> None:
    dataset = load_dataset(lab())
    assert np.bincount(dataset.labels[dataset.labels >= 0]).tolist() == [1600] * 3


def test_nobody_is_told_to_fetch_what_cannot_be_fetched(lab, monkeypatch, tmp_path: Path) -> None:
    path = lab()
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"not found.*does not exist.*set RELIEF_DATA") as caught:
        load_dataset(path)
    assert "data fetch" not in str(caught.value)


def test_files_of_another_dataset_with_the_same_names_are_left_alone(lab, monkeypatch, tmp_path: Path) -> None:
    path, root = lab(), tmp_path / "many"
    monkeypatch.setenv("RELIEF_DATA", str(root))
    write_people(root / "another", range(1, 3), offset=1)
    partly = r"no folder holds all of its 4 files.*another \(2 of 4 files\); missing: person3.npy, person4.npy. "
    with pytest.raises(UserError, match=partly):
        load_dataset(path)
    write_people(root / "mine")
    alone = load_dataset(path, tmp_path / "lab")
    assert locate(get_loader(path)).only == tuple(f"mine/person{n}.npy" for n in range(1, 5))
    np.testing.assert_array_equal(load_dataset(path).signal(), alone.signal())
    write_people(root / "another", offset=1)
    with pytest.raises(UserError, match=r"several folders hold all of its 4 files.*another \(4 of 4.*mine \(4 of 4"):
        load_dataset(path)


def test_files_at_the_root_are_told_from_those_below(lab, monkeypatch, tmp_path: Path) -> None:
    path, root = lab(), tmp_path / "flat"
    monkeypatch.setenv("RELIEF_DATA", str(root))
    write_people(root)
    write_people(root / "zzz", range(2, 4), offset=1)
    np.testing.assert_array_equal(load_dataset(path).signal(), load_dataset(path, tmp_path / "lab").signal())


def test_a_marker_of_another_dataset_does_not_count(lab, monkeypatch, tmp_path: Path) -> None:
    path, root = lab(), tmp_path / "both"
    monkeypatch.setenv("RELIEF_DATA", str(root))
    write_people(root / "mine")
    (root / "other_SYNTHETIC").mkdir()
    (root / "other_SYNTHETIC" / "SYNTHETIC.json").write_text("{}")
    assert not locate(get_loader(path)).synthetic
    (root / "mine" / "SYNTHETIC.json").write_text("{}")
    assert locate(get_loader(path)).synthetic


def test_files_below_the_root_are_not_copied_there_again(lab, monkeypatch, tmp_path: Path) -> None:
    path = lab()
    with pytest.raises(UserError, match=r"lies below .* already"):
        import_from(path, tmp_path / "lab")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "elsewhere"))
    assert import_from(path, tmp_path / "lab")["verification"]["ok"]
