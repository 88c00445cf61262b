"""Test what ``run`` takes: targets, axes, settings; what it refuses; and what it leaves in its folder."""

import gc
import importlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import relief_ray as rr
from actors.cli.main import app
from relief_ray.config import experiment
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.cells import read_plan_file
from relief_ray.strategies import PRESETS
from relief_ray.studies import spec
from relief_ray.studies.plan import Plan
from relief_ray.studies.progress import End, NotebookDisplay, Running, View, display
from relief_ray.studies.request import Request, plan_of
from relief_ray.studies.spec import Cell
from relief_ray.support.errors import in_python
from tests.loaders import write_lab
from tests.own import METHOD
from tests.studies.conftest import SMALL

HITS = """
def hits(confusion):
    return confusion.trace() / confusion.sum()
"""


def cells(tmp_path, target=None, **words):
    request = Request(target=target, **words)
    with in_python(request.keywords):
        return plan_of(request, tmp_path / "new").cells


def test_methods_seeds_folds_and_rounds_replace_the_presets(tmp_path):
    made = cells(tmp_path, "demo", strategies=["relief", "fedavg"], seeds=range(2), folds=(0, 3), rounds=5)
    assert [cell.name for cell in made] == [
        f"{method}-f{fold}-s{seed}" for seed in (0, 1) for fold in (0, 3) for method in ("relief", "fedavg")
    ]
    assert {cell.config.rounds for cell in made} == {5} and {cell.config.replicate for cell in made} == {None}
    assert len(cells(tmp_path, "demo")) == 56, "a preset as it is keeps its replicates"


@pytest.mark.parametrize("seeds", [range(3), np.arange(3), (0, 1, 2), iter([0, 1, 2]), [0, np.int64(1), 2]])
def test_numbers_are_any_iterable_of_whole_numbers(tmp_path, seeds):
    made = cells(tmp_path, "quick", strategies="relief", seeds=seeds, rounds=np.int32(3))
    assert [cell.config.seed for cell in made] == [0, 1, 2] and {cell.config.rounds for cell in made} == {3}
    (fold,) = {cell.config.data.fold for cell in cells(tmp_path, "demo", seeds=[0], folds=np.int64(2))}
    assert fold == 2 and type(fold) is int


def test_a_text_may_name_several_methods(tmp_path):
    several = [cell.name for cell in cells(tmp_path, "quick", strategies="fedavg, relief", seeds=[0])]
    assert several == ["fedavg-s0", "relief-s0"]
    assert several == [cell.name for cell in cells(tmp_path, "quick", strategies=["fedavg", "relief"], seeds=[0])]


def test_a_data_set_may_be_an_object_beside_its_settings(tmp_path, write, monkeypatch):
    path = write_lab(write, tmp_path, monkeypatch, "")
    monkeypatch.syspath_prepend(Path.cwd())
    module = importlib.import_module(path.partition(":")[0])
    fleet = {"types": {"B": {"sensors": "wrist"}, "C": {"sensors": "hip"}}}
    for name in (f"{module.__name__}:GOOD", module.GOOD):
        settings = {"data": {"name": name, "stride_s": 0.5}, "fleet": fleet}
        (cell,) = cells(tmp_path, strategies=["fedavg"], seeds=[0], settings=settings)
        assert (cell.config.data.name, cell.config.data.stride_s) == (f"{module.__name__}:GOOD", 0.5)


