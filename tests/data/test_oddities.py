"""What is odd about a dataset is said by `describe`, on the screen of a run, in its record and in Python."""

import warnings
from functools import partial

import numpy as np
import pytest

import relief_ray as rr
from relief_ray.data import DataConfig, Dataset, open_dataset
from relief_ray.data.describe import describe, null_rows
from relief_ray.data.federated_data import federate
from relief_ray.records.run_folder import read_run
from relief_ray.report.runs import load_runs
from relief_ray.support.errors import UserError
from tests.loaders import ODD, ODDITIES, write_lab

SETTINGS = {"data.stride_s": 5.0, "fleet.types": {t: {"sensors": "all"} for t in "ABC"}, "training.epochs": 1}
SMALL = {"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


def described(name: str, **values: object) -> list[str]:
    config = DataConfig.model_validate({"name": name, "stride_s": 5.0, **values})
    return describe(open_dataset(config), config)["warnings"]


def test_the_shipped_data_have_one_oddity(mini: Dataset) -> None:
    """Files of two people were filled up with zeros, as in the whole dataset."""
    assert described("dsa_mini") == [
        "subjects 1 and 6: acc, gyro and mag are 0 in all channels in 1200 rows: the published files are so, and are "
        "used as they are (docs/data.md)"
    ]


def test_each_oddity_is_a_sentence(lab) -> None:
    path = lab(ODD)
    assert described(path) == list(ODDITIES)


def test_declared_null_rows_are_a_fact_and_no_warning(lab, mini: Dataset) -> None:
    """Rows of ``null_labels`` inside or outside of bouts; rows with a class that lie in no bout are still odd."""
    for body in ("MINE = GOOD", ODD):
        dataset = open_dataset(DataConfig(name=lab(body)))
        assert null_rows(dataset).startswith("400 of 5,200 rows have code 0, no activity (null_labels)")
        assert "list it in labels and take it out of null_labels" in null_rows(dataset)
        assert not [text for text in described(dataset.spec.name) if "null_labels" in text or "no bout" in text]
    cut = lab(
        "def mine(*given):\n"
        "    made = parse(*given)\n"
        "    return replace(made, bouts=made.bouts - [0, 10])\n"
        "MINE = replace(GOOD, parse=mine)"
    )
    assert "120 of 5200 rows have a class but lie in no bout" in described(cut)
    assert null_rows(mini) == ""


def test_classes_without_windows_and_clients_with_one_class(lab) -> None:
    """Four people in 24 pieces: most hold a single activity."""
    said = described(lab(), stride_s=1.0, num_clients=24, max_windows_per_client=1)
    assert "24 of 24 clients have training windows of one class only" in said
    drawn = described(lab(), partition="dirichlet", dirichlet_alpha=0.01, min_partition_size=1, num_clients=3)
    assert not any("one class only" in text for text in drawn)
    held_out = described(lab(ODD), split="held_out_subject", fold=1)
    assert "no training window of rest" in held_out


def study(path: str, **more: object) -> rr.Study:
    return rr.run(data=path, strategies=["fedavg", "central"], rounds=1, backbone=SMALL, set=SETTINGS, **more)


@pytest.mark.ci
def test_python_says_it_once_and_the_records_keep_it(lab, run_cache, tmp_path, capfd) -> None:
    path = lab(ODD)
    done = study(path, out=tmp_path / "runs")
    notes = tuple(f"data {path}: {text}" for text in ODDITIES)
    assert done.data_warnings == notes
    shown = [line for line in capfd.readouterr().err.splitlines() if line.startswith("WARNING: data ")]
    assert shown == [f"WARNING: {note}" for note in notes]
    assert {read_run(run.folder).data_warnings for run in done.runs} == {ODDITIES}
    (loaded, _) = load_runs([tmp_path / "runs"])
    assert loaded.warnings[: len(notes)] == notes


@pytest.mark.ci
def test_a_quiet_study_warns_at_the_users_line(lab, run_cache) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = study(lab(ODD), quiet=True)
    mine = [w for w in caught if str(w.message).startswith("data own_")]
    assert tuple(str(w.message) for w in mine) == done.data_warnings
    assert {w.filename for w in mine} == {__file__}


LOST = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    filled = np.zeros(made.signal.shape, bool)
    if subject in WHO:
        filled[ROWS, COLUMNS] = True
        made.signal[filled] = 0.5
    return replace(made, filled=filled)
SPEC = replace(SPEC, max_nan_share=0.5)
MINE = replace(GOOD, parse=mine, spec=SPEC)
"""


@pytest.mark.parametrize(
    ("where", "said", "left_out"),
    [
        # Rows 0 to 399 are walking, 450 to 849 clapping, 900 to 1299 pointing; a window has 51 rows.
        (
            "WHO, ROWS, COLUMNS = (2,), slice(450, 1217), slice(0, 2)",
            "subject 2: wrist: 59.8% of a channel's readings were missing and filled in, the longest gap within a bout "
            "lasts 40.0 s",
            {"2"},
        ),
        (
            "WHO, ROWS, COLUMNS = (1, 3), slice(0, 180), 2",
            "subjects 1 and 3: hip: 15.0% of a channel's readings were missing and filled in, the longest gap within a "
            "bout lasts 18.0 s",
            {"1", "3"},
        ),
        (
            "WHO, ROWS, COLUMNS = (4,), slice(0, None, 5), 3",
            "subject 4: ankle: 20.0% of a channel's readings were missing and filled in, the longest gap within a bout "
            "lasts 0.1 s",
            set(),
        ),
        ("WHO, ROWS, COLUMNS = (4,), slice(0, 25), 3", "", set()),
    ],
)
def test_gaps_are_told_by_person_and_sensor_and_their_windows_left_out(lab, where, said, left_out) -> None:
    path = lab(where + LOST)
    config = DataConfig(name=path)
    dataset = open_dataset(config)
    told = describe(dataset, config)
    assert [line for line in told["warnings"] if "filled in, " in line] == ([said] if said else [])
    assert {who: number for who, number in told["coverage"].get("left_out", {}).items()}.keys() == left_out
    whole = config.model_copy(update={"max_filled": 1.0})
    clients = federate(dataset, config, [dataset.spec.names] * 4).clients
    for client, (kept, all_) in enumerate(
        zip(clients, federate(dataset, whole, [dataset.spec.names] * 4).clients, strict=True)
    ):
        lost = np.array([dataset.filled[start : start + 51].mean() for start in all_.starts])
        assert kept.starts.tolist() == all_.starts[lost <= 0.5].tolist()
        assert (len(kept) < len(all_)) == (str(client + 1) in left_out)


def test_a_person_of_whom_gaps_leave_no_window_is_named(lab) -> None:
    """A run is refused by person and setting; the description still shows the sensor."""
    path = lab("WHO, ROWS, COLUMNS = (2,), slice(None), 2" + LOST)
    config = DataConfig(name=path)
    dataset = open_dataset(config)
    with pytest.raises(UserError, match=r"1 of 4 clients \(1\) .* \(data.max_filled\): \d+ of subject 2; set data.max"):
        federate(dataset, config, [dataset.spec.names] * 4)
    first, second, *_ = described(path, stride_s=1.0)
    assert first.startswith("a run is refused: 1 of 4 clients (1) have no training window")
    assert "hip of subject 2: column 2 is 0.5 in all its bouts" in second
    assert not [line for line in described(path, subjects=[1, 3, 4]) if "subject 2" in line]


def test_gaps_of_a_lacking_sensor_are_none(lab) -> None:
    path = lab(
        "WHO, ROWS, COLUMNS = (2,), slice(None), 2"
        + LOST
        + 'MINE = replace(MINE, spec=replace(SPEC, lacks={2: ("hip",)}))'
    )
    assert described(path) == ["subject 2 lacks hip: its test windows count, and are read with that missing"]


CHANGED = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    signal, labels, bouts = made.signal, made.labels, made.bouts
    if subject in WHO:
        CHANGE
    return recording(subject, np.column_stack([signal, labels]), bouts=bouts)
MINE = replace(GOOD, parse=mine, spec=replace(SPEC, MORE))
"""


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        # A number for "no reading", within the rules for ranges or without any, in one channel or in all.
        ("signal[::100, 0] = -999", "max_abs=(2000.0, 20.0, 20.0)", "subject 2: wrist is -999 12 times, far from"),
        ("signal[1::50] = 32767", "", "subject 2: ankle is 32767 48 times, far from all its other values"),
        ("signal[5:9, 2] = 1e6", "", "subject 2: hip is 1e+06 4 times, far from"),
        # Rules that `verify` and `conformance` know.
        ("signal[7, 2] = -30", "max_abs=(9.0, 9.0, 9.0)", "subject 2: hip reaches 30, expected at most 9 in absolute"),
        ("labels[:395] = 0; bouts = bouts_of(labels)[1:]", "activity_s=(10.0, 60.0)", "subject 2: wave lasts 0 s, exp"),
        # Another unit, another rate.
        ("signal[:, 2] *= 9.81", "", "subject 2: hip is 9.9 times that of the others: in another unit?"),
        ("signal[:, 3:] /= 1000", "", "subject 2: ankle is 0.000984 times that of the others: in another unit?"),
        ("signal[:, :2] += 30", "", "subject 2: wrist is 39 times that of the others: in another unit?"),
        (
            "signal, labels = signal[::2], labels[::2]; bouts = bouts_of(labels)[[0, 2, 4]]",
            "",
            "subject 2: every activity lasts about 0.5 times as long as with the others: recorded at another rate?",
        ),
        (
            "signal, labels = np.repeat(signal, 3, 0), np.repeat(labels, 3); bouts = bouts_of(labels)[[0, 2, 4]]",
            "",
            "subject 2: hip changes 0.554 times as fast: at another rate?",
        ),
        # Two recordings in one bout; interpolated without saying so.
        ("signal[200:, :2] += 80", "", "subject 2: wrist leaps within a bout, to row 200, "),
        ("signal[1000, 2] = 99", "", "subject 2: hip leaps within a bout, to row "),
        # Many short recordings: a leap in a hundred rows.
        ("signal[np.arange(1300) // 120 % 2 == 1, :2] += 80", "", "subject 2: wrist leaps within a bout, to row "),
        ("signal[500:600, 2] = np.linspace(-1, 2, 100)", "", "subject 2: hip runs along a straight line for 9."),
        # Several numbers for "no reading".
        (
            "signal[::100, 0] = -999; signal[1::100, 0] = 999; signal[2::50, 0] = -998",
            "",
            "subject 2: wrist is -999, -99",
        ),
        ("signal[::99, 2] = 999; signal[1::99, 2] = 32767", "", "subject 2: hip is 999 and 32767 "),
        ("signal[::99, 3] = 99; signal[1::99, 4] = -77", "", "subject 2: ankle is -77 and 99 "),
        # Dead for a part of the time: held, zero, held with a jitter.
        ("signal[100:390, :2] = signal[100, :2]", "", "subject 2: wrist has a channel that does not change for a"),
        (
            "signal[100:390, 2] = 0",
            "",
            "subject 2: hip has a channel that does not change for a window or longer, in 2",
        ),
        (
            "signal[450:600, 3] = 1 + 1e-6 * (np.arange(150) % 2)",
            "",
            "subject 2: ankle has a channel that does not chan",
        ),
        # Zeros for "no reading": a stretch, single rows, of two sensors at once; a sensor at rest in between is none.
        ("signal[100:200, :2] = 0", "", "subject 2: wrist is 0 in all channels in 100 rows: if that stands for no"),
        ("signal[50::100, 3:] = 0", "", "subject 2: ankle is 0 in all channels in 12 rows"),
        ("signal[60:180] = 0", "", "subject 2: wrist and ankle are 0 in all channels in 120 rows"),
        # Recorded at a lower rate.
        ("signal = signal[np.arange(len(signal)) // 2 * 2]", "", "subject 2: wrist repeats its last reading in 50% of"),
        (
            "signal[:, 3:] = signal[np.arange(len(signal)) // 5 * 5, 3:]",
            "",
            "subject 2: ankle repeats its last reading in 8",
        ),
        # What float32 cannot hold.
        ("signal = 1e9 + 30 * signal.astype(np.float64)", "", "subject 2: wrist loses "),
        ("signal = np.round(2**31 + 60 * signal.astype(float)).astype(np.int64)", "", "subject 2: hip loses "),
        ("signal = np.float32(3e6) + signal", "", "subject 2: ankle loses "),
        # Cut off; turned round, other axes, another unit with an offset.
        ("signal[:, 0] = np.clip(signal[:, 0], -0.5, 0.5)", "", "subject 2: wrist is at an end of its range in "),
        ("signal[:, 2] = np.minimum(signal[:, 2], 1.2)", "", "subject 2: hip is at an end of its range in "),
        ("signal[:, 3:] = np.clip(signal[:, 3:], -9, 0.9)", "", "subject 2: ankle is at an end of its range in "),
    ],
)
def test_what_is_odd_about_one_person_is_told(lab, change, more, said) -> None:
    body = CHANGED.replace("CHANGE", change).replace("MORE", more)
    assert [line for line in described(lab("WHO = (2,)" + body)) if line.startswith(said)]
    assert not any(said[:20] in line for line in described(lab("WHO = ()" + body)))


