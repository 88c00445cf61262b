"""Rows, paired differences and what may stand in one comparison."""

from dataclasses import replace

import pytest

from relief_ray.report.claims import judge_pairs, run_pairs
from relief_ray.report.comparison import compare, compare_runs, pairs, stat
from relief_ray.report.remarks import alike_pairs, caption, remarks, twins
from relief_ray.support.errors import UserError


def test_mean_and_sample_deviation_by_hand():
    scores = stat([1.0, 2.0, 3.0])
    assert (scores.mean, scores.std, scores.num) == (2.0, 1.0, 3)
    assert stat([4.0]).std is None


def test_a_pair_is_two_runs_of_one_fold_and_seed(make):
    runs = [
        make("fedavg", seed=0, scores=(0.5, 0.5)),
        make("fedavg", seed=1, scores=(0.5, 0.6)),
        make("v1", seed=0, scores=(0.5, 0.6), model="x"),
        make("v1", seed=1, scores=(0.5, 0.65), model="x"),
        make("v1", seed=2, scores=(0.5, 0.0), model="x"),
    ]
    comparison = compare_runs(runs)
    found = pairs(comparison.table, comparison.rounds, "v1", "fedavg", "f1")
    assert found["seed"].tolist() == [0, 1], "seed 2 has no partner"
    assert (found["first"] - found["second"]).tolist() == pytest.approx([10.0, 5.0])
    row = comparison.row("v1")
    assert row is not None and row.f1 is not None
    assert (row.f1.mean, row.f1.num_pairs) == (pytest.approx(7.5), 2)


def test_folds_are_pairs_of_their_own(make):
    """+10, -10 and +30 points: 6 of 8 sign assignments are as far from 0."""
    runs = [
        make(method, fold=fold, scores=(0.5, score))
        for fold, scores in enumerate([(0.5, 0.6), (0.5, 0.4), (0.5, 0.8)])
        for method, score in zip(("fedavg", "v1"), scores, strict=True)
    ]
    row = compare_runs(runs).row("v1")
    assert row is not None and row.f1 is not None
    assert (row.f1.mean, row.f1.p, row.f1.num_pairs) == (pytest.approx(10.0), 6 / 8, 3)


def test_methods_stand_in_the_registrys_order_and_bounds_come_last(make):
    comparison = compare_runs([make(m) for m in ("central", "v1", "full_only", "relief", "fedavg")])
    assert [(r.label, r.is_bound) for r in comparison.rows] == [
        ("fedavg", False), ("relief", False), ("v1", False), ("central", True), ("full_only", True),
    ]  # fmt: skip


def test_other_experiments_are_refused_with_the_key(make):
    other = make("relief", extra={"training": {"epochs": 5, "missing": "zero_input"}})
    with pytest.raises(UserError, match=r"fedavg-0-0 and relief-0-0 differ in training\.epochs = 2 and 5"):
        compare_runs([make("fedavg"), other])
    with pytest.raises(UserError, match="data origin = 'real' and 'SYNTHETIC'"):
        compare_runs([make("fedavg"), make("relief", origin="SYNTHETIC")])
    assert [r.label for r in compare_runs([make("fedavg"), make("v1", seed=5)]).rows] == ["fedavg", "v1"]


@pytest.mark.parametrize("partition", ["dirichlet", "quantity"])
def test_partitions_that_are_drawn_anew_for_each_seed_are_one_experiment(make, partition):
    def of(name, seed, drawn, **more):
        data = {"name": "dsa", "partition": partition, "seed": drawn}
        return make(name, seed=seed, extra={"data": data, **more})

    rows = compare_runs([of(name, seed, seed) for name in ("fedavg", "v1") for seed in (0, 1, 2)]).rows
    assert [(row.label, row.num_runs) for row in rows] == [("fedavg", 3), ("v1", 3)]
    again = [of(name, 40 + number, number, replicate=number) for name in ("fedavg", "v1") for number in (0, 1)]
    assert len(compare_runs(again).rows) == 2
    for runs in ([of("fedavg", 0, 0), of("v1", 0, 1)], [of("fedavg", 0, 3), of("fedavg", 1, 4)]):
        with pytest.raises(UserError, match=r"differ in data\.seed = "):
            compare_runs(runs)
    named = [of(name, seed, 0) for name in ("fedavg", "v1") for seed in (0, 1, 2)]  # one partition for all
    assert [(row.label, row.num_runs) for row in compare_runs(named).rows] == [("fedavg", 3), ("v1", 3)]
    dealt = [make("fedavg", seed=n, extra={"data": {"name": "dsa", "seed": n}}) for n in (0, 1)]
    with pytest.raises(UserError, match=r"differ in data\.seed = 0 and 1"):
        compare_runs(dealt)


def test_runs_of_equal_identities_are_one_experiment(make):
    def of(**training):
        return make("v1", extra={"training": {"epochs": 2, "missing": "zero_input", **training}})

    assert len(compare_runs([make("fedavg"), of(stack=1)]).rows) == 2
    with pytest.raises(UserError, match=r"differ in training\.stack = 1 and 4; compare runs of one experiment"):
        compare_runs([make("fedavg"), of(stack=4)])
    before = make("fedavg", extra={"costs": {"planning_time": "flop_proportional"}})
    assert len(compare_runs([before, make("v1", extra={"costs": {"count_server_time": False}})]).rows) == 2
    with pytest.raises(UserError, match=r"differ in costs\.count_server_time = False and True"):
        compare_runs([before, make("v1", extra={"costs": {"count_server_time": True}})])