def test_targets_are_presets_files_mappings_configurations_or_nothing(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("strategy: {name: relief, gamma: 0.5}\nrounds: 3\nseed: 4\n")
    values = {"strategy": {"name": "relief", "gamma": 0.5}, "rounds": 3, "seed": 4}
    targets = [str(file), file, values, rr.ExperimentConfig.model_validate(values)]
    made = [cells(tmp_path, target) for target in targets]
    assert {len(m) for m in made} == {1} and len({m[0].hash for m in made}) == 1
    assert made[0][0].config.strategy.gamma == 0.5 and made[0][0].config.seed == 4
    assert [c.config.seed for c in cells(tmp_path, targets[3], seeds=[7, 9])] == [7, 9]
    (alone,) = cells(tmp_path, strategies="relief")
    assert alone.label == "relief" and alone.config.rounds == rr.ExperimentConfig().rounds


def test_sections_change_keys_and_objects_replace_them(tmp_path):
    demo = rr.ExperimentConfig.model_validate(cells(tmp_path, "demo")[0].config.model_dump())
    merged = cells(tmp_path, "demo", settings={"training": {"lr": 1e-05}, "data": "dsa"})[0].config
    assert (merged.training.lr, merged.training.epochs) == (1e-05, demo.training.epochs)
    assert (merged.data.name, merged.data.split) == ("dsa", "held_out_subject")
    whole = cells(tmp_path, "demo", settings={"training": rr.TrainingConfig(lr=0.01)})[0].config
    assert whole.training == rr.TrainingConfig(lr=0.01) != demo.training
    dotted = cells(tmp_path, "demo", set={"training.lr": 0.01, "fleet.gap": 10, "participation": 0.5})[0].config
    assert (dotted.training.lr, dotted.fleet.gap, dotted.participation) == (0.01, 10.0, 0.5)


def test_a_program_runs_here_without_mlflow_unless_it_says_otherwise(tmp_path):
    (cell, *_) = cells(tmp_path, "demo")
    assert (cell.config.runtime.mode, cell.config.tracking.enabled) == ("inline", False)
    (cell, *_) = cells(tmp_path, "demo", settings={"tracking": {"experiment": "mine"}})
    assert cell.config.tracking.enabled and cell.config.tracking.experiment == "mine"
    assert cells(tmp_path, "quick", on="ray")[0].config.runtime.mode == "packed"
    chosen = {"runtime": {"mode": "actors"}}
    assert cells(tmp_path, "quick", on="ray", settings=chosen)[0].config.runtime.mode == "actors"
    with pytest.raises(rr.UserError, match=r"computes in this process, expected on='ray' with it"):
        cells(tmp_path, "quick", settings=chosen)


@pytest.mark.parametrize("jobs", [1, 2])
def test_clients_with_places_by_type_are_an_actor_each_as_on_the_command_line(jobs, tmp_path):
    typed = {"runtime": {"placement": "typed"}}
    assert cells(tmp_path, "quick", on="ray", jobs=jobs, settings=typed)[0].config.runtime.mode == "actors"
    assert cells(tmp_path, typed, on="ray", jobs=jobs)[0].config.runtime.mode == "actors", "as a file says"
    both = {"runtime": {"placement": "typed", "mode": "packed"}}
    with pytest.raises(rr.UserError, match="any client runs on any node"):
        cells(tmp_path, both, on="ray", jobs=jobs)


def test_variants_of_a_method_get_folders_of_their_own(tmp_path):
    relief = PRESETS["relief"].model_copy(update={"gamma": 0.5})
    made = cells(tmp_path, "quick", strategies=["relief", relief, {"name": "relief", "gamma": 0.25}, "relief"])
    assert [cell.name for cell in made] == ["relief-s0", "relief-gamma0.5-s0", "relief-gamma0.25-s0"]
    assert [cell.config.strategy.gamma for cell in made] == [0.9, 0.5, 0.25]
    assert len({cell.config.name for cell in made}) == 3 and {cell.label for cell in made} == {"relief"}


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("demoo", {}, r"preset 'demoo': unknown \(did you mean 'demo'\?\)"),
        ("demo", {"strategies": ["relif"]}, r"unknown strategy 'relif' \(did you mean 'relief'\?\)"),
        ("demo", {"strategies": []}, "strategies: found no method"),
        ("demo", {"strategies": [3]}, "strategies: found int 3; expected a method's name"),
        ("demo", {"strategies": "relief", "set": {"strategy": "v1"}}, "choose the same; leave one of them out"),
        ("demo", {"seeds": -1}, r"seeds=-1: expected a list of numbers from 0 on, e.g. seeds=\[0, 1\]"),
        ("demo", {"seeds": "0..2"}, r"seeds='0..2': expected a list .*, e.g. seeds=\[0, 1\] or seeds=range\(3\)"),
        ("demo", {"seeds": "0"}, "seeds='0': found one number; expected a list: seeds"),
        ("demo", {"seeds": np.int64(3)}, r"seeds=3: could be 3 seeds"),
        ("demo", {"seeds": np.array([0.5])}, r"seeds=\[np.float64\(0.5\)\]: expected a list of numbers"),
        ("demo", {"seeds": [True]}, r"seeds=\[True\]: expected a list of numbers"),
        ("demo", {"seeds": []}, r"seeds=\[\]: expected a list of numbers"),
        ("demo", {"folds": {0: 1}}, r"folds=\{0: 1\}: expected a fold or a list"),
        ("demo", {"strategies": ","}, "strategies: found no method"),
        ("demo", {"strategies": "fedavg,relif"}, r"unknown strategy 'relif' \(did you mean 'relief'\?\)"),
        ("demo", {"folds": [0, 0.5]}, r"folds=\[0, 0.5\]: expected a fold or a list"),
        ("quick", {"folds": [0]}, "folds"),
        (
            "demo",
            {"seeds": 3},
            r"seeds=3: could be 3 seeds .* seeds=range\(3\) for 3 .* seeds=\[3\] for seed 3",
        ),
        ("demo", {"seeds": 0}, r"seeds=0: found one number; expected a list: seeds=\[0\] for seed 0"),
        ("demo", {"seeds": [2], "set": {"seed": 1}}, "seed"),
        ("demo", {"settings": {"training.lr": 0.1}}, r"write set=\{'training.lr': 0.1\}"),
        ("demo", {"settings": {"training": {"epoch": 2}}}, r"unknown key 'training.epoch' .*'training.epochs'"),
        (
            "demo",
            {"settings": {"training": {"learnig_rate": 0.1}}},
            r"'training.learnig_rate' \(did you mean 'training.lr'",
        ),
        ("demo", {"settings": {"trainig": {"epochs": 2}}}, r"run\(trainig=.*unknown keyword; did you mean training="),
        ("demo", {"seeds": [0, 1], "set": {"seed": 1}}, r"set=\{'seed': 1\}: choose the same"),
        ("demo", {"set": ["training.lr=1"]}, "set: found .*, expected a mapping by dotted key"),
        ("demo", {"rounds": "3"}, "rounds='3': expected a whole number"),
        ("demo", {"rounds": True}, "rounds=True: expected a whole number"),
        ("demo", {"strategies": [rr.StrategyConfig]}, r"class StrategyConfig has no build\(\); define one"),
        ("demo", {"rounds": 0}, "rounds = 0: expected a whole number, at least 1"),
        ("demo", {"settings": {"data": 3}}, "data: found int 3; expected the name of a data set"),
        ("demo", {"settings": {"backbone": 3}}, "backbone: found int 3; expected a name"),
        ("demo", {"set": {"training.epochs": object}}, "training.epochs"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, target, words, message):
    with pytest.raises(rr.UserError, match=message):
        cells(tmp_path, target, **words)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [{}, {"on": "ray", "set": {"runtime.mode": "inline"}}])
