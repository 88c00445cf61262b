"""A coordinator that dies again and again: when its run is given up, what is said, and with which exit code."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError, OutOfMemoryError

from actors.runtime import coordinator_client
from actors.runtime.coordinator_client import Deaths, Pulse, follow
from actors.runtime.single_run import Hooks, run_experiment
from actors.terminal.exit_codes import DISK, RAY_LOST, exit_code, report
from relief_ray.records.run_folder import read_run
from relief_ray.support.errors import CoordinatorLost, UserError
from tests.actors.runtime.struck import struck
from tests.actors.runtime.test_launch import new_run, results

DIED = ActorUnavailableError("The actor is dead. Worker exit type: SYSTEM_ERROR", None)
OUT_OF_MEMORY = OutOfMemoryError("Task was killed due to the node running low on memory.")


def test_the_third_death_without_a_round_between_ends_the_run(tmp_path: Path) -> None:
    deaths = Deaths(path=tmp_path)
    deaths.add(-1, DIED)
    deaths.add(-1, DIED)
    for last in (4, 9, 12, 20):
        deaths.add(last, DIED)
    deaths.add(18, DIED)  # rounds that it had committed before were computed again
    with pytest.raises(CoordinatorLost, match=r"given up after round 20: its process died or froze 3 times") as caught:
        deaths.add(20, DIED)
    assert "Ray: SYSTEM_ERROR" in str(caught.value)


def test_a_lack_of_memory_is_told_with_what_needs_less(tmp_path: Path) -> None:
    deaths = Deaths(path=tmp_path, number=2, last=3)
    with pytest.raises(CoordinatorLost, match=r"this node ran low on memory; use fewer hosts \(runtime\.num_hosts\)"):
        deaths.add(3, OUT_OF_MEMORY)


class Silent:
    """A handle whose process Ray never starts anew."""

    class progress:
        @staticmethod
        def remote() -> int:
            return 0

    class run:
        @staticmethod
        def remote(request: object) -> object:
            return request


@pytest.mark.parametrize("error", [GetTimeoutError("180 s"), DIED])
def test_a_process_that_does_not_start_anew_ends_the_run_in_time(tmp_path: Path, monkeypatch, error) -> None:
    now_s = [0.0]

    def get(ref: int, timeout: float) -> None:
        now_s[0] += 1.0
        raise error

    monkeypatch.setattr(coordinator_client.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(coordinator_client.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(coordinator_client.ray, "get", get)
    with pytest.raises(CoordinatorLost, match=r"not started anew within 180 s .*`ray status`"):
        coordinator_client._await(Silent, Deaths(path=tmp_path))


def test_a_process_that_never_answers_ends_the_run_as_one_that_died(tmp_path: Path, monkeypatch) -> None:
    class Mute(Pulse):
        def listen(self, is_over: bool) -> bool:
            self.silent_s += 100.0
            return False

    waits = []
    monkeypatch.setattr(coordinator_client, "Pulse", Mute)
    monkeypatch.setattr(coordinator_client.ray, "wait", lambda refs, timeout: (waits.append(timeout) or [], refs))
    with pytest.raises(
        CoordinatorLost, match=r"did not answer for 180 s; `ray status`.*\n.*\n.*relief-ray resume"
    ) as caught:
        follow(Silent, SimpleNamespace(path=tmp_path), print, lambda: False)
    assert len(waits) == 2 and exit_code(caught.value) == RAY_LOST


@pytest.mark.ci
@pytest.mark.ray
def test_a_coordinator_that_dies_with_every_start_ends_the_run_with_the_line_that_resumes(
    joined, tmp_path: Path, capsys
) -> None:
    def dies(round_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    notes: list[str] = []
    setup, folder = new_run(tmp_path / "run", num_hosts=1), tmp_path / "run"
    with pytest.raises(CoordinatorLost, match="given up before the first round: its process") as caught:
        run_experiment(struck(setup, dies), folder, Hooks(on_note=notes.append))
    assert notes == ["the coordinator's process died; it goes on from the last checkpoint"] * 2
    assert report(caught.value) == exit_code(caught.value) == RAY_LOST
    said = " ".join(capsys.readouterr().err.split())
    assert f"relief-ray resume {folder.resolve()}" in said
    assert "Traceback" not in said and "fault of relief-ray" not in said
    assert run_experiment(setup, folder).status == "done"


@pytest.mark.slow
@pytest.mark.ray
def test_deaths_with_rounds_between_them_do_not_add_up(joined, tmp_path: Path) -> None:
    """Four deaths, each after some more rounds."""
    here, there, notes = tmp_path / "here", tmp_path / "there", []

    def dies(round_: int) -> None:
        mark = there / f"died-{round_}"
        if round_ in (4, 8, 12, 16) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    run_experiment(new_run(here, rounds=18, mode="inline"), here)
    setup = struck(new_run(there, rounds=18, num_hosts=1), dies)
    run = run_experiment(setup, there, Hooks(on_note=notes.append))
    assert len([note for note in notes if "process died" in note]) == 4
    assert run.status == "done" and results(there) == results(here)


@pytest.mark.ci
@pytest.mark.ray
def test_a_full_disk_of_the_coordinator_has_its_exit_code(joined, tmp_path: Path) -> None:
    def full(round_: int) -> None:
        import errno

        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise UserError("run.json: no space left; free some space") from error

    setup = struck(new_run(tmp_path, num_hosts=1), full)
    with pytest.raises(UserError, match="free some space") as caught:
        run_experiment(setup, tmp_path)
    assert exit_code(caught.value) == DISK
    assert read_run(tmp_path).status != "done"
