"""A data set out of arrays: what is made of rows and of windows, one name for equal arrays, and what is refused."""

import shutil

import numpy as np
import pytest
import torch

import relief_ray as rr
from relief_ray.conformance.datasets import check_loader
from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import load_dataset, open_dataset
from relief_ray.data.partition import split_windows
from relief_ray.data.registry import get_loader
from relief_ray.plugins.load import modules_of
from relief_ray.support.errors import UserError

SENSORS = {"gyro": [3, 4], "acc": slice(0, 3)}
RATE_HZ, WINDOW = 10, 8


def rows(num_people=3, seconds=12):
    """Two recordings a person of three classes and a pause (0), and a column that no sensor names."""
    one = np.repeat([1, 0, 2, 5], [seconds * RATE_HZ, 16, seconds * RATE_HZ, seconds * RATE_HZ])
    person, trial, label = (a.ravel() for a in np.meshgrid(np.arange(num_people) + 4, [1, 2], one, indexing="ij"))
    return {
        "signals": np.random.default_rng(0).normal(size=(len(label), 6)),
        "labels": label, "subject": person, "recording": trial,
        "rate_hz": RATE_HZ, "sensors": SENSORS, "null": 0, "window_s": WINDOW / RATE_HZ,
    }  # fmt: skip


def cut(**words):
    """The same as windows of eight rows."""
    given = rows(**words)
    given["signals"] = given["signals"].reshape(-1, WINDOW, 6).transpose(0, 2, 1)
    return {**given, **{k: given[k][::WINDOW] for k in ("labels", "subject", "recording")}, "window_s": None}


def test_rows_become_a_loader_that_the_name_finds():
    given = rows()
    made = rr.dataset("walks", **given)
    spec = made.spec
    assert spec.modalities == (("gyro", 2), ("acc", 3)) and spec.classes == ("1", "2", "5") and spec.title == "walks"
    assert (spec.subjects, spec.window, spec.null_labels, spec.cut) == ((4, 5, 6), WINDOW, (0,), False)
    assert get_loader(spec.name) == made and not modules_of([spec.name]), "no code belongs to it"
    data = load_dataset(spec.name)
    assert np.array_equal(data.signal(), given["signals"][:, [3, 4, 0, 1, 2]].astype(np.float32))
    # A bout per label and recording: 120, 16, 120 and 120 rows, twice a person.
    assert data.bouts[:5].tolist() == [[0, 0, 120], [0, 120, 136], [0, 136, 256], [0, 256, 376], [0, 376, 496]]
    assert data.labels[[0, 125, 140, 300]].tolist() == [0, -1, 1, 2]


def test_equal_arrays_have_one_name_and_one_folder_and_other_arrays_another():
    names = [rr.dataset("walks", **given).spec.name for given in (rows(), rows(), {**rows(), "rate_hz": 20})]
    assert names[0] == names[1] != names[2]


def test_seconds_are_one_number_whatever_its_type():
    given = [1, 1.0, np.float32(1), np.int64(1)]
    names = {rr.dataset("walks", **{**rows(), "window_s": seconds}).spec.name for seconds in given}
    assert names == {rr.dataset("walks", **{**rows(), "window_s": 1.0}, synthetic=np.bool_(False)).spec.name}


def test_a_sensor_that_is_nan_in_all_rows_of_a_person_is_one_that_they_lack():
    given = rows()
    given["signals"][given["subject"] == 5, 3:5] = np.nan
    spec = rr.dataset("partly", **given).spec
    assert spec.lacks == {5: ("gyro",)} and spec.sensors_of(5) == ("acc",)
    given["signals"][7, 0] = np.nan
    with pytest.raises(UserError, match=r"found 1 values that are NaN.* row 7, column 0 \(acc of 4\).* a sensor that"):
        rr.dataset("partly", **given)


def test_rows_of_a_person_that_do_not_follow_each_other_are_two_bouts():
    given = rows(num_people=2)
    order = np.concatenate([np.arange(60), np.arange(752, 812), np.arange(60, 752), np.arange(812, 1504)])
    mixed = {k: given[k][order] for k in ("signals", "labels", "subject", "recording")}
    bouts = load_dataset(rr.dataset("mixed", **{**given, **mixed}).spec.name).bouts
    assert bouts[:2].tolist() == [[0, 0, 60], [0, 60, 120]]


def test_texts_name_classes_and_people():
    given = rows()
    words = np.array(["none", "walk", "run", "", "", "climb"])[given["labels"]]
    made = rr.dataset("texts", **{**given, "labels": words, "subject": given["subject"].astype(str), "null": ["none"]})
    assert made.spec.classes == ("climb", "run", "walk") and made.spec.subjects == (1, 2, 3)
    assert load_dataset(made.spec.name).facts["2"] == {"person": "5"}