def test_the_address_of_a_cluster_that_no_run_reads_is_refused(tmp_path, words):
    with pytest.raises(
        rr.UserError, match=r"127.0.0.1:9.*a run with .*does not read it; .*packed.* and on='ray'\), or no"
    ):
        rr.run("quick", runtime={"address": "127.0.0.1:9"}, out=tmp_path / "new", **words)
    assert not (tmp_path / "new").exists()


@pytest.mark.ci
def test_a_second_call_computes_what_is_missing_and_refuses_other_settings(small_study, tmp_path, capsys):
    folder = tmp_path / "again"
    shutil.copytree(small_study.folder, folder)
    words = {"strategies": ["fedavg", "relief"], "backbone": SMALL, "out": folder}
    before = {path: path.read_bytes() for path in folder.glob("*-s[01]/*.json*")}
    more = rr.run("quick", seeds=[1, 2], **words)
    printed = [line.partition("  ")[0].partition(" in ")[0] for line in capsys.readouterr().err.splitlines()]
    assert printed == [
        *(f"[{i}/4] {name}, seed 1: reused, finished already" for i, name in enumerate(("fedavg", "relief"), 1)),
        "devices: 3 A acc gyro mag, 3 B acc gyro, 2 C acc",
        "WARNING: data dsa_mini: subjects 1 and 6: acc, gyro and mag are 0",
        *(f"[{i}/4] {name}, seed 2: done" for i, name in enumerate(("fedavg", "relief"), 3)),
    ]
    assert len(more.frame) == 6 and before == {path: path.read_bytes() for path in before}
    with pytest.raises(rr.UserError, match=r"holds another run \(rounds is 2 there, asked: 5\)"):
        rr.run("quick", seeds=[0, 1], rounds=5, **words)


def test_an_interrupted_study_goes_on_with_the_same_bits(small_study, tmp_path, monkeypatch):
    words = {"strategies": "relief", "seeds": [1], "backbone": SMALL, "out": tmp_path / "study", "quiet": True}
    from relief_ray.studies import progress

    def stop(self, cell, record):
        if record.round == 1:
            raise KeyboardInterrupt

    told = []
    monkeypatch.setattr(progress.Quiet, "round", stop)
    monkeypatch.setattr(progress.Quiet, "note", lambda self, text: told.append(text))
    with pytest.raises(KeyboardInterrupt):
        rr.run("quick", **words)
    assert told[-1].endswith(f"call run() with out= again, or relief-ray resume {tmp_path / 'study'}")
    assert rr.load(tmp_path / "study").runs[0].status == "interrupted"
    monkeypatch.undo()
    whole, resumed = small_study.run("relief", seed=1), rr.run("quick", **words).run("relief")
    assert resumed.record.num_resumes == 1
    assert [r.model_sha256 for r in resumed.ledger] == [r.model_sha256 for r in whole.ledger]


