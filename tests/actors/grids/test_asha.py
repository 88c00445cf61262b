"""ASHA through the real Ray Tune: weak tries end at a rung, the others have the bits that they have without it."""

from dataclasses import replace

import pytest

from actors.grids.scheduler import STOP_FILE, fit
from actors.grids.search import asha
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.loop import Loop
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import Level
from tests.actors.grids.test_scheduler import Log, ticking
from tests.actors.grids.tiny_plans import tiny_grid
from tests.actors.trials import run_alone
from tests.plans import cells_of

pytestmark = pytest.mark.ray
# At the first rate the model learns within six rounds; at the others it stays where it began.
RATES = (3e-2, 1e-9, 2e-9, 3e-9)


def search(out, **settings):
    """Four tries of FedAvg, the good one first."""
    out.mkdir()
    levels = tuple(Level(name=f"lr{rate:g}", settings={"training.lr": rate}) for rate in RATES)
    grid = tiny_grid(methods=("fedavg",), **{
        "rounds": 6, "evaluation.parts": ["validation"], "data.max_windows_per_client": 12, **settings,
    })  # fmt: skip
    cells = cells_of(replace(grid, own={"fedavg": levels}, is_search=True))
    return Plan(kind="grid", out=out, name="tiny", cells=cells, stopping=asha(cells, 2, 3)).write()


def run_open(plan, on_tick=lambda: None):
    log = Log()
    fit(Loop(plan, log, [e for e in plan.look() if e.is_open], ticking(on_tick)), jobs=1)
    return log.ended


@pytest.mark.ci
def test_weak_tries_end_at_the_first_rung_and_a_resume_judges_by_those_before(cluster, tmp_path):
    plan = search(tmp_path / "s")
    stop = plan.out / STOP_FILE

    def stop_after_the_second():
        if [e.status for e in plan.look()].count("stopped") == 1:
            stop.touch()

    run_open(plan, stop_after_the_second)
    first, second, *others = plan.look()
    assert (first.status, second.status) == ("done", "stopped") and {e.status for e in others} <= {"planned", "stopped"}
    stop.unlink()
    assert set(run_open(plan)) >= {e.cell.name for e in others if e.is_open}
    good, *weak = plan.look()
    assert [good.num_rounds, *(e.num_rounds for e in weak)] == [6, 2, 2, 2]
    assert {e.why for e in weak} == {"stopped early by ASHA at round 2"}
    run = read_run(good.folder)
    assert (run.status, run.note, run.num_resumes) == ("done", "", 0), "a pause is no resume"
    alone = replace(plan, out=tmp_path / "alone").look()[0]
    assert run_alone(alone) == "done"
    assert [comparable(r) for r in read_rounds(good.folder)] == [comparable(r) for r in read_rounds(alone.folder)]


@pytest.mark.slow
def test_the_hosts_of_a_trial_outlive_its_pauses(cluster, tmp_path):
    plan = search(tmp_path / "s", **{"runtime.mode": "packed", "runtime.num_hosts": 1})
    run_open(plan)
    assert [e.num_rounds for e in plan.look()] == [6, 2, 2, 2]
    assert [e.status for e in plan.look()] == ["done", "stopped", "stopped", "stopped"]
    assert read_run(plan.look()[0].folder).runtime["mode"] == "packed"
