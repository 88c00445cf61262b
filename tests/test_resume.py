"""Promise three: kill the driver at any instant, resume, get the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relief_ray.core.federated import RoundVoid
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import after_rounds, config_of, drive, outcome
from tests.sealed import change_run

pytestmark = pytest.mark.usefixtures("run_cache")
ROOT = Path(__file__).parents[1]


def command(*args):
    return [sys.executable, "-m", "tests.resume_program", *map(str, args)]


@pytest.fixture(scope="module")
def environment(run_cache):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def golden(run_cache, tmp_path_factory):
    """Outcomes of uninterrupted runs, by case."""
    root, known = tmp_path_factory.mktemp("golden"), {}

    def find(case):
        if case not in known:
            drive(config_of(case), root / case)
            known[case] = outcome(root / case)
        return known[case]

    return find


# Killed ----------------------------------------------------------------------------------------------------------


def check_sweep(case, round_, every, environment, golden, tmp_path):
    done = subprocess.run(
        command("sweep", case, tmp_path, round_, every),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert {row["signal"] for row in rows} == {signal.SIGKILL}
    assert all(row["resumed"] for row in rows), [row["event"] for row in rows if not row["resumed"]]
    for row in rows:
        assert row["outcome"] == golden(case), row["event"]
    return rows


@pytest.mark.ci
@pytest.mark.parametrize("case", [pytest.param("relief", marks=pytest.mark.slow), "local"])
def test_killed_in_the_last_round_and_after_it(case, environment, golden, tmp_path):
    rows = check_sweep(case, 2, 4, environment, golden, tmp_path)
    assert len(rows) >= 6 and {row["rounds"] for row in rows} >= {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "relief",
        "local",
        "v3",
        "fedavg, pairs watched",
        "v1, int8 up, bfloat16 down, reachable",
        "relief, epochs, float16, reachable, zero_feature",
    ],
)
def test_killed_at_every_change_of_the_file_system(case, environment, golden, tmp_path):
    rows = check_sweep(case, 0, 1, environment, golden, tmp_path)
    assert len(rows) >= 40
    assert {row["event"] for row in rows} >= {"write", "fsync", "replace"}


@pytest.mark.ci
def test_killed_from_outside_whenever_it_happens_to_be(environment, golden, tmp_path):
    """The driver is a process of its own; the kill comes from this one, after its second round at the earliest."""
    path = tmp_path / "run"
    driver = subprocess.Popen(command("run", "relief", path), cwd=ROOT, env=environment)
    try:
        until = time.monotonic() + 60
        while not (path / "rounds.jsonl").exists() or len((path / "rounds.jsonl").read_bytes().splitlines()) < 2:
            assert driver.poll() is None and time.monotonic() < until, "the driver never got to round 1"
            time.sleep(0.005)
    finally:
        driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert read_run(path).status == "running", "nobody was left to say that it ended"
    assert drive(config_of("relief"), path).status == "done"
    assert outcome(path) == golden("relief")


# Damaged, refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def halfway(tmp_path):
    """A run of three rounds that was stopped after two."""
    path = tmp_path / "run"
    assert drive(config_of("relief"), path, should_stop=after_rounds(2)).status == "interrupted"
    return path


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(halfway, golden):
    newest, older = checkpoint.generations(halfway)
    os.truncate(newest / checkpoint.STATE_FILE, 100)
    setup, folder = reopen(halfway)
    with folder:
        experiment = Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job))
        assert experiment.next_round == 2 and older.name == "round-000001"
        assert any("round-000002" in line for line in experiment.repairs)
        experiment.run()
    assert outcome(halfway) == golden("relief")


def test_a_torn_last_line_is_cut_off_and_computed_again(halfway, golden):
    with (halfway / "rounds.jsonl").open("ab") as ledger:
        ledger.write(b'{"round": 2, "ph')
    drive(config_of("relief"), halfway)
    assert outcome(halfway) == golden("relief")


def test_without_checkpoints_the_run_starts_again(halfway, golden):
    shutil.rmtree(halfway / checkpoint.FOLDER)
    drive(config_of("relief"), halfway)
    assert outcome(halfway) == golden("relief")


def test_other_data_are_refused(halfway):
    change_run(halfway, data_digest="0123456789abcdef" * 4)
    with pytest.raises(UserError, match=r"run: was computed on data 0123456789ab, found \w{12}; resume where the same"):
        reopen(halfway)


def test_the_stored_engine_is_obeyed(tmp_path, golden):
    """`auto` may mean another engine in a later version: what the run was started with counts."""
    path = tmp_path / "run"
    config = config_of("relief", training={"epochs": 1, "lr": 0.01, "engine": "reuse"})
    drive(config, path, should_stop=after_rounds(2))
    run = read_run(path)
    assert run.engine == "reuse"
    change_run(path, config=run.config | {"training": run.config["training"] | {"engine": "auto"}})
    setup, folder = reopen(path)
    folder.close()
    assert setup.engine == setup.job.trainer.engine == "reuse"


def test_an_unknown_engine_is_refused(halfway):
    change_run(halfway, engine="quantum")
    with pytest.raises(UserError, match="engine 'quantum' is unknown to this version; known: naive, reuse, gemm"):
        reopen(halfway)


def test_a_changed_configuration_is_refused(halfway):
    run = read_run(halfway)
    change_run(halfway, config=run.config | {"seed": 7})
    setup, folder = reopen(halfway)
    with (
        folder,
        pytest.raises(UserError, match=r"config_hash is .* expected .*: a resume continues the same computation"),
    ):
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job))


def test_a_program_that_hashes_the_configuration_otherwise_goes_on_where_it_may(halfway, golden, monkeypatch):
    begun_under = read_run(halfway).config_hash
    monkeypatch.setattr("relief_ray.config.experiment.SCHEMA", 2)
    change_run(halfway, source_digest="f" * 64)
    with pytest.raises(UserError, match=r"was begun by another program \(sources ffffffffffff there"):
        reopen(halfway)
    setup, folder = reopen(halfway, other_code=True)
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    assert read_run(halfway).config_hash == begun_under
    assert outcome(halfway) == golden("relief")


def test_a_configuration_of_another_version_names_its_key(halfway):
    run = read_run(halfway)
    change_run(halfway, config=run.config | {"quantisation": 8})
    with pytest.raises(UserError, match=r"run.json: unknown key 'quantisation'"):
        reopen(halfway)


def test_a_second_driver_is_refused_and_harms_nothing(halfway, golden):
    setup, folder = reopen(halfway)
    with folder:
        with pytest.raises(UserError, match=r"in use by process \d+ on .*; expected one writer"):
            reopen(halfway)
        with pytest.raises(UserError, match="in use by process"):
            create(config_of("relief"), halfway)
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    assert outcome(halfway) == golden("relief")


def test_a_finished_run_is_left_alone(tmp_path):
    path = tmp_path / "run"
    drive(config_of("fedavg"), path)
    before = (path / "rounds.jsonl").read_bytes()
    assert drive(config_of("fedavg"), path).status == "done"
    assert (path / "rounds.jsonl").read_bytes() == before


# A round that fails ----------------------------------------------------------------------------------------------


class Failing(SerialExecutor):
    """Fails once: while round 2 is trained, or while it is evaluated after that."""

    def __init__(self, job, in_evaluation):
        super().__init__(job)
        self.in_evaluation, self.armed, self.round = in_evaluation, True, 0

    def train(self, round_, models, tasks, states):
        self.round = round_
        trained = super().train(round_, models, tasks, states)
        self.fail(not self.in_evaluation)
        return trained

    def evaluate(self, models, targets, states, part):
        self.fail(self.in_evaluation)
        return super().evaluate(models, targets, states, part)

    def fail(self, here):
        if here and self.armed and self.round == 2:
            self.armed = False
            raise RoundVoid("round 2: all hosts were lost")


@pytest.mark.ci
@pytest.mark.parametrize("in_evaluation", [False, True])
@pytest.mark.parametrize("case", ["relief", "local"])
def test_a_round_that_failed_is_tried_again_from_committed_state(case, in_evaluation, golden, tmp_path):
    """Also in the same process, where personal state of the failed try must not linger."""
    setup, folder = create(config_of(case), tmp_path / "run")
    with folder:
        experiment = Experiment(setup=setup, folder=folder, executor=Failing(setup.job, in_evaluation))
        with pytest.raises(RoundVoid):
            experiment.run()
        assert folder.run.status == "failed" and experiment.next_round == 2
        assert experiment.run().status == "done"
    assert outcome(tmp_path / "run") == golden(case)


def test_a_stop_saves_what_lies_between_checkpoints(tmp_path):
    config = config_of("local", record={"checkpoint_every": 50}, rounds=3)
    path = tmp_path / "run"
    drive(config, path, should_stop=after_rounds(2))
    assert [p.name for p in checkpoint.generations(path)] == ["round-000002"]
    seen = []
    setup, folder = reopen(path)
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run(lambda r: seen.append(r.round))
    assert seen == [3] and [r.round for r in read_rounds(path)] == [1, 2, 3]


def test_ctrl_c_leaves_a_run_that_says_so_and_resumes(golden, tmp_path):
    def interrupt(record):
        if record.round == 1:
            raise KeyboardInterrupt

    setup, folder = create(config_of("relief"), tmp_path / "run")
    with folder, pytest.raises(KeyboardInterrupt):
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run(interrupt)
    assert read_run(tmp_path / "run").status == "interrupted"
    drive(config_of("relief"), tmp_path / "run")
    assert outcome(tmp_path / "run") == golden("relief")
