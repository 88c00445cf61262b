"""Frames of finished cells, and paired differences: the same figures from run folders and from the small form."""

import dataclasses

import pytest

from relief_ray.records.committed import condense, write_committed
from relief_ray.report import frames
from relief_ray.report.comparison import compare_runs
from relief_ray.report.frames import brief_settings, gain, gain_frame, pairs_of, read_cells
from relief_ray.report.runs import expanded
from relief_ray.report.statistics import paired
from relief_ray.support.errors import UserError


@pytest.fixture(scope="module")
def cells_of(inventory_of):
    return lambda runs: frames.cells_of(inventory_of(runs))


def small(runs):
    """The runs in their committed form."""
    return [expanded(run.where, condense(run.run, run.rounds)) for run in runs]


def run_gains(cells, label):
    found = pairs_of(cells, label, "fedavg", "f1")
    return dict(zip(found["seed"], found["first"] - found["second"], strict=True))


def rows_of(cells):
    return cells.frame.to_dict("records")


def test_a_gain_is_the_one_that_the_comparison_prints(family, cells_of):
    rows = {row.label: row.f1 for row in compare_runs(family).rows}
    cells = cells_of(small(family))
    assert {label: gain(cells, label) for label in rows if label != "fedavg"} == {
        label: gains for label, gains in rows.items() if label != "fedavg"
    }
    assert gain(cells, "v1").mean == pytest.approx(10.0)


def test_only_shared_replicates_count(make, cells_of):
    scores = {("fedavg", 0): 0.5, ("fedavg", 1): 0.6, ("v1", 0): 0.6, ("v1", 1): 0.65, ("v1", 2): 0.1}
    cells = cells_of([make(method, seed=seed, scores=(0.1, score)) for (method, seed), score in scores.items()])
    assert run_gains(cells, "v1") == pytest.approx({0: 10.0, 1: 5.0})
    assert gain(cells, "v1") == paired(list(run_gains(cells, "v1").values()))


def test_methods_without_a_shared_replicate_have_no_gain(make, cells_of):
    assert gain(cells_of([make("fedavg", seed=0), make("v1", seed=1)]), "v1") is None


def test_a_personalised_method_is_compared_by_what_its_clients_reach(make, cells_of):
    cells = cells_of([make("fedavg", scores=(0.1, 0.5)), make("local", scores=(0.1, 0.4), personalised=True)])
    assert run_gains(cells, "local") == pytest.approx({0: -10.0})
    both = cells_of([make("fedavg", scores=(0.1, 0.5)), make("pilot", scores=(0.7, 0.8), own=(0.1, 0.2))])
    assert run_gains(both, "pilot") == pytest.approx({0: -30.0}) and rows_of(both)[1]["f1_percent"] == 20.0


def test_the_first_of_two_cells_of_one_replicate_counts(make, cells_of):
    twice = dataclasses.replace(make("v1", scores=(0.1, 0.9)), where="again")
    cells = cells_of([make("fedavg", scores=(0.1, 0.5)), make("v1", scores=(0.1, 0.6)), twice])
    assert run_gains(cells, "v1") == pytest.approx({0: 10.0})


def test_unknown_methods_and_mixed_settings_are_refused(make, cells_of):
    with pytest.raises(UserError, match=r"no finished run of 'reliev' \(did you mean 'relief'\?\); expected"):
        gain(cells_of([make("fedavg"), make("relief")]), "reliev")
    other = dataclasses.replace(make("v1", extra={"rounds": 7}), where="other")
    with pytest.raises(
        UserError, match=r"2 settings hold these methods: .*; name one: --setting TEXT, or choose its cells"
    ):
        gain(cells_of([make("fedavg"), other]), "v1")


def test_a_setting_says_what_varies_and_whether_the_data_are_real(make, cells_of):
    runs = [make("fedavg"), make("v1", extra={"rounds": 7}), make("relief", origin="SYNTHETIC")]
    one, two, three = cells_of(runs).runs["setting"]
    assert "rounds = 2" in one and "rounds = 7" in two and three.startswith("SYNTHETIC data: ")
    assert cells_of(runs[:1]).runs["setting"].item() == "DSA, held-out subjects, Backbone 1 (CNN)"


def test_settings_with_the_same_title_stay_separate(make, cells_of):
    other = make("v1")
    other = dataclasses.replace(other, run=other.run.model_copy(update={"engine": "naive"}))
    assert cells_of([make("fedavg"), other]).runs["setting"].tolist() == [
        "DSA, held-out subjects, Backbone 1 (CNN)",
        "DSA, held-out subjects, Backbone 1 (CNN), setting 2",
    ]


def test_rows_carry_units_and_sums(make, cells_of):
    run = make("relief", scores=(0.5, 0.6), rare={"1": 0.2}, fold=2, seed=1, energy_j=60.0)
    (row,) = rows_of(cells_of([run]))
    assert (row["method"], row["fold"], row["seed"], row["rounds"], row["is_bound"]) == ("relief", 2, 1, 2, False)
    assert (row["f1_percent"], row["f1_rare_percent"], row["energy_j"]) == (60.0, pytest.approx(20.0), 120.0)
    rounds = cells_of([run]).round_frame
    assert rounds[["round", "f1_percent", "time_s"]].to_numpy().tolist() == [[1, 50, 2], [2, 60, 4]]
    assert row["time_s"] == rounds["time_s"].iloc[-1]