def test_settings_that_cannot_be_read_here_are_compared_as_they_stand(make):
    def of(name, width):
        return make(name, extra={"backbone": {"name": "not.installed:Net", "width": width}})

    assert len(compare_runs([of("fedavg", 8), of("v1", 8)]).rows) == 2
    with pytest.raises(UserError, match=r"differ in backbone\.width = 8 and 16; compare runs of one experiment"):
        compare_runs([of("fedavg", 8), of("v1", 16)])


def test_an_unknown_clock_is_refused(make):
    with pytest.raises(UserError, match="no clock 'measured'; recorded are split_naive"):
        compare_runs([make("fedavg")], "measured")


def test_equal_names_are_distinguished_and_repeats_count_once(make):
    sharp = {"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "gamma": 0.5}}
    runs = [make("relief"), make("relief", extra=sharp), make("relief", model="other")]
    comparison = compare_runs(runs)
    assert [r.label for r in comparison.rows] == ["relief", "relief (gamma=0.5)"]
    assert comparison.notes == ("relief, fold 0, seed 0 was given twice, with OTHER bits; the first counts",)


def test_compare_reads_folders(make, put, tmp_path):
    for name in ("fedavg", "relief"):
        put(make(name), tmp_path / name)
    assert [r.label for r in compare([tmp_path]).rows] == ["fedavg", "relief"]


def test_remarks_name_twins_bounds_uneven_runs_and_personal_models(make):
    runs = [
        make("fedavg", scores=(0.5, 0.5)),
        make("fedavg", seed=1, scores=(0.5, 0.5)),
        make("v2", scores=(0.7, 0.7), model="same"),
        make("v2_mandatory", scores=(0.7, 0.7), model="same"),
        make("local", scores=(0.3, 0.3), personalised=True, model="own"),
        make("full_only", scores=(0.6, 0.6), model="full"),
    ]
    comparison = compare_runs(runs)
    assert twins(comparison) == (("v2", "v2_mandatory"),)
    text = "\n".join(remarks(comparison))
    assert "Fewer than 2 runs: v2 (1), v2_mandatory (1), local (1) and full_only (1)" in text
    assert "* local: clients are tested on models of their own. Their headline is `F1 own %`" in text
    assert "v2 and v2_mandatory trained bit-identical models" in text
    assert "full_only" in text and "Mean F1 below" not in text
    lowest = compare_runs([runs[0], make("full_only", scores=(0.4, 0.4), model="full")])
    assert any("all sensors) has the lowest mean F1 of the methods with one model" in line for line in remarks(lowest))
    alone = compare_runs([runs[0], runs[2], runs[5]])
    assert "Mean F1 below that of full_only (FedAvg of the clients with all sensors): fedavg" in remarks(alone)


def test_caption_says_synthetic_fitted_clock_and_engine(make):
    text = caption(
        compare_runs([make("fedavg", origin="SYNTHETIC"), make("fedavg", origin="SYNTHETIC", seed=2, fold=1)])
    )
    assert text.startswith(
        "SYNTHETIC data: DSA, held-out subjects, 2 test subjects; 2 rounds, E = 2, window stride 5 s"
    )
    assert "folds 0 and 1, seeds 0 and 2" in text
    assert (
        "simulated with every pass through every layer counted (clock `split_naive`); fleet utilisation FITTED" in text
    )
    assert "engine" not in text and "accounting" not in text, "what is as usual needs no word"


def test_caption_names_an_unusual_engine_accounting_and_plan(make):
    run = make("fedavg", extra={"costs": {"accounting": "table"}})
    other = replace(run, run=run.run.model_copy(update={"engine": "stacked", "planning_model": "flop_proportional"}))
    text = caption(compare_runs([other], clock="split_naive"))
    assert "; allocation planned in proportion to the FLOPs of what is trained (clock `flop_proportional`);" in text
    assert "; accounting `table`; training engine `stacked`." in text


def test_an_interval_has_the_unit_of_a_claims_test(make):
    """Differences of 1, 5 and 9 points by replicate, equal in both folds: three draws, not six."""

    def runs(gains, by_fold=(0.0, 0.0)):
        for fold, more in enumerate(by_fold):
            for seed, gain in enumerate(gains):
                yield make("fedavg", fold=fold, seed=seed, scores=(0.4, 0.5))
                yield make("fedprox", fold=fold, seed=seed, scores=(0.4, 0.5 + gain + more))

    comparison = compare_runs(tuple(runs((0.01, 0.05, 0.09))))
    shown, tested = comparison.row("fedprox").f1, judge_pairs(run_pairs(comparison, "fedprox", "fedavg", "f1"))
    assert shown == tested and (shown.num_pairs, shown.unit) == (3, "replicate mean")
    assert "of fedprox over means of replicates" in alike_pairs(comparison)
    (one, two) = (compare_runs(tuple(runs(g))).row("fedprox").f1 for g in ((0.01, 0.09), (0.01, 0.01, 0.01)))
    assert (one.num_pairs, one.unit) == (4, "paired run"), "two replicates decide nothing"
    assert (two.num_pairs, two.unit) == (6, "paired run"), "no scatter, so that no pair depends on another"