def test_the_command_line_goes_on_with_the_folder(small_study):
    plan = read_plan_file(small_study.folder / "plan.json")
    assert plan.name == "quick" and [row.folder for row in plan.cells][:2] == ["fedavg-s0", "relief-s0"]
    for words in (["resume", str(small_study.folder)], ["compare", str(small_study.folder)]):
        done = CliRunner().invoke(app, words, prog_name="relief-ray")
        assert done.exit_code == 0 and "relief" in done.stdout, done.output


def test_a_temporary_folder_lives_as_long_as_the_study_or_one_of_its_runs(run_cache):
    study = rr.run("quick", rounds=1, backbone=SMALL, quiet=True)
    folder, run = study.folder, study.run("relief")
    assert folder.is_dir() and str(folder) not in repr(study) + study._repr_html_()
    del study
    gc.collect()
    assert run.folder.is_dir()
    del run
    gc.collect()
    assert not folder.exists()


@pytest.mark.ci
def test_a_users_own_method_is_recorded_by_its_path_and_file(write, run_cache, tmp_path, monkeypatch):
    name = write(METHOD)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    kind = importlib.import_module(name).Mine
    given = [kind, kind(alpha=0.25), f"{name}:Mine"]
    study = rr.run("quick", strategies=given, backbone=SMALL, rounds=1, out=tmp_path / "own", quiet=True)
    assert [run.folder.name for run in study.runs] == [
        f"{name}.Mine-s0",
        f"{name}.Mine-alpha0.25-s0",
    ]
    run = next(run for run in study.runs if run.method.endswith("(alpha=0.25)"))
    assert run.record.config["strategy"]["alpha"] == 0.25 and list(run.record.own_sources) == [f"{name}.py"]


