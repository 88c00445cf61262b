"""Whole runs on the packaged data: the same records wherever they run, and whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from actors.grids import scheduler
from actors.launch import OnRay
from actors.runtime.coordinator import after_grace
from actors.runtime.gauges import Gauges
from actors.runtime.single_run import Hooks, _rounds_are_here, choose_mode, local_session, run_experiment
from actors.runtime.warm_pool import WorkerCache
from relief_ray.config.experiment import parse
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.experiment.experiment import ignore
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import prepare
from relief_ray.records.checkpoint import generations
from relief_ray.records.run_folder import RunFolder, read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.loop import Computer, Loop, compute
from relief_ray.studies.progress import Callback
from relief_ray.studies.request import Request, plan_of
from relief_ray.support.errors import UserError
from tests.actors.conftest import hear_signals
from tests.own import METHOD

ROOT = Path(__file__).parents[3]
CONFIG = {
    "strategy": "relief",
    "rounds": 4,
    "data": {"name": "dsa_mini", "max_windows_per_client": 12},
    "training": {"epochs": 1},
    "backbone": {"conv1": 2, "conv2": 2, "steps": 4, "fusion": 8},
    "evaluation": {"every": 2},
    "record": {"checkpoint_every": 2},
    "runtime": {"mode": "packed", "num_hosts": 2},
}


def new_run(folder, rounds=4, **runtime):
    config = parse(CONFIG | {"rounds": rounds, "runtime": {**CONFIG["runtime"], **runtime}})
    setup, opened = create(config, folder)
    opened.close()
    return setup


def results(folder):
    return [comparable(r) for r in read_rounds(folder)]


def driver(folder):
    """The process that computes the run."""
    return json.loads((folder / "driver.lock").read_text())["pid"]


class AtFirstRound:
    """A ``should_stop`` that strikes once, as soon as the ledger, as the caller of a run reads it, has a round."""

    def __init__(self, folder, strike):
        self.folder, self.strike, self.pid, self.since_s = folder, strike, None, None

    def __call__(self):
        if self.pid is None and read_rounds(self.folder):
            self.pid, self.since_s = driver(self.folder), time.monotonic()
            assert self.pid != os.getpid(), "the rounds are in this process"
            os.kill(self.pid, self.strike)
        return False


class StopAtFirstRound(AtFirstRound):
    """The same, and a stop is asked for."""

    def __call__(self):
        super().__call__()
        return self.pid is not None


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """The run without Ray: four rounds, the first is the bootstrap."""
    folder = tmp_path_factory.mktemp("inline")
    run = run_experiment(new_run(folder, mode="inline"), folder)
    assert run.status == "done" and run.runtime == {"mode": "inline"}
    assert [r.round for r in read_rounds(folder)] == [1, 2, 3, 4]
    return results(folder)


@pytest.mark.parametrize(
    ("mode", "clients", "placement", "expected"),
    [
        ("auto", 8, "auto", "actors"),
        ("auto", 10, "auto", "actors"),
        ("auto", 11, "auto", "packed"),
        ("auto", 50, "typed", "actors"),
        ("inline", 8, "auto", "inline"),
        ("packed", 8, "auto", "packed"),
    ],
)
def test_mode(mode, clients, placement, expected):
    assert choose_mode(RuntimeConfig(mode=mode, placement=placement), clients) == expected


@pytest.mark.parametrize("mode", ["packed", "inline"])
def test_types_are_refused_where_any_client_runs_anywhere(mode):
    with pytest.raises(UserError, match=rf"placement = 'typed' with mode = '{mode}'.*set runtime.mode=actors"):
        parse({"runtime": {"mode": mode, "placement": "typed"}})


def test_clients_that_share_steps_share_hosts():
    assert choose_mode(RuntimeConfig(), 8, stack=2) == "packed"


def test_our_own_node_plays_every_device_of_the_fleet():
    options = local_session(prepare(parse(CONFIG)), Path("runs/a b"))
    assert options.address is None and options.resume == "relief-ray resume 'runs/a b'"
    assert options.resources == {"type_a": 3.0, "type_b": 3.0, "type_c": 2.0}


def test_a_grace_period_ends_some_time_after_the_request_to_stop():
    requests = []
    is_over = after_grace(lambda: bool(requests), grace_s=0.2)
    assert not is_over()
    requests.append(True)
    assert not is_over()
    time.sleep(0.25)
    assert is_over()


@pytest.mark.parametrize(
    ("mode", "owns", "strategy", "expected"),
    [
        ("packed", True, "relief", True),
        ("packed", False, "relief", False),
        ("actors", True, "relief", False),
        ("packed", True, "own", False),
    ],
)
def test_rounds_are_in_this_process_where_nothing_speaks_for_another(
    write, monkeypatch, mode, owns, strategy, expected
):
    """Another one is for clusters that outlive this process, for actors, and for code that may end its process."""
    monkeypatch.setattr("actors.runtime.single_run.owns_cluster", lambda: owns)
    config = parse(CONFIG | {"strategy": f"{write(METHOD)}:Mine" if strategy == "own" else strategy})
    assert _rounds_are_here(replace(prepare(parse(CONFIG)), config=config), RuntimeConfig(mode=mode)) == expected


@pytest.mark.ci
@pytest.mark.ray
def test_a_packed_run_on_a_cluster_of_its_own_has_no_coordinator_and_shows_its_gauges(
    cluster, tmp_path, inline, monkeypatch
):
    shown, drivers = [], set()
    monkeypatch.setattr(Gauges, "show", lambda gauges, record, peak_mib: shown.append((record.round, peak_mib > 50)))
    watch = Hooks(should_stop=lambda: bool(drivers.add(driver(tmp_path))))
    assert run_experiment(new_run(tmp_path, num_hosts=1), tmp_path, watch).status == "done"
    assert results(tmp_path) == inline and drivers == {os.getpid()}
    assert shown == [(round_, True) for round_ in range(1, 5)]


@pytest.mark.ci
@pytest.mark.ray
def test_a_coordinator_killed_in_mid_run_goes_on_with_the_same_bits(joined, tmp_path):
    """Sixty rounds of milliseconds: still under way when the first of them is read."""
    notes, here, there = [], tmp_path / "here", tmp_path / "there"
    run_experiment(new_run(here, rounds=60, mode="inline"), here)
    setup, kill = new_run(there, rounds=60, num_hosts=1), AtFirstRound(there, signal.SIGKILL)
    run = run_experiment(setup, there, Hooks(on_note=notes.append, should_stop=kill))
    assert kill.pid not in (None, os.getpid())
    assert any("coordinator" in note for note in notes)
    assert run.status == "done" and results(there) == results(here)


@pytest.mark.slow
@pytest.mark.ray
def test_a_loop_hears_each_round_once_though_the_coordinator_is_killed(joined, tmp_path):
    """It reads the ledger, of which the new process drops rounds that it computes again."""
    seen, killed = [], []

    class Killer(Callback):
        def round(self, cell, record):
            seen.append(record.round)
            if record.round >= 3 and not killed:
                killed.append(driver(plan.look()[0].folder))
                os.kill(killed[0], signal.SIGKILL)

    values = CONFIG | {"rounds": 60, "runtime": {**CONFIG["runtime"], "num_hosts": 1}}
    plan = plan_of(Request(target=values, on="ray"), tmp_path).write()
    with (on_ray := OnRay()).session:
        compute(plan, on_ray.carry_out, Killer(), plan.look())
    assert killed and killed[0] != os.getpid()
    assert seen == list(range(1, 61)) == list(read_rounds(plan.look()[0].folder).numbers)


@pytest.mark.parametrize(("kind", "jobs", "num_todo", "is_tune"), [
    ("run", 2, 2, True), ("run", None, 2, True), ("run", 2, 1, False), ("run", 1, 2, False), ("grid", 1, 1, True),
])  # fmt: skip
def test_several_at_a_time_have_the_dashboard_and_the_ear_of_the_one_who_asked(
    kind, jobs, num_todo, is_tune, tmp_path, monkeypatch
):
    told = []
    monkeypatch.setattr(scheduler, "side_by_side", lambda loop, jobs, **how: told.append((jobs, how)))
    monkeypatch.setattr(Computer, "carry_out", lambda computer, loop, jobs, other_code: told.append(loop))
    plan = replace(plan_of(Request(target=CONFIG, seeds=range(num_todo)), tmp_path), kind=kind)
    loop = Loop(plan, Callback(), plan.look())
    OnRay(dashboard=True, lost=told.append).carry_out(loop, jobs, other_code=True)
    how = {"dashboard": True, "other_code": True, "lost": told.append}
    assert told == [(jobs, how) if is_tune else loop]


@pytest.mark.slow
@pytest.mark.ray
def test_a_frozen_coordinator_is_ended_and_goes_on_with_the_same_bits(joined, tmp_path, monkeypatch):
    monkeypatch.setattr("actors.runtime.coordinator_client._SILENT_S", 3.0)
    notes, here, there = [], tmp_path / "here", tmp_path / "there"
    run_experiment(new_run(here, rounds=60, mode="inline"), here)
    setup, freeze = new_run(there, rounds=60, num_hosts=1), AtFirstRound(there, signal.SIGSTOP)
    run = run_experiment(setup, there, Hooks(on_note=notes.append, should_stop=freeze))
    assert freeze.pid not in (None, os.getpid()) and not alive([freeze.pid])
    assert any("has not answered for 3 s: its process was ended; it goes on" in note for note in notes), notes
    assert run.status == "done" and results(there) == results(here)


@pytest.mark.slow
@pytest.mark.ray
def test_a_stop_does_not_wait_for_a_frozen_coordinator(joined, tmp_path):
    freeze = StopAtFirstRound(tmp_path, signal.SIGSTOP)
    run = run_experiment(new_run(tmp_path, rounds=5000, num_hosts=1), tmp_path, Hooks(should_stop=freeze))
    assert time.monotonic() - freeze.since_s < 10.0
    assert run.status == "interrupted" == read_run(tmp_path).status
    assert read_rounds(tmp_path)


class Runs:
    """Runs one experiment after the other with one ``WorkerCache``; ``pids``: of its hosts after each."""

    def __init__(self, worker_cache, folder, expected):
        self.worker_cache, self.folder, self.expected, self.pids = worker_cache, folder, expected, []

    def __call__(self, name, **runtime):
        worker_cache, folder, notes = self.worker_cache, self.folder / name, []
        run = run_experiment(new_run(folder, **runtime), folder, Hooks(on_note=notes.append), worker_cache)
        assert run.status == "done" and results(folder) == self.expected
        assert notes == []
        options, types, *_ = worker_cache._needs
        group = worker_cache.workers(prepare(parse(CONFIG)).job, options, types)
        self.pids.append([i.pid for i in ray.get([handle.hello.remote() for handle in group.handles])])


@pytest.mark.ci
@pytest.mark.ray
def test_processes_stay_for_the_next_run_unless_it_needs_others(joined, tmp_path, inline):
    with closing(WorkerCache()) as worker_cache:
        next_run = Runs(worker_cache, tmp_path, inline)
        next_run("first")
        coordinator = worker_cache.coordinator()
        next_run("second")
        assert next_run.pids[1] == next_run.pids[0] and worker_cache.coordinator() is coordinator
        next_run("third", num_hosts=1)
        assert not set(next_run.pids[2]) & set(next_run.pids[1]) and not wait_until_gone(next_run.pids[1])
        assert worker_cache.coordinator() is coordinator, "a coordinator serves any hosts"
    assert not wait_until_gone(next_run.pids[2])


@pytest.mark.slow
@pytest.mark.ray
def test_hosts_are_replaced_where_one_of_them_died(cluster, tmp_path, inline):
    """Ray may take a minute to notice that a host which it is restarting is no longer needed."""
    with closing(WorkerCache()) as worker_cache:
        next_run = Runs(worker_cache, tmp_path, inline)
        next_run("first", num_hosts=1)
        os.kill(next_run.pids[0][0], signal.SIGKILL)
        next_run("second", num_hosts=1)
        assert next_run.pids[1] != next_run.pids[0]
    assert not wait_until_gone(next_run.pids[1])


@pytest.fixture(scope="module")
def worker_cache(cluster):
    """Processes that one test leaves for the next; a run that does not finish ends them."""
    with closing(WorkerCache()) as kept:
        yield kept


@pytest.mark.ci
@pytest.mark.ray
def test_a_stopped_run_is_resumed_with_the_same_bits(worker_cache, tmp_path, inline):
    seen = []
    watch = Hooks(on_round=lambda r: seen.append(r.round), should_stop=lambda: 1 in seen)
    assert run_experiment(new_run(tmp_path, num_hosts=1), tmp_path, watch).status == "interrupted"
    assert seen == [1] and read_run(tmp_path).status == "interrupted"
    # Round 1 has no checkpoint of its own by configuration; stopping made one.
    assert generations(tmp_path)[0].name == "round-000001"
    setup, folder = reopen(tmp_path)
    folder.close()
    run = run_experiment(setup, tmp_path, Hooks(on_round=ignore), worker_cache)
    assert run.status == "done" and results(tmp_path) == inline
    assert (run.runtime["mode"], run.runtime["num_hosts"]) == ("packed", 1)


@pytest.mark.ci
@pytest.mark.ray
def test_repairs_are_reported_once(worker_cache, tmp_path, inline):
    notes = []
    stopped = Hooks(on_round=lambda r: seen.append(r.round), should_stop=lambda: 1 in seen)
    seen = []
    assert run_experiment(new_run(tmp_path, mode="inline"), tmp_path, stopped).status == "interrupted"
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "pha')
    setup = prepare(parse(CONFIG | {"runtime": {**CONFIG["runtime"], "num_hosts": 1}}))
    run = run_experiment(setup, tmp_path, Hooks(on_note=notes.append), worker_cache)
    assert run.status == "done" and results(tmp_path) == inline
    (note,) = notes
    assert note.startswith("repaired: ")


@pytest.mark.ci
@pytest.mark.ray
def test_an_error_of_the_coordinator_is_raised_here_unchanged(joined, worker_cache, tmp_path):
    setup = new_run(tmp_path, num_hosts=1)
    with RunFolder.resume(tmp_path), pytest.raises(UserError, match=f"is in use by process {os.getpid()} "):
        run_experiment(setup, tmp_path, worker_cache=worker_cache)


# A run with a Ray session of its own, which has to leave nothing behind: no process, no folder of sockets, no token.
CHILD = """
import json, os, sys
from pathlib import Path

