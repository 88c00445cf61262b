"""Cells through the real Ray Tune: order, reused processes and hosts, one cell's failure, the same bits."""

import json
import os
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actors.grids.places import bundles_of
from actors.grids.scheduler import STOP_FILE, fit
from actors.runtime.placement import Nodes
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.loop import Loop
from relief_ray.studies.progress import Callback
from tests.actors.grids.tiny_plans import tiny_grid, tiny_plan
from tests.actors.trials import run_alone
from tests.plans import cells_of

pytestmark = pytest.mark.ray


class Log(Callback):
    """Remembers what a loop says, and does something when a cell begins and many times a second."""

    def __init__(self, on_begun=None):
        self.begun, self.ended, self.notes, self._on_begun = [], {}, [], on_begun

    def begin(self, cell, text, done):
        self.begun.append(cell.name)
        if self._on_begun:
            self._on_begun(cell.name)

    def end(self, cell, end):
        self.ended[cell.name] = end.why

    def note(self, text):
        self.notes.append(text)


def ticking(tick):
    """A stop that is never asked for; ``tick`` is called with each question."""
    return lambda: bool(tick() and False)


def results(out, cells):
    return [[comparable(r) for r in read_rounds(out / cell.name)] for cell in cells]


def run_all(plan, log, tick=lambda: None):
    fit(Loop(plan, log, [e for e in plan.look() if e.status != "done"], ticking(tick)))


@pytest.mark.ci
def test_a_grid_of_a_fleet_of_other_types_is_what_runs_alone_are(cluster, tmp_path):
    hub, phone = {"tops": 21, "active_power_w": 15, "count": 1}, {"tops": 5, "active_power_w": 4, "sensors": "acc"}
    fleet = {"fleet.types": {"hub": hub, "phone": phone}}
    plan, alone = (tiny_plan(tmp_path / name, **fleet).write() for name in ("tune", "alone"))
    run_all(plan, Log())
    assert {run_alone(e) for e in alone.look()} == {"done"}
    assert results(alone.out, alone.cells) == results(plan.out, plan.cells)
    clients = read_run(plan.look()[0].folder).fleet["clients"]
    assert [c["device"] for c in clients] == ["hub"] + ["phone"] * (len(clients) - 1)


@pytest.mark.ci
def test_a_grid_with_a_failing_cell(cluster, tmp_path):
    plan = tiny_plan(tmp_path / "tune", seeds=(0, 1)).write()
    # Its one timed client is not in the data: the cell fails on its own, wherever it runs.
    bad = cells_of(
        tiny_grid(
            methods=("full_only",),
            seeds=(0,),
            **{"fleet.types": {"A": {"sensors": ["acc"]}, "C": {"sensors": ["mag"]}}},
        )
    )
    mixed = replace(plan, cells=(plan.cells[0], *bad, *plan.cells[1:])).write()
    log = Log()
    run_all(mixed, log)
    names = [cell.name for cell in mixed.cells]
    assert sorted(log.begun) == sorted(names) and set(log.ended) == set(names)
    assert log.notes[0] == "one node: a process for each cell"
    assert all(abs(log.begun.index(name) - i) <= 2 for i, name in enumerate(names)), "not in order"
    entries = {e.cell.name: e for e in mixed.look()}
    failed = entries[bad[0].name]
    assert failed.status == "failed" and "full_only: no client of this fleet owns all modalities" in failed.why
    assert [e.status for e in plan.look()] == ["done"] * 4
    alone = tiny_plan(tmp_path / "alone", seeds=(0, 1)).write()
    assert {run_alone(e) for e in alone.look()} == {"done"}
    assert results(alone.out, alone.cells) == results(plan.out, plan.cells)
    assert not (plan.out / ".tune").exists()


def parent_of(process):
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def hosts():
    """Processes of hosts on this process's cluster, not on another one of the machine.

    A child that a host has just forked still goes by its parent's name and is none.
    """
    pids = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            raylet = process.parent / str(parent_of(process))
            is_host = (process / "cmdline").read_bytes().startswith(b"ray::ClientWorker")
            if is_host and (raylet / "comm").read_text().strip() == "raylet" and parent_of(raylet) == os.getpid():
                pids.add(process.name)
    return pids


@pytest.mark.slow
def test_a_trials_process_takes_what_is_reserved_for_it(cluster, tmp_path):
    plan = tiny_plan(tmp_path, methods=("relief",), **{"runtime.mode": "packed", "runtime.num_hosts": 1}).write()
    (cell,) = plan.look()
    taken = [0]

    def look(name):
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::tiny/cell"):
                    taken.append(process.memory_full_info().uss)

    run_all(plan, Log(look))
    reserved = bundles_of(cell.cell.config, Nodes(each=({"CPU": 2.0},), here={"CPU": 2.0}))[0]["memory"]
    assert 0.6 * reserved < max(taken) < reserved, (max(taken), reserved)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["packed", "actors"])
def test_hosts_of_a_trial_lie_in_its_bundles_and_stay_for_the_next_cell(cluster, tmp_path, mode):
    plan = tiny_plan(tmp_path, methods=("fedavg", "relief"), **{"runtime.mode": mode}).write()
    pids, others = defaultdict(set), hosts()

    def look(name):
        pids[name] |= hosts() - others

    run_all(plan, Log(look))
    assert [e.status for e in plan.look()] == ["done", "done"]
    runtimes = [read_run(e.folder).runtime for e in plan.look()]
    assert [f["mode"] for f in runtimes] == [mode] * 2
    (num_hosts,) = {f["num_hosts"] for f in runtimes}
    assert num_hosts == 8 if mode == "actors" else 1 < num_hosts < 8
    # The second cell began with the hosts of the first still there, and needed no others.
    assert len(pids[plan.cells[1].name]) == num_hosts


@pytest.mark.slow
def test_a_trial_whose_process_is_killed_is_tried_again_from_its_checkpoint(cluster, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",), rounds=60).write()
    (entry,) = plan.look()
    killed = []

    def tick():
        done = len(read_rounds(entry.folder)) if (entry.folder / "rounds.jsonl").exists() else 0
        if done >= 5 and not killed:
            os.kill(json.loads((entry.folder / "driver.lock").read_text())["pid"], signal.SIGKILL)
            killed.append(done)

    run_all(plan, Log(), tick)
    (after,) = plan.look()
    assert killed and after.status == "done" and read_run(entry.folder).num_resumes == 1


@pytest.mark.slow
def test_a_stop_ends_cells_between_rounds(cluster, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",), seeds=(0, 1, 2, 3), rounds=400).write()
    stop = plan.out / STOP_FILE

    def tick():
        if any(e.num_rounds > 1 for e in plan.look()):
            stop.touch()

    run_all(plan, Log(), tick)
    entries = plan.look()
    assert {e.status for e in entries} <= {"planned", "interrupted"} and 0 < sum(
        e.num_rounds for e in entries
    ) < 4 * 400
    assert "interrupted" in {read_run(e.folder).status for e in entries if e.num_rounds}