@pytest.mark.parametrize(
    ("usual", "change", "said"),
    [
        ("9.81 + signal[:, 0]", "signal[:, 0] *= -1", "wrist has a mean of -9.8"),
        ("9.81 + signal[:, 0]", "signal[:, :2] = signal[:, [1, 0]]", "wrist has a mean of -0.00"),
        ("36 + 0.3 * signal[:, 0]", "signal[:, 0] = signal[:, 0] * 1.8 + 32", "wrist has a mean of 96.8"),
    ],
)
def test_a_person_whose_channels_lie_elsewhere_is_told(lab, usual, change, said) -> None:
    body = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    signal = made.signal
    signal[:, 0] = USUAL
    if subject in WHO:
        CHANGE
    return made
MINE = replace(GOOD, parse=mine)
""".replace("USUAL", usual).replace("CHANGE", change)
    (line,) = [line for line in described(lab("WHO = (3,)" + body)) if "mean of" in line]
    assert line.startswith(f"subject 3: {said}") and "turned round, other axes, or another unit?" in line
    assert not [line for line in described(lab("WHO = ()" + body)) if "mean of" in line]


def test_a_person_whose_sensor_hardly_moves_is_told(lab) -> None:
    """A device on the table, beside gravity: its level is that of the others."""
    body = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    made.signal[:, :2] *= 0.02 if subject in WHO else 1.0
    made.signal[:, :2] += 9.81
    return made
MINE = replace(GOOD, parse=mine)
"""
    (line,) = [line for line in described(lab("WHO = (3,)" + body)) if "hardly moves" in line]
    assert line == "subject 3: wrist hardly moves, 0.02 times as much as the others': off?"
    assert not [line for line in described(lab("WHO = ()" + body)) if "hardly moves" in line]