def test_windows_that_were_cut_before_are_taken_as_they_are():
    """Fifteen windows a bout: test 3, validation 2, one left out before each; none lies across two windows."""
    given = cut()
    config = DataConfig(name=rr.dataset("cut", **given).spec.name, stride_s=5.0)
    assert config.stride_s == 0.8 and config.spec().window == WINDOW
    data = open_dataset(config)
    split = split_windows(data, config, 3)
    starts = np.concatenate([t[:, 0] for t in (*split.train, *split.validation, split.test)])
    assert not (starts % WINDOW).any() and len(set(starts.tolist())) == len(starts)
    first_bout = [[t[t[:, 0] < 120, 0] // WINDOW for t in part] for part in (split.train, split.validation)]
    assert first_bout[0][0].tolist() == list(range(8)) and first_bout[1][0].tolist() == [9, 10]
    assert (split.test[:3, 0] // WINDOW).tolist() == [12, 13, 14]
    assert np.array_equal(data.signal()[8:16, 2:], given["signals"][1, :3].T.astype(np.float32))
    with pytest.raises(ValueError, match=r"were cut before, to .* leave the key out"):
        DataConfig(name=config.name, window_s=1.6)


@pytest.mark.ci
@pytest.mark.parametrize("make", [rows, cut])
def test_it_keeps_the_rules_of_a_data_set(make):
    made = rr.dataset("rules", **make(), synthetic=True)
    values = {"stride_s": 0.8}
    assert {v.rule: v.found for v in check_loader(made, values) if v.status != "kept"} == {}
    assert load_dataset(made.spec.name).origin == "SYNTHETIC"


def test_arrays_that_a_file_makes_a_data_set_of_go_by_their_content(write, tmp_path):
    """The file may read them from anywhere, as its data set is known by their digest and not by the file's name."""
    arrays = {key: value for key, value in rows().items() if isinstance(value, np.ndarray)}
    others = {key: value for key, value in rows().items() if key not in arrays}
    np.savez(tmp_path / "own.npz", **arrays)
    module = write(
        "import numpy as np\nimport relief_ray as rr\n"
        f"arrays = dict(np.load({str(tmp_path / 'own.npz')!r}))\n"
        f"PEOPLE = rr.dataset('mine', **arrays, **{others!r})"
    )
    config = DataConfig(name=f"{module}:PEOPLE")
    assert config.name == rr.dataset("mine", **rows()).spec.name
    assert open_dataset(config).spec.name == config.name


def test_a_missing_folder_is_answered_with_what_is_there_and_what_to_do():
    name = rr.dataset("gone", **rows()).spec.name
    shutil.rmtree(get_loader(name).spec.packaged)
    with pytest.raises(ValueError, match=r"found no whole folder .*run the lines with rr.dataset\('gone', ..\)"):
        DataConfig(name=name)
    with pytest.raises(ValueError, match="no such name"):
        DataConfig(name="arrays:../arrays/gone@1")
    assert rr.dataset("gone", **rows()).spec.name == name == DataConfig(name=name).name


def nan_at(values, place):
    values = np.array(values, float)
    values[place] = np.nan
    return values


def overlapping():
    """Windows every 2 of 8 rows."""
    given = cut()
    every_2 = np.lib.stride_tricks.sliding_window_view(rows()["signals"], WINDOW, axis=0)[::2][: len(given["labels"])]
    return {**given, "signals": every_2}


REFUSED = {
    "name": ({"name": "a b"}, "name: found 'a b', expected letters, digits"),
    "empty": ({"signals": np.zeros((0, 6))}, r"signals: found the shape \(0, 6\), expected rows"),
    "one column": ({"signals": np.zeros(9)}, r"signals: found the shape \(9,\), expected rows \(T, channels\)"),
    "complex": ({"signals": np.zeros((9, 6), complex)}, "signals: found values of the type complex128"),
    "ragged": ({"signals": [[1.0], [1.0, 2.0]]}, "signals: found parts of unlike shapes"),
    "a gap": ({"signals": nan_at(rows()["signals"], (7, 4))}, r"NaN.* in row 7, column 4 \(gyro of 4\)"),
    "short labels": ({"labels": [1, 2]}, r"labels: found the shape \(2,\), expected \(2256,\), as long as signals"),
    "one subject for all": ({"subject": 3}, r"subject: found the shape \(\), expected \(2256,\)"),
    "a short recording": ({"recording": [1]}, r"recording: found the shape \(1,\)"),
    "NaN labels": ({"labels": nan_at(rows()["labels"], 5)}, "labels: found 1 NaN, the first in row 5.*leave these"),
    "float labels": ({"labels": rows()["labels"] * 1.0}, r"type float64, expected whole numbers or texts; .*astype"),
    "masked signals": ({"signals": np.ma.masked_less(rows()["signals"], -3.0)}, "signals: found a masked array, whose"),
    "masked labels": ({"labels": np.ma.masked_equal(rows()["labels"], 5)}, "labels: found a masked array.*filled"),
    "a masked person": ({"subject": np.ma.masked_equal(rows()["subject"], 5)}, "subject: found a masked array"),
    "a null of another type": ({"null": "0"}, "null: found '0', expected a whole number, as labels are"),
    "a set of nulls": ({"null": {0}}, r"null: found \{0\}, expected a whole number"),
    "a null between": ({"null": 0.5}, "null: found 0.5, expected a whole number"),
    "true as null": ({"null": True}, "null: found True, expected a whole number"),
    "a null of no row": ({"null": [0, 9]}, r"null: found \[9\], which no row has, expected some of \[0, 1, 2, 5\]"),
    "a number as null of texts": ({"labels": rows()["labels"].astype(str)}, "null: found 0, expected a text, as"),
    "NaN seconds": ({"window_s": float("nan")}, "window_s: found nan, expected seconds above 0"),
    "a text as seconds": ({"window_s": "2"}, "window_s: found '2', expected seconds above 0"),
    "true as seconds": ({"window_s": True}, "window_s: found True, expected seconds above 0"),
    "seconds beyond a float": ({"window_s": 10**400}, "window_s: found 10000.*, expected seconds above 0"),
    "a list of lists of columns": ({"sensors": {"acc": [[0, 1]]}}, r"sensors\['acc'\]: found \[\[0, 1\]\], expected"),
    "no columns at all": ({"sensors": {"acc": None}}, r"sensors\['acc'\]: found None, expected a slice or a list"),
    "true as columns": ({"sensors": {"acc": True}}, r"sensors\['acc'\]: found True, expected a slice or a list"),
    "readings that it rounds": ({"signals": np.ones((2256, 6), int) + 2**40}, "signals: found whole numbers up to"),
    "a gradient": ({"signals": torch.ones(2256, 6, requires_grad=True)}, r"signals: found Tensor .*detach\(\)"),
    "half a float": ({"signals": torch.ones(2256, 6, dtype=torch.bfloat16)}, r"signals: found Tensor .*float\(\)"),
    "labels that lack": ({"labels": [None, *rows()["labels"][1:]]}, "labels: found values of the type object"),
    "negative labels": ({"labels": rows()["labels"] - 1}, r"labels: found \[-1\], expected .*; null=-1 where that"),
    "one class": ({"null": [0, 1, 2]}, r"labels: found \[5\] alone, expected at least two"),
    "one person": ({"subject": np.ones(2256, int)}, r"subject: found \[1\] alone, expected at least two"),
    "a rate": ({"rate_hz": 12.5}, "rate_hz: found 12.5, expected a whole number"),
    "no sensors": ({"sensors": {}}, "sensors: found {}, expected columns by the name"),
    "an unknown column": ({"sensors": {"acc": [0, 6]}}, r"sensors\['acc'\]: found \[0, 6\], .*columns 0 to 5"),
    "a slice too long": ({"sensors": {"acc": slice(3, 9)}}, r"sensors\['acc'\]: found slice\(3, 9, None\)"),
    "no columns": ({"sensors": {"acc": []}}, "expected columns that signals have, at least one"),
    "a shared column": ({"sensors": {**SENSORS, "mag": [2]}}, r"sensors\['mag'\]: found column 2, which 'acc' has"),
    "a window": ({"window_s": 0.1}, r"rr.dataset\('mine'\): 1 error\n.*windows of 0.1 s at 10 Hz hold 1 samples"),
    "a window of cut ones": ({**cut(), "window_s": 2.0}, "window_s: found 2.0, expected none, as these windows"),
    "overlap": (overlapping(), "windows every 2 of 8 samples.*expected windows that overlap by half at most"),
    "a sensor's name": ({"sensors": {"acc/x": [0]}}, r"rr.dataset\('mine'\): 1 error\n.*'acc/x'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    changed, said = REFUSED[case]
    with pytest.raises(UserError, match=said):
        rr.dataset(**{"name": "mine", **rows(), **changed})