def test_cells_are_read_from_results_and_folders(make, put, tmp_path, cells_of):
    runs = [make("fedavg"), make("v1")]
    for r in runs:
        put(r, tmp_path / "grid" / r.where)
    put(make("relief", planned=9), tmp_path / "grid" / "short")
    cells = [(r.where, condense(r.run, r.rounds)) for r in runs]
    kept = write_committed(tmp_path / "small" / "cells.json", "t", cells)
    wanted = [("fedavg", "v1"), gain(cells_of(runs), "v1")]
    for path in (kept, kept.parent, tmp_path / "grid"):
        found = read_cells([path])
        assert [tuple(found.runs["method"]), gain(found, "v1")] == wanted
    assert len(read_cells([kept, tmp_path / "grid"]).runs) == 2, "the same runs"
    put(make("fedavg", seed=7), tmp_path / "more" / runs[0].where)
    more = read_cells([tmp_path / "grid", tmp_path / "more"]).runs.query("method == 'fedavg'")
    assert more[["cell", "seed"]].to_numpy().tolist() == [[runs[0].where, 0], [f"more-{runs[0].where}", 7]]
    with pytest.raises(UserError, match="does not exist"):
        read_cells([tmp_path / "small" / ".." / ".." / "nothing"])


def test_columns_of_the_comparison_are_the_comparisons_own(family, make, cells_of):
    """Speedup, link share and single sensors by hand, and equal to what the report prints."""
    runs = [make("fedavg", scores=(0.4, 0.5)), make("v1", scores=(0.5, 0.6), round_s=1.0, extra={"replicate": 3})]
    rows = {row["method"]: row for row in rows_of(cells_of(runs))}
    assert rows["v1"]["speedup"] == pytest.approx(2.0)  # 2 s of FedAvg's round over 1 s
    assert (rows["v1"]["f1_acc_percent"], rows["v1"]["f1_mag_percent"]) == pytest.approx((30.0, 15.0))
    assert (str(rows["fedavg"]["replicate"]), rows["v1"]["replicate"]) == ("nan", 3)
    stats = {row.label: row.stats for row in compare_runs(family).rows}
    for row in rows_of(cells_of(small(family))):
        printed = stats[row["method"]]
        for name in ("speedup", "link_percent", "f1_acc_percent", "f1_mag_percent"):
            assert row[name] == pytest.approx(printed[name].mean), (row["method"], name)


def test_own_sensors_are_the_clients_own_models_where_they_have_such(make, cells_of):
    (row,) = rows_of(cells_of([make("pilot", scores=(0.7, 0.8), own=(0.1, 0.2))]))
    assert row["f1_own_sensors_percent"] == pytest.approx(20.0)
    (canonical,) = rows_of(cells_of([make("fedavg")]))
    assert str(canonical["f1_own_sensors_percent"]) == "nan", "it was not tested through the clients' sensors"


def test_losses_and_real_seconds_are_those_of_the_run_folder(make, put, tmp_path, cells_of):
    run = make("relief", scores=(0.5, 0.6), rare={"1": 0.2})
    put(run, tmp_path / "grid" / "one")
    rounds = read_cells([tmp_path / "grid"]).round_frame
    assert rounds["loss"].tolist() == [record.loss for record in run.rounds] and rounds["loss"].notna().all()
    assert rounds["wall_s"].tolist() == [0.5, 0.5]
    assert rounds["f1_rare_percent"].tolist() == pytest.approx([20.0, 20.0])
    without = cells_of(small([run])).round_frame
    assert without[["loss", "wall_s"]].isna().all(axis=None) and without["f1_rare_percent"][1] == 20.0


def test_a_gain_of_another_figure(make, cells_of):
    runs = [
        make("fedavg", rare={"1": 0.2}, scores=(0.2, 0.6)),
        make("v1", rare={"1": 0.5}, scores=(0.3, 0.7), round_s=4.0),
    ]
    cells = cells_of(runs)
    assert gain(cells, "v1", figure="f1_rare").mean == pytest.approx(30.0)
    # FedAvg ended after 4 s, at 60 %; v1 had then finished its first round of 4 s, at 30 %.
    assert gain(cells, "v1", figure="f1_at_seconds").mean == pytest.approx(-30.0)
    assert gain(cells, "v1", figure="f1_own_sensors") is None
    (row,) = gain_frame(cells, figure="f1_rare").to_dict("records")
    assert (row["method"], row["mean"], row["pairs"]) == ("v1", pytest.approx(30.0), 1)
    with pytest.raises(UserError, match=r"figure 'f1_rar': unknown \(did you mean 'f1_rare'\?\); expected one of f1, "):
        gain(cells, "v1", figure="f1_rar")


def test_a_frame_begins_with_its_scores_and_says_settings_briefly(make, cells_of):
    runs = [make("fedavg"), make("v1", extra={"rounds": 7}), make("relief")]
    frame, rounds = cells_of(runs).frame, cells_of(runs).round_frame
    assert list(frame.columns[:6]) == ["cell", "method", "fold", "seed", "f1_percent", "f1_rare_percent"]
    assert frame.setting.tolist() == ["rounds = 2", "rounds = 7", "rounds = 2"]
    assert set(rounds.setting) == set(frame.setting) and list(rounds.columns[:4]) == [
        "cell", "method", "round", "f1_percent",
    ]  # fmt: skip
    assert cells_of(runs[:1]).frame.setting.item() == "DSA", "of one setting there is nothing to tell apart"
    assert cells_of([]).frame.setting.tolist() == []


def test_brief_settings_are_different_and_name_what_differs():
    both = ["DSA, A, gap 2, x = 1", "DSA, B, gap 2, x = 3"]
    assert list(brief_settings(both).values()) == ["A, x = 1", "B, x = 3"]
    assert list(brief_settings(["DSA, A", "DSA, A, setting 2"]).values()) == ["DSA", "setting 2"]