def test_zeros_of_a_coarse_sensor_at_rest_are_readings(lab) -> None:
    """It comes to 0 in all channels by its usual steps."""
    change = "signal[:] = np.round(2 * signal * np.sin(np.arange(len(signal)) / 40)[:, None] ** 2)"
    path = lab("WHO = (2,)" + CHANGED.replace("CHANGE", change).replace("MORE", ""))
    config = DataConfig(name=path)
    dataset = open_dataset(config)
    rows = dataset.signal()[slice(*dataset.bouts_of(1)[0]), 3:]
    assert (rows == 0).all(axis=1).sum() > 20
    assert not [line for line in described(path) if "0 in all channels" in line]


@pytest.mark.parametrize(
    ("who", "people", "factor"), [((2,), (1, 2), 9.81), ((2, 4), (1, 2, 3, 4), 9.81), ((1,), (1, 2), 57.3)]
)
def test_other_units_of_two_people_and_of_two_groups_are_told(lab, who, people, factor) -> None:
    change = f"signal[:, 2] *= {factor}"
    body = CHANGED.replace("CHANGE", change).replace("MORE", f"subjects={people}")
    said = [line for line in described(lab(f"WHO = {who}" + body)) if "in another unit?" in line]
    assert [int(line.split()[1].rstrip(":")) for line in said] == list(who)
    assert not [line for line in described(lab("WHO = ()" + body)) if "in another unit?" in line]


