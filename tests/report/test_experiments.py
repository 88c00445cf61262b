"""Grouping by setting: methods, folds and seeds together, everything else apart."""

from relief_ray.report.comparison import by_setting, digests_of
from relief_ray.report.runs import GridItem, Inventory


def item(loaded, status="done"):
    run = loaded.run
    kept = loaded if status == "done" else None
    return GridItem(
        name=loaded.where, label=loaded.label, config=run.config, status=status, loaded=kept, method=run.method
    )


def config(make, **changed):
    base = make("fedavg").run.config
    return {key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changed.items()}


def test_methods_folds_and_seeds_stay_together_and_settings_apart(make):
    far = config(make, fleet={"gap": 100.0})
    runs = [make("fedavg"), make("v1", seed=1), make("v1", fold=1), make("fedavg", extra=far)]
    settings = by_setting(Inventory(items=tuple(map(item, runs))))
    assert [[s.label for s in e.items] for e in settings] == [["fedavg", "v1", "v1"], ["fedavg"]]
    assert (settings[0].gap, settings[1].gap) == (55.0, 100.0)
    assert settings[1].title == "DSA, held-out subjects, Backbone 1 (CNN), gap 100"


def test_a_title_leaves_out_what_is_empty_and_shows_lists_as_they_are_typed(make):
    some = config(make, data={"subjects": [1, 4]}, fleet={"units": ["T"]})
    all_of_them = config(make, data={"subjects": []}, fleet={"units": []})
    settings = by_setting(Inventory(items=tuple(item(make("fedavg", extra=e)) for e in (all_of_them, some))))
    assert [e.title.partition("(CNN)")[2] for e in settings] == ["", ", subjects = [1, 4], units = [T]"]


def test_own_data_are_called_by_the_title_that_they_give_themselves(make):
    """As each run recorded it; until a run has, by the name in the import path. Our own data keep their short names."""
    own = config(make, data={"name": "walks:WALKS"})
    runs = [make("fedavg", extra=own, title="Walks at home"), make("v1", title="another title")]
    done = by_setting(Inventory(items=tuple(map(item, runs))))
    assert [e.title.partition(",")[0] for e in done] == ["Walks at home", "DSA"]
    (planned,) = by_setting(Inventory(items=(item(runs[0], "planned"),)))
    assert planned.title.startswith("WALKS, ")


def test_a_planned_cell_joins_the_runs_of_its_setting(make):
    (experiment,) = by_setting(Inventory(items=(item(make("fedavg")), item(make("v1"), "planned"))))
    assert [s.status for s in experiment.items] == ["done", "planned"]
    assert [r.label for r in experiment.runs] == ["fedavg"]
    assert [r.label for r in experiment.rows] == ["fedavg"]


def test_a_setting_without_any_run_has_no_rows(make):
    (experiment,) = by_setting(Inventory(items=(item(make("v1"), "planned"),)))
    assert experiment.rows == () and experiment.clocks == [] and experiment.title


def test_what_differs_is_named(make):
    other = config(make, training={"missing": "zero_feature"})
    settings = by_setting(Inventory(items=(item(make("fedavg")), item(make("fedavg", extra=other)))))
    assert [e.differs for e in settings] == [{"missing": "zero_input"}, {"missing": "zero_feature"}]


def test_runs_of_other_code_are_counted(make):
    def by(digest, **more):
        loaded = make("fedavg", **more)
        return item(
            type(loaded)(
                where=loaded.where + digest,
                run=loaded.run.model_copy(update={"source_digest": digest}),
                rounds=loaded.rounds,
            )
        )

    (experiment,) = by_setting(Inventory(items=(by("a"), by("a", seed=1), by("b", seed=2))))
    assert digests_of(experiment.runs) == ("a", "b")
    assert experiment.of_other_code("fedavg") == 1


def test_number_of_clients_is_the_configuration_s_or_one_per_subject(make):
    many = config(make, data={"num_clients": 20})
    settings = by_setting(Inventory(items=(item(make("fedavg")), item(make("fedavg", extra=many)))))
    assert [e.num_clients for e in settings] == [3, 20]
    assert settings[1].title.endswith("N = 20")
