"""Rows for table programs, and paired differences from the small form: the same figures as from the run folders."""

import dataclasses

import pytest

from relief_ray.records.committed import condense, write_committed
from relief_ray.report.comparison import compare_runs
from relief_ray.report.frames import cell_rows, gain, gain_rows, name_settings, read_cells, round_rows, run_gains
from relief_ray.report.statistics import paired
from relief_ray.support.errors import UserError


def cells_of(runs):
    return name_settings({r.where: condense(r.run, r.rounds) for r in runs})


def test_a_gain_is_the_one_that_the_comparison_prints(family):
    rows = {row.label: row.f1 for row in compare_runs(family).rows}
    cells = cells_of(family)
    assert {label: gain(cells, label) for label in rows if label != "fedavg"} == {
        label: gains for label, gains in rows.items() if label != "fedavg"
    }
    assert gain(cells, "v1").mean == pytest.approx(10.0)


def test_only_shared_replicates_count(make):
    scores = {("fedavg", 0): 0.5, ("fedavg", 1): 0.6, ("v1", 0): 0.6, ("v1", 1): 0.65, ("v1", 2): 0.1}
    cells = cells_of([make(method, seed=seed, scores=(0.1, score)) for (method, seed), score in scores.items()])
    assert run_gains(cells, "v1") == pytest.approx({(0, 0, 0): 10.0, (0, 0, 1): 5.0})
    assert gain(cells, "v1") == paired(list(run_gains(cells, "v1").values()))


def test_methods_without_a_shared_replicate_have_no_gain(make):
    assert gain(cells_of([make("fedavg", seed=0), make("v1", seed=1)]), "v1") is None


def test_a_personalised_method_is_compared_by_what_its_clients_reach(make):
    cells = cells_of([make("fedavg", scores=(0.1, 0.5)), make("local", scores=(0.1, 0.4), personalised=True)])
    assert run_gains(cells, "local") == pytest.approx({(0, 0, 0): -10.0})
    both = cells_of([make("fedavg", scores=(0.1, 0.5)), make("pilot", scores=(0.7, 0.8), own=(0.1, 0.2))])
    assert run_gains(both, "pilot") == pytest.approx({(0, 0, 0): -30.0}) and cell_rows(both)[1]["f1_percent"] == 20.0


def test_the_first_of_two_cells_of_one_replicate_counts(make):
    twice = dataclasses.replace(make("v1", scores=(0.1, 0.9)), where="again")
    cells = cells_of([make("fedavg", scores=(0.1, 0.5)), make("v1", scores=(0.1, 0.6)), twice])
    assert run_gains(cells, "v1") == pytest.approx({(0, 0, 0): 10.0})


def test_unknown_methods_and_mixed_settings_are_refused(make):
    with pytest.raises(UserError, match=r"no finished run of 'reliev' \(did you mean 'relief'\?\); expected"):
        gain(cells_of([make("fedavg"), make("relief")]), "reliev")
    other = dataclasses.replace(make("v1", extra={"rounds": 7}), where="other")
    with pytest.raises(UserError, match=r"2 settings, e\.g\. .*; choose the cells of one `setting`"):
        gain(cells_of([make("fedavg"), other]), "v1")


def test_a_setting_says_what_varies_and_whether_the_data_are_real(make):
    runs = [make("fedavg"), make("v1", extra={"rounds": 7}), make("relief", origin="SYNTHETIC")]
    one, two, three = (c.setting for c in cells_of(runs))
    assert "rounds = 2" in one and "rounds = 7" in two and three.startswith("SYNTHETIC data: ")
    assert cells_of(runs[:1])[0].setting == "DSA, held-out subjects, Backbone 1 (CNN)"


def test_settings_with_the_same_title_stay_separate(make):
    other = make("v1")
    other = dataclasses.replace(other, run=other.run.model_copy(update={"engine": "naive"}))
    assert [c.setting for c in cells_of([make("fedavg"), other])] == [
        "DSA, held-out subjects, Backbone 1 (CNN)",
        "DSA, held-out subjects, Backbone 1 (CNN), setting 2",
    ]