def test_copies_of_test_rows_in_training_are_told(lab) -> None:
    """A person who is another but for one row, and ends of bouts that the files repeat."""
    twin = """
def mine(spec, members, path, subject):
    table = read(spec, members, path, 1 if subject == 4 else subject)
    table[0, 0] += subject
    return recording(subject, table)
MINE = replace(GOOD, parse=mine)
"""
    whole = """
def mine(spec, members, path, subject):
    table = read(spec, members, path, subject)
    return recording(subject, np.concatenate([table, table[320:400], table[:50]]))
MINE = replace(GOOD, parse=mine)
"""
    for body, settings in ((twin, {"split": "held_out_subject"}), (whole, {}), (whole, {"stride_s": 1.0})):
        (line,) = [line for line in described(lab(body), **settings) if "leaks into training" in line]
        assert "bit by bit" in line and "conformance" in line
    assert not [line for line in described(lab()) if "leaks" in line]
    assert not [line for line in described(lab(whole), split="random_leaky") if "leaks" in line]


def test_two_recordings_that_are_passed_to_bouts_of_are_two_bouts(lab) -> None:
    change = "signal[200:, :2] += 80; bouts = bouts_of(labels, np.arange(len(labels)) >= 200)"
    path = lab("WHO = (2,)" + CHANGED.replace("CHANGE", change).replace("MORE", ""))
    assert not any("leaps" in line for line in described(path))
    config = DataConfig(name=path)
    people = {row["subject"]: row for row in describe(open_dataset(config), config)["people"]}
    assert [(row["bouts"], row["shortest_s"], row["longest_s"]) for row in people.values()] == [
        (3, 40.0, 40.0),
        (6, 5.0, 40.0),
        (3, 40.0, 40.0),
        (3, 40.0, 40.0),
    ]


