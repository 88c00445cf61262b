"""A run's last model tested again: the record's figures, and those of sensors that no record holds."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

from actors.commands.model import scores_text
from relief_ray.conformance.runner import after_rounds
from relief_ray.experiment.evaluation import evaluate_run, sensor_sets
from relief_ray.experiment.evaluation import evaluation_inputs as plan_of
from relief_ray.experiment.export import export_model
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import prepare
from relief_ray.records import checkpoint
from relief_ray.records.cells import look
from relief_ray.records.metrics import macro_f1
from relief_ray.records.run_folder import read_rounds
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of, drive
from tests.sealed import change_run

# All, those of the clients, each alone: acc alone is both.
SETS = [("acc", "gyro", "mag"), ("acc", "gyro"), ("acc",), ("gyro",), ("mag",)]

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def run_of(run_cache, tmp_path_factory):
    """The folder of a finished run of a case."""
    done = {}

    def make(case):
        if case not in done:
            done[case] = tmp_path_factory.mktemp("evaluated") / "run"
            drive(config_of(case), done[case])
        return done[case]

    return make


def last(path):
    return read_rounds(path)[-1].metrics


def test_one_model_scores_as_recorded(run_of):
    tested, recorded = evaluate_run(run_of("relief")), last(run_of("relief"))
    by_sensors = {s.sensors: s.f1 for s in tested.canonical}
    assert by_sensors["acc", "gyro", "mag"] == recorded.f1
    assert {m: by_sensors[m,] for m in recorded.f1_by_modality} == recorded.f1_by_modality
    assert (tested.round, tested.num_windows, tested.own) == (3, recorded.num_windows, ())


@pytest.mark.parametrize("name", checkpoint.FILES)
def test_an_older_model_never_stands_in_for_a_damaged_one(run_of, tmp_path, name):
    folder = shutil.copytree(run_of("relief"), tmp_path / "run")
    newest, _ = checkpoint.generations(folder)
    with (newest / name).open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"damaged")
    with pytest.raises(UserError, match=rf"no usable checkpoint \({newest.name}: "):
        evaluate_run(folder)


def test_an_older_model_never_stands_in_for_a_missing_one(run_of, tmp_path):
    folder = shutil.copytree(run_of("relief"), tmp_path / "run")
    shutil.rmtree(checkpoint.generations(folder)[0])
    said = "the newest whole checkpoint is of round 2, expected one of the last round, 3"
    with pytest.raises(UserError, match=said):
        evaluate_run(folder)
    with pytest.raises(UserError, match=said):
        export_model(folder, tmp_path / "out")
    assert said in look(folder).why


def test_own_sensors_are_averaged_over_clients(run_of):
    tested = evaluate_run(run_of("relief"))
    scores = [(s.f1, s.num_clients) for s in tested.canonical]
    assert sum(n for _, n in scores) == 8
    assert tested.f1_own_sensors == pytest.approx(sum(f1 * n for f1, n in scores) / 8, rel=1e-12)
    assert tested.f1_canonical_own_sensors == pytest.approx(tested.f1_own_sensors, rel=1e-12)


@pytest.mark.ci
@pytest.mark.parametrize("case", ["relief", "local", "pilot"])
def test_what_each_client_uses_is_recorded_with_every_evaluation(case, run_of):
    """Its own model where it has one (then it is ``f1_fleet``), else the canonical one through its sensors."""
    found, recorded = evaluate_run(run_of(case)), last(run_of(case))
    assert (found.f1_own_sensors, found.f1_own_subjects) == (recorded.f1_own_sensors, recorded.f1_own_subjects)
    assert recorded.f1_fleet in {None, recorded.f1_own_sensors}
    evaluated = [r.metrics for r in read_rounds(run_of(case)) if r.metrics is not None]
    assert evaluated and all(m.f1_own_sensors is not None for m in evaluated)


@pytest.mark.parametrize("case", ["harmony", "local", "pilot"])
def test_own_models_score_as_recorded(case, run_of):
    tested, recorded = evaluate_run(run_of(case)), last(run_of(case))
    assert {s.client: s.f1 for s in tested.own} == recorded.f1_by_client
    assert {s.sensors for s in tested.canonical} == (set() if case == "local" else set(SETS))
    assert (tested.f1_canonical_own_sensors is None) == (case == "local")
    text = scores_text("a run", tested)
    assert f"own models, mean over clients, through the same sensors: {100 * recorded.f1_fleet:.1f} %" in text
    assert ("one for all" in text) == (case != "local")


def test_one_model_is_scored_up_to_each_clients_own_output(run_of):
    """Clients of type A run the whole model; the others are scored at their exit, as recorded."""
    found, recorded = evaluate_run(run_of("darkdistill")), last(run_of("darkdistill"))
    own = {s.client: s.f1 for s in found.own}
    whole = {s.sensors: s.f1 for s in found.canonical}
    assert own == recorded.f1_by_client and not found.personal and recorded.f1_fleet is None
    assert found.f1_own_sensors == pytest.approx(sum(own.values()) / 8, rel=1e-12)
    same = {s.client for s in found.own if s.f1 == whole[s.sensors]}
    assert same == {c.id for c in prepare(config_of("darkdistill")).fleet.clients if c.device == "A"}
    assert f"through its own sensors and output: {100 * found.f1_own_sensors:.1f} %" in scores_text("a run", found)
    assert "own models" not in scores_text("a run", found)


@pytest.mark.parametrize("case", ["relief", "local"])
def test_own_subjects_are_the_rows_of_each_clients_subject(case, run_of):
    """Client n has subject n alone: F1 by hand from its model's predictions on that subject's windows."""
    path = run_of(case)
    setup, folder = reopen(path)
    loaded = checkpoint.load(path, binding_of(setup, folder.run))
    folder.close()
    what, part, scores = plan_of(setup, loaded.state, loaded.clients), setup.data.test, []
    for client in setup.fleet.clients:
        assert set(setup.data.clients[client.id].subjects) == {client.id}
        mine = part.take(np.flatnonzero(part.subjects == client.id))
        own = [t for t in what.plan.clients if t.client == client.id]
        target = own[0] if own else replace(what.targets[0], modalities=client.modalities)
        job = replace(setup.job, parts={"test": mine})
        scores.append(
            macro_f1(SerialExecutor(job).evaluate(what.models, [target], what.states, "test")[target.label].sum(0))
        )
    assert evaluate_run(path).f1_own_subjects == pytest.approx(sum(scores) / len(scores), rel=1e-12)


def test_held_out_subjects_belong_to_no_client(run_cache, tmp_path):
    config = config_of("fedavg")
    data = config.data.model_copy(update={"split": "held_out_subject", "fold": 0})
    drive(config.model_copy(update={"data": data, "rounds": 1}), tmp_path / "run")
    tested = evaluate_run(tmp_path / "run")
    assert tested.f1_own_subjects is None and tested.f1_own_sensors is not None
    recorded = last(tmp_path / "run")
    assert recorded.f1_own_subjects is None and recorded.f1_own_sensors == pytest.approx(tested.f1_own_sensors)


def test_other_sensors_are_asked_for_by_name_in_any_order(run_of):
    tested = evaluate_run(run_of("relief"), [("mag", "acc")])
    assert tested.canonical[-1].sensors == ("acc", "mag")
    assert tested.canonical[-1].num_clients == 0


def test_each_set_of_sensors_comes_once():
    assert sensor_sets(prepare(config_of("relief")).fleet, [("acc",)]) == tuple(SETS)


@pytest.mark.parametrize(("asked", "said"), [(("acc", "gyros"), "did you mean 'gyro'"), ((), "joined by +")])
def test_unknown_sensors_are_refused(asked, said, run_of):
    with pytest.raises(UserError, match=said.replace("+", r"\+")):
        evaluate_run(run_of("relief"), [asked])


def test_a_run_without_checkpoint_is_refused(tmp_path):
    create(config_of("relief"), tmp_path / "run")[1].close()
    with pytest.raises(UserError, match="is interrupted and has no checkpoint yet; go on with: relief-ray resume"):
        evaluate_run(tmp_path / "run")


def test_of_a_finished_run_without_checkpoint_the_advice_is_no_resume_of_it(run_of, tmp_path):
    folder = shutil.copytree(run_of("relief"), tmp_path / "run")
    shutil.rmtree(folder / checkpoint.FOLDER)
    for read in (evaluate_run, lambda path: export_model(path, tmp_path / "out")):
        with pytest.raises(UserError, match=r"is done and has no checkpoint any more; .*remove the run's folder"):
            read(folder)


@pytest.mark.parametrize("status", ["done", "interrupted"])
@pytest.mark.parametrize("how", ["gone", "a line less", "damaged"])
def test_a_model_whose_round_has_no_line_is_not_tested(run_of, tmp_path, status, how):
    folder = shutil.copytree(run_of("relief"), tmp_path / "run")
    change_run(folder, status=status)
    ledger = folder / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    kept = {"gone": b"", "a line less": b"".join(lines[:-1]), "damaged": b"".join(lines)[:-9] + b'"damage"\n'}[how]
    ledger.write_bytes(kept) if kept else ledger.unlink()
    for read in (evaluate_run, lambda path: export_model(path, tmp_path / "out")):
        with pytest.raises(UserError, match=r"rounds.jsonl: .*(restore|damaged)"):
            read(folder)


def test_an_interrupted_run_is_tested_as_far_as_it_is(tmp_path):
    drive(config_of("relief"), tmp_path / "run", should_stop=after_rounds(1))
    assert evaluate_run(tmp_path / "run").round < 3