def test_progress_is_a_bar_a_cell_or_lines(small_study, capsys, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(
        IPython.display, "display", lambda *a, **k: type("Handle", (), {"update": lambda s, d, **k: shown.append(d)})()
    )
    cell = Cell(name="x", label="relief", config=rr.ExperimentConfig(), hash="", title="relief")
    view = View(num_cells=1, num_done=0, num_failed=0, elapsed_s=1.0, left_s=None, running=(), leaders=())
    record = small_study.run("relief", seed=1).ledger[-1]
    plain = display(1, 2, 1, quiet=False)
    monkeypatch.setattr("relief_ray.studies.progress.is_interactive", lambda stderr: stderr)
    for callback in (NotebookDisplay(2), plain, display(1, 2, 1, quiet=False), display(2, 4, 2, quiet=False)):
        callback.begin(cell, "", None)
        callback.round(cell, record)
        callback.note("a note")
        callback.end(cell, End(status="done", view=view))
        callback.close()
    half = {"text/plain": f"{'█' * 10}{'░' * 10} 1 of 2 rounds, relief"}
    assert shown[1] == half and shown[-1] == {"text/plain": "a note\nrelief: done"}
    said = capsys.readouterr()
    assert said.err.count("a note\n") == 3 and said.out == ""
    assert "[1/1] relief: done in 0.0 s" in said.err, "as on the command line"


def test_a_notebooks_bar_counts_runs_that_are_computed_at_a_time(monkeypatch):
    from IPython import display

    shown = []
    monkeypatch.setattr(
        display, "display", lambda *a, **k: type("Handle", (), {"update": lambda s, d, **k: shown.append(d)})()
    )
    running = tuple(Running(title=name, num_rounds=1, num_planned=2, f1=None) for name in ("fedavg", "relief"))
    view = View(num_cells=2, num_done=0, num_failed=0, elapsed_s=1.0, left_s=None, running=running, leaders=())
    bar = NotebookDisplay(4)
    for seen in (view, replace(view, running=running[1:]), replace(view, running=())):
        bar.refresh(seen)
    empty = f"{'░' * 20} 0 of 4 rounds, "
    assert shown == [{"text/plain": text} for text in (f"{empty}2 runs at a time", f"{empty}relief", "")]


@pytest.mark.ci
@pytest.mark.ray
def test_on_ray_a_study_has_the_same_bits(small_study, cluster, tmp_path):
    words = {"strategies": ["relief"], "seeds": [1], "backbone": SMALL, "quiet": True}
    study = rr.run("quick", out=tmp_path / "ray", on="ray", **words)
    (run,) = study.runs
    assert run.record.runtime["mode"] == "packed"
    assert run.ledger[-1].model_sha256 == small_study.run("relief", seed=1).ledger[-1].model_sha256


@pytest.mark.ci
@pytest.mark.ray
def test_runs_side_by_side_have_the_same_bits_and_a_metric_of_ones_own(small_study, cluster, write, tmp_path):
    metric = f"{write(HITS)}:hits"
    words = {"strategies": ["fedavg", "relief"], "seeds": [0, 1], "backbone": SMALL, "quiet": True, "metrics": metric}
    study = rr.run("quick", out=tmp_path / "jobs", jobs=2, **words)
    for run in study.runs:
        same = small_study.run(run.method, seed=run.record.config["seed"])
        assert run.ledger[-1].model_sha256 == same.ledger[-1].model_sha256
        assert run.record.config["runtime"]["mode"] == "inline"
        last = run.ledger[-1].metrics
        assert last.scores["hits"] == pytest.approx(last.accuracy) and last.accuracy > 0
    again = rr.run("quick", out=tmp_path / "jobs", jobs=2, **words)
    assert [run.record.finished for run in again.runs] == [run.record.finished for run in study.runs], "reused"


@pytest.mark.ci
@pytest.mark.ray
def test_of_runs_side_by_side_that_fail_the_others_are_finished(cluster, write, run_cache, tmp_path):
    name = write(METHOD.replace("before = state", "assert 0 and state; before = state"))
    words = {"strategies": ["fedavg", f"{name}:Mine"], "seeds": [0], "backbone": SMALL, "rounds": 1, "quiet": True}
    with pytest.raises(rr.UserError, match=rf"{name}.*AssertionError[\s\S]*1 of 2 runs failed; call run\(\) again"):
        rr.run("quick", out=tmp_path / "jobs", jobs=2, **words)
    assert [run.method for run in rr.load(tmp_path / "jobs").runs if run.record.status == "done"] == ["fedavg"]


ON_RAY = """
import relief_ray as rr
study = rr.run("quick", rounds=1, on="ray", out="study", backbone={"conv1": 2, "conv2": 2, "steps": 2, "fusion": 2})
import ray
print(study.runs[0].status, study.runs[0].record.runtime["mode"], ray.is_initialized())
"""


@pytest.mark.slow
def test_a_study_on_ray_ends_the_cluster_that_it_started(tmp_path):
    places = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RELIEF_CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    env = {**places, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "done packed False\n", done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("[1/1] relief, seed 0: 1 round, 8 clients on Ray") and " F1 " in lines[-1], lines
    assert not any("ray" in line.lower() for line in lines[1:]), "none of Ray's own"


@pytest.mark.ci
def test_a_users_method_is_built_once_a_run(write, run_cache, tmp_path):
    name = write(
        METHOD.replace("    def build(self):\n", "    def build(self):\n        BUILT.append(self.alpha)\n")
        + "\n\nBUILT = []\n"
    )
    words = {"strategies": f"{name}:Mine", "backbone": SMALL, "rounds": 1, "quiet": True}
    study = rr.run("quick", seeds=[0, 1], out=tmp_path / "study", **words)
    assert len(sys.modules[name].BUILT) == len(study.runs) == 2


def test_settings_are_read_once_and_a_run_is_checked_once(monkeypatch, run_cache, tmp_path):
    """However often plan, folder, record, display and study ask for its configuration."""
    counts = Counter()

    def count(owner, name, key):
        inner = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: counts.update([key(given)]) or inner(*given, **named))

    count(experiment, "_read", lambda given: "read")
    count(spec, "assign", lambda given: "assign")
    count(experiment, "strictly", lambda given: given[0])
    words = {"backbone": SMALL, "set": {"training.lr": 0.01}, "rounds": 1, "quiet": True}
    study = rr.run("quick", seeds=[0, 1], out=tmp_path / "study", **words)
    assert counts["read"] == 0, "what Python gives is no text"
    assert counts[ExperimentConfig] == len(study.runs) == 2
    # Once to see which axes the settings fix; then, for each run, the study's values, and the user's on top.
    assert counts["assign"] == 1 + 2 * 2
    counts.clear()
    assert len(Plan.read(study.folder).cells) == counts[ExperimentConfig] == 2


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_a_study_in_a_block_that_changes_torch_is_refused_before_anything_is_written(tmp_path, block):
    with block(), pytest.raises(rr.UserError, match=r"^torch: its .* leave the block of torch\.\w+\(\)"):
        rr.run("quick", strategies="fedavg", out=tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()