def test_windows_of_two_activities_are_told(lab) -> None:
    """A bout that covers activities of 2 s and of 30 s; windows take 5.12 s."""
    for length, share in ((20, "100%"), (60, "83%"), (300, "")):
        change = f"labels[:] = np.arange(len(labels)) // {length} % 3 + 1; bouts = np.array([[0, len(labels)]])"
        said = described(
            lab("WHO = (1, 2, 3, 4)" + CHANGED.replace("CHANGE", change).replace("MORE", "")), stride_s=1.0
        )
        mixed = [line for line in said if "hold rows of two activities" in line]
        assert len(mixed) == bool(share) and all(f"subjects 1, 2, 3 and 4: up to {share} of" in line for line in mixed)


def test_people_on_whom_nobody_is_tested_are_told(lab) -> None:
    """One whose bouts are too short for a test part; of three held-out subjects the last is a fold of its own."""
    path = lab(
        "WHO = (3,)" + CHANGED.replace("CHANGE", "bouts = bouts_of(labels, np.arange(1300) // 70)").replace("MORE", "")
    )
    assert "no test window of subject 3" in described(path, stride_s=1.0)
    told = described(lab(), split="held_out_subject", subjects=[1, 2, 4], fold=1)
    assert not any("no test" in line for line in told)


def test_many_sentences_of_a_kind_are_cut_short(lab) -> None:
    """Twelve sensors of four people with gaps that differ: twelve sentences, of which eight are said."""
    body = """
def mine(*given):
    made = parse(*given)
    rows, channels = np.indices(made.signal.shape)
    return replace(made, filled=rows % 100 < 6 + channels + given[3])
MINE = replace(GOOD, parse=mine)
"""
    told = [line for line in described(lab(body)) if "filled in, " in line or "more like the last" in line]
    assert len(told) == 9 and told[-1] == "and 4 more like the last: see `relief-ray data describe`"


@pytest.mark.ci
@pytest.mark.parametrize("name", ["mhealth", "pamap2"])
def test_synthetic_files_raise_no_false_warning(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activities of these short files last a few seconds: that is said, and that some have no window."""
    monkeypatch.setenv("RELIEF_DATA", str(request.getfixturevalue(f"{name}_root")))
    config = DataConfig(name=name, window_s=1.28)
    said = describe(open_dataset(config), config)["warnings"]
    assert not [line for line in said if line.startswith(("subject", "windows", "a run")) and " lasts " not in line]


def test_faulty_readings_of_dsa_are_told(dsa_zip, monkeypatch) -> None:
    """A magnetometer's axis changes its sign for one row; two people's files were filled up with zeros."""
    monkeypatch.setenv("RELIEF_DATA", str(dsa_zip.parent))
    config = DataConfig(name="dsa")
    leap, *zeros = describe(open_dataset(config), config)["warnings"]
    assert leap.startswith("subject 5: mag leaps within a bout, to row 81201, 14 times as far")
    off = [
        f"subject {who}: acc, gyro and mag are 0 in all channels in {n} rows: if" for who, n in ((1, 3000), (6, 3950))
    ]
    assert [line[: len(start)] for line, start in zip(zeros, off, strict=True)] == off