def test_a_method_with_other_fields_has_a_name_of_its_own(make):
    fields = {"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "gamma": 0.5}}
    other = dataclasses.replace(make("relief", extra=fields), where="gamma")
    assert [c.label for c in cells_of([make("relief"), other])] == ["relief", "relief (gamma=0.5)"]


def test_rows_carry_units_and_sums(make):
    run = make("relief", scores=(0.5, 0.6), rare={"1": 0.2}, fold=2, seed=1, energy_j=60.0)
    (row,) = cell_rows(cells_of([run]))
    assert (row["method"], row["fold"], row["seed"], row["rounds"], row["is_bound"]) == ("relief", 2, 1, 2, False)
    assert (row["f1_percent"], row["f1_rare_percent"], row["energy_j"]) == (60.0, pytest.approx(20.0), 180.0)
    rounds = round_rows(cells_of([run]))
    assert [(r["round"], r["f1_percent"], r["time_s"]) for r in rounds] == [
        (0, None, 2.0),
        (1, 50.0, 4.0),
        (2, 60.0, 6.0),
    ]
    assert row["time_s"] == rounds[-1]["time_s"]


def test_cells_are_read_from_results_and_folders(make, put, tmp_path):
    runs = [make("fedavg"), make("v1")]
    for r in runs:
        put(r, tmp_path / "grid" / r.where)
    put(make("relief", planned=9), tmp_path / "grid" / "short")
    small = write_committed(tmp_path / "small" / "cells.json", "t", [(c.name, c.record) for c in cells_of(runs)])
    wanted = [(c.label, gain(cells_of(runs), "v1")) for c in cells_of(runs)]
    for path in (small, small.parent, tmp_path / "grid"):
        cells = read_cells([path])
        assert [(c.label, gain(cells, "v1")) for c in cells] == wanted
    assert len(read_cells([small, tmp_path / "grid"])) == 2, "the same runs"
    put(make("fedavg", seed=7), tmp_path / "more" / runs[0].where)
    more = read_cells([tmp_path / "grid", tmp_path / "more"])
    assert [(c.name, c.replicate[2]) for c in more if c.label == "fedavg"] == [
        (runs[0].where, 0), (f"more-{runs[0].where}", 7)
    ], "another run of the same folder name"  # fmt: skip
    with pytest.raises(UserError, match="does not exist"):
        read_cells([tmp_path / "small" / ".." / ".." / "nothing"])


def test_columns_of_the_comparison_are_the_comparisons_own(family, make):
    """Speedup, link share and single sensors by hand, and equal to what the report prints."""
    runs = [make("fedavg", scores=(0.4, 0.5)), make("v1", scores=(0.5, 0.6), round_s=1.0, extra={"replicate": 3})]
    rows = {row["method"]: row for row in cell_rows(cells_of(runs))}
    assert rows["v1"]["speedup"] == pytest.approx(2.0)  # 2 s of FedAvg's round over 1 s
    assert (rows["v1"]["f1_acc_percent"], rows["v1"]["f1_mag_percent"]) == pytest.approx((30.0, 15.0))
    assert (rows["fedavg"]["replicate"], rows["v1"]["replicate"]) == (None, 3)
    stats = {row.label: row.stats for row in compare_runs(family).rows}
    for row in cell_rows(cells_of(family)):
        printed = stats[row["method"]]
        for name in ("speedup", "link_percent", "f1_acc_percent", "f1_mag_percent"):
            assert row[name] == pytest.approx(printed[name].mean), (row["method"], name)


def test_own_sensors_are_the_clients_own_models_where_they_have_such(make):
    (row,) = cell_rows(cells_of([make("pilot", scores=(0.7, 0.8), own=(0.1, 0.2))]))
    assert row["f1_own_sensors_percent"] == pytest.approx(20.0)
    (canonical,) = cell_rows(cells_of([make("fedavg")]))
    assert canonical["f1_own_sensors_percent"] is None, "it was not tested through the clients' sensors"


def test_losses_and_real_seconds_are_those_of_the_run_folder(make, put, tmp_path):
    run = make("relief", scores=(0.5, 0.6), rare={"1": 0.2})
    put(run, tmp_path / "grid" / "one")
    rows = round_rows(read_cells([tmp_path / "grid"]))
    assert [r["loss"] for r in rows] == [record.loss for record in run.rounds] and rows[0]["loss"] is not None
    assert [r["wall_s"] for r in rows] == [0.5, 0.5, 0.5]
    assert [r["f1_rare_percent"] for r in rows] == [None, pytest.approx(20.0), pytest.approx(20.0)]
    small = round_rows(cells_of([run]))
    assert {(r["loss"], r["wall_s"]) for r in small} == {(None, None)} and small[1]["f1_rare_percent"] == 20.0


def test_a_gain_of_another_figure(make):
    runs = [
        make("fedavg", rare={"1": 0.2}, scores=(0.2, 0.6)),
        make("v1", rare={"1": 0.5}, scores=(0.3, 0.7), round_s=4.0, bootstrap=False),
    ]
    cells = cells_of(runs)
    assert gain(cells, "v1", figure="f1_rare").mean == pytest.approx(30.0)
    # FedAvg ended after 4 s, at 60 %; v1 had then finished its first round of 4 s, at 30 %.
    assert gain(cells, "v1", figure="f1_at_seconds").mean == pytest.approx(-30.0)
    assert gain(cells, "v1", figure="f1_own_sensors") is None
    (row,) = gain_rows(cells, figure="f1_rare")
    assert row["more_aggregations"] == 0
    assert (row["method"], row["mean"], row["pairs"]) == ("v1", pytest.approx(30.0), 1)
    (row,) = gain_rows(cells_of([make("fedavg"), make("relief", bootstrap=True)]))
    assert row["more_aggregations"] == 1
    with pytest.raises(UserError, match=r"figure 'f1_rar': unknown \(did you mean 'f1_rare'\?\); expected one of f1, "):
        gain(cells, "v1", figure="f1_rar")