import ray

from actors import launch
from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.signals import StopSignals
from relief_ray.config.experiment import parse
from relief_ray.experiment.lifecycle import create
from relief_ray.records.run_folder import read_rounds

session_folders = set()

def look():
    if not session_folders and ray.is_initialized() and read_rounds(folder):
        session_folders.add(Path(ray._private.worker._global_node.get_temp_dir_path()))
        offered = ray.cluster_resources()
        assert {kind: offered["type_" + kind] for kind in "abc"} == {"a": 3.0, "b": 3.0, "c": 2.0}, offered
        with ray_session(SessionOptions()):
            pass
        assert ray.is_initialized(), "a session inside another one joins it and leaves it running"

folder = Path(sys.argv[1])
setup, opened = create(parse(json.loads(sys.argv[2])), folder)
opened.close()
with StopSignals("") as stop:
    def should_stop():
        look()
        return stop.requested()

    if sys.argv[3] == "separate":
        launch.owns_cluster = lambda: False  # as on one that was up before: with a coordinator
    run = launch.run_experiment(setup, folder, launch.Hooks(should_stop=should_stop))
assert not ray.is_initialized()
assert session_folders and not any(path.exists() for path in session_folders)
assert not (Path(os.environ["HOME"]) / ".ray").exists()
print(run.status)
sys.exit(stop.code)
"""


def descendants(pid):
    """Process ids below ``pid``."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(text.rpartition(")")[2].split()[1])
    family = {pid}
    while more := {p for p, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {pid}


def alive(pids):
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        running += [pid] if state != "Z" else []
    return running


def wait_until_gone(pids, seconds=10.0):
    """Those that are still there after that time."""
    until = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.05)
    return alive(pids)


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.ci
@pytest.mark.ray
@pytest.mark.parametrize(
    ("number", "code", "where", "everybody"),
    [
        # As systemd and Slurm do; `timeout` signals a process group, which is no more than that.
        pytest.param(signal.SIGTERM, 143, "here", True, id="sigterm to all processes"),
        pytest.param(signal.SIGHUP, 129, "separate", True, id="sighup to all processes", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, "here", False, id="ctrl-c", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "separate", False, id="sigterm", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_run_cleanly_and_leaves_nothing_behind(tmp_path, number, code, where, everybody):
    config = json.dumps(CONFIG | {"rounds": 100_000, "runtime": {"mode": "packed", "num_hosts": 1}})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = clean | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "run"), config, where]
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=hear_signals,
    )  # fmt: skip
    try:
        assert wait_for(
            lambda: (tmp_path / "run/rounds.jsonl").is_file() and len(read_rounds(tmp_path / "run")) > 2, 90
        )
        family = descendants(child.pid)
        began = time.monotonic()
        for pid in (child.pid, *(family if everybody else ())):
            os.kill(pid, number)
        output, errors = child.communicate(timeout=30)
        assert child.returncode == code, errors
        assert output.split() == ["interrupted"] and "Traceback" not in errors
        assert errors.splitlines() == ["stopping after this round, within 10 s; press Ctrl-C again to stop at once"]
        assert time.monotonic() - began < 15
    finally:
        child.kill()
        child.wait()
    assert len(family) > 3
    assert wait_for(lambda: not alive(family), 10), alive(family)
    rounds = read_rounds(tmp_path / "run")
    assert generations(tmp_path / "run")[0].name.endswith(f"{rounds[-1].round:06d}")
