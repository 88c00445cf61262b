"""What becomes of void and dropped rounds, in real runs in this process whose executor fails where a test says so."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import Tensor

from actors.runtime import coordinator
from actors.runtime.coordinator import Coordinator, RunRequest, after_grace, run_with_retries
from actors.runtime.errors import Interrupted
from actors.terminal.exit_codes import exit_code
from relief_ray.core.federated import RoundVoid
from relief_ray.core.messages import Assignment, ClientState, EvalTarget, Trained
from relief_ray.experiment.experiment import Experiment, ignore, never
from relief_ray.experiment.lifecycle import create
from relief_ray.plugins.blame import naming_users_code
from relief_ray.records.cells import look
from relief_ray.records.checkpoint import generations
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.support.errors import LeftOut, UserCodeFailed, UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of


class Failing:
    """The plain loop, with ``fail`` called before each round that it trains."""

    def __init__(self, plain: SerialExecutor, fail: Callable[[int], None]) -> None:
        self._plain, self._fail = plain, fail

    def train(
        self,
        round_: int,
        models: Mapping[str, Mapping[str, Tensor]],
        tasks: list[Assignment],
        states: Mapping[int, ClientState],
    ) -> Trained:
        self._fail(round_)
        return self._plain.train(round_, models, tasks, states)

    def evaluate(
        self, models: Mapping[str, object], targets: list[EvalTarget], states: Mapping[int, ClientState], part: str
    ) -> Mapping[str, Tensor]:
        return self._plain.evaluate(models, targets, states, part)


def run(
    path: Path,
    fail: Callable[[int], None],
    recover: Callable[[], None] = lambda: None,
    should_stop: Callable[[], bool] = never,
) -> tuple[RunRecord, list]:
    """The run's record, and what the user was told."""
    notes: list[str] = []
    changes = {"rounds": 3, "data": {"name": "dsa_mini", "max_windows_per_client": 4}, "evaluation": {"every": 99}}
    setup, folder = create(config_of("local", record={"checkpoint_every": 50}, **changes), path)
    with folder:
        executor = Failing(SerialExecutor(setup.job), fail)
        experiment = Experiment(setup=setup, folder=folder, executor=executor)
        return run_with_retries(experiment, ignore, should_stop, notes.append, recover), notes


def bits(path: Path) -> list[str]:
    return [r.model_sha256 for r in read_rounds(path)]


@pytest.fixture(scope="module")
def whole(run_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(path, lambda round_: None)[0].status == "done"
    return bits(path)


def test_a_void_round_is_tried_twice_more_after_lost_hosts_were_waited_for(whole, tmp_path) -> None:
    tries, waited = [], []

    def fail(round_: int) -> None:
        tries.append(round_)
        if tries.count(2) <= 2 and round_ == 2:
            raise RoundVoid("round 2: 7 of 8 clients")

    record, notes = run(tmp_path / "run", fail, lambda: waited.append(len(tries)))
    assert record.status == "done" and bits(tmp_path / "run") == whole
    assert tries == [1, 2, 2, 2, 3] and len(waited) == 2
    assert [note[:30] for note in notes] == [f"void, tried again ({i} of 2): rou"[:30] for i in (1, 2)]


def test_a_round_that_stays_void_ends_the_run_and_commits_nothing_of_it(run_cache, tmp_path) -> None:
    tries = []

    def fail(round_: int) -> None:
        tries.append(round_)
        if round_ == 2:
            raise RoundVoid("round 2: 7 of 8 clients")

    with pytest.raises(RoundVoid, match="7 of 8"):
        run(tmp_path / "run", fail)
    assert tries == [1, 2, 2, 2] and [r.round for r in read_rounds(tmp_path / "run")] == [1]


def test_a_round_dropped_by_a_stop_leaves_a_checkpoint_of_the_one_before(whole, tmp_path) -> None:
    """The regular checkpoints are fifty rounds apart: without it a resume would begin again."""

    def fail(round_: int) -> None:
        if round_ == 3:
            raise Interrupted

    record, _ = run(tmp_path / "run", fail)
    assert record.status == "interrupted" and bits(tmp_path / "run") == whole[:2]
    assert [path.name for path in generations(tmp_path / "run")] == ["round-000002"]


VOID = RoundVoid("round 2: 7 of 8 clients", rejected={3: LeftOut(cause="lost", why="its node died")})


@pytest.mark.parametrize("stops", ["while hosts are waited for", "in the second try"])
def test_a_stop_before_a_void_round_was_whole_leaves_its_reason(run_cache, tmp_path, stops) -> None:
    tries, stopping = [], []

    def fail(round_: int) -> None:
        tries.append(round_)
        if tries == [1, 2]:
            raise VOID
        if round_ == 2:
            raise Interrupted

    recover = (lambda: stopping.append(True)) if stops == "while hosts are waited for" else (lambda: None)
    record, _ = run(tmp_path / "run", fail, recover, lambda: bool(stopping))
    assert tries == ([1, 2] if stopping else [1, 2, 2])
    assert record == read_run(tmp_path / "run") and (record.status, record.note) == ("interrupted", str(VOID))
    (left,) = record.left_out
    assert (left.client, left.cause, left.rounds, left.why) == (3, "lost", (2,), "its node died")
    assert [path.name for path in generations(tmp_path / "run")] == ["round-000001"]
    assert (look(tmp_path / "run").status, look(tmp_path / "run").why) == ("interrupted", str(VOID))


def test_a_round_has_a_few_seconds_of_grace_by_default(monkeypatch) -> None:
    """Of the ten within which a command ends."""
    now_s = [time.monotonic()]
    monkeypatch.setattr("actors.runtime.coordinator.time.monotonic", lambda: now_s[0])
    is_over = after_grace(lambda: True)
    assert not is_over()
    now_s[0] += 1.0
    assert not is_over()
    now_s[0] += 4.0
    assert is_over()


@pytest.mark.parametrize("kind", [UserError, RoundVoid, FloatingPointError, UserCodeFailed, KeyError])
def test_an_error_of_a_users_method_ends_a_run_as_in_one_process(kind, tmp_path, monkeypatch) -> None:
    """This file stands for the user's."""

    def theirs(*_: object) -> None:
        raise kind("mine")

    setup = SimpleNamespace(job=SimpleNamespace(num_threads=1))
    monkeypatch.setattr(coordinator.serialization, "get", lambda _: setup)
    monkeypatch.setattr(coordinator, "use_threads", lambda _: None)
    monkeypatch.setattr(coordinator, "run_on_workers", theirs)
    with pytest.raises(Exception, match="mine") as there:
        Coordinator().run(RunRequest(setup=None, path=tmp_path, group=None, options=None))
    with pytest.raises(Exception, match="mine") as here, naming_users_code():
        theirs()
    assert (there.type, exit_code(there.value)) == (here.type, exit_code(here.value))
    assert there.value.__cause__ is not there.value
