"""`relief-ray grid` as a user meets it, as far as it goes without Ray."""

import json
import re
import signal
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from actors.grids.estimate import START_S
from relief_ray.studies.plan import Plan, keep_error
from tests.actors.conftest import SMALL, Invoke, Start
from tests.actors.grids.tiny_plans import tiny_plan, tiny_search
from tests.actors.trials import run_alone
from tests.plans import cells_of
from tune_configs.registry import GRIDS, load_grid


@pytest.mark.ci
def test_a_dry_run_writes_nothing_and_says_where_its_figures_come_from(invoke: Invoke, tmp_path):
    done = invoke("grid", "smoke", "--dry-run", "--out", tmp_path / "g", "--set", "data.max_windows_per_client=5")
    assert done.exit_code == 0, done.output
    assert "12 cells (12 planned), seed-major" in done.stdout
    assert "as fedavg: one timed round" in done.stdout and "in all" in done.stdout
    assert not (tmp_path / "g").exists()


def test_help_names_every_grid(invoke: Invoke):
    names = re.sub(r"\s+", " ", invoke("grid", "--help").stdout).partition("Grids: ")[2].partition(".")[0]
    assert names.split(", ") == list(GRIDS)


def test_a_dry_run_for_a_script_is_one_object(invoke: Invoke, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg", "fedprox"), seeds=(0, 1)).write()
    run_alone(plan.look()[0])
    (line,) = invoke("grid", "resume", tmp_path, "--dry-run", "--json").stdout.splitlines()
    plan = json.loads(line)
    assert (plan["event"], plan["folder"], plan["unknown"]) == ("plan", str(tmp_path), 0)
    done, *todo = plan["cells"]
    assert (done["status"], done["seconds"]) == ("done", None) and [c["status"] for c in todo] == ["planned"] * 3
    assert all(c["seconds"] > 0 and c["bytes"] > 1000 and c["origin"].endswith("1 finished cell") for c in todo)
    assert plan["core_s"] == pytest.approx(sum(c["seconds"] for c in todo))
    assert plan["start_s"] == START_S and plan["wall_s"] == pytest.approx(plan["core_s"] / plan["cores"] + START_S)


def test_a_grid_takes_the_axes_of_run(invoke: Invoke, tmp_path):
    options = ("--strategies", "fedavg,relief", "--seeds", "0,1", "--folds", "0", "--rounds", "1", *SMALL)
    plan = json.loads(invoke("grid", "smoke", *options, "--out", tmp_path, "--dry-run", "--json").stdout)
    names = [cell["cell"].rpartition("-")[0] for cell in plan["cells"]]
    assert names == [f"dsa_mini_held_out-{m}-f0-s{s}" for s in (0, 1) for m in ("fedavg", "relief")]
    assert [cell["planned"] for cell in plan["cells"]] == [1, 1, 1, 1]
    settings = ("--set", "methods=[fedavg, relief]", "--set=seeds=[0, 1]", "--set=folds=[0]", "--set=rounds=1", *SMALL)
    same = json.loads(invoke("grid", "smoke", *settings, "--out", tmp_path, "--dry-run", "--json").stdout)
    assert [cell["cell"] for cell in same["cells"]] == [cell["cell"] for cell in plan["cells"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--strategies", "v1", "--set", "methods=v2"), "--strategies and --set methods=v2: choose the same"),
        (("--rounds", "2", "--set", "rounds=3"), "--rounds and --set rounds=3: choose the same"),
        (("--seeds", "3"), "--seeds 3: could be 3 seeds or seed 3"),
        (("--strategies", "fedavgg"), "fedavgg"),
    ],
)
def test_axes_of_a_grid_that_cannot_be_are_refused(invoke: Invoke, options, message):
    refused = invoke("grid", "smoke", *options, "--dry-run")
    assert refused.exit_code == 2 and message in " ".join(refused.stderr.split())


def test_a_budget_for_a_script_is_json_alone(invoke: Invoke, tmp_path):
    tiny_plan(tmp_path, methods=("fedavg",)).write()
    lines = invoke("grid", "resume", tmp_path, "--budget", "1s", "--json").stdout.splitlines()
    plan, budget, end = map(json.loads, lines)
    assert [plan["event"], budget["event"], end["event"]] == ["plan", "budget", "grid"]
    assert (budget["cells"], budget["begun"], budget["to_do"], budget["budget_s"]) == ([], None, 1, 1.0)


def test_status_lists_every_cell(invoke: Invoke, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg", "fedprox", "relief")).write()
    first, second, _ = plan.look()
    run_alone(first)
    keep_error(second.folder, RuntimeError("broken"))
    done = invoke("grid", "status", tmp_path)
    assert done.exit_code == 0 and "tiny: 1 done, 1 failed, 1 planned of 3 cells" in done.stdout
    assert f"failed      {second.cell.name}  0/3 rounds  RuntimeError: broken" in done.stdout
    (line,) = invoke("grid", "status", tmp_path, "--json").stdout.splitlines()
    assert [c["status"] for c in json.loads(line)["cells"]] == ["done", "failed", "planned"]


def test_resume_of_a_complete_grid_starts_nothing(invoke: Invoke, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    run_alone(plan.look()[0])
    # A killed driver's trials may end their cells after its death.
    (tmp_path / ".tune" / "trials").mkdir(parents=True)
    done = invoke("grid", "resume", tmp_path)
    assert done.exit_code == 0 and "tiny: 1 done of 1 cells" in done.stdout
    assert not (tmp_path / ".tune").exists()


def test_failed_cells_can_be_left_alone(invoke: Invoke, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    keep_error(plan.look()[0].folder, RuntimeError("broken"))
    done = invoke("grid", "resume", tmp_path, "--skip-failed")
    assert done.exit_code == 5 and "1 cells failed; the others are not touched by that" in done.stderr
    assert "relief-ray grid resume" in done.stderr


def test_one_command_at_a_time_runs_a_grid(invoke: Invoke, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",)).write()
    keep_error(plan.look()[0].folder, RuntimeError("broken"))
    with plan.lock():
        done = invoke("grid", "resume", tmp_path, "--skip-failed")
    assert done.exit_code == 2 and "the grid is in use by process" in " ".join(done.stderr.split())


def test_a_budget_in_which_nothing_fits_runs_nothing(invoke: Invoke, tmp_path):
    tiny_plan(tmp_path, methods=("fedavg",), rounds=200).write()
    done = invoke("grid", "resume", tmp_path, "--budget", "0.01s")
    assert done.exit_code == 0 and "0 of 1 cells to do fit; give it more" in done.stdout
    assert "0 done" not in done.stdout and "1 planned of 1 cells" in done.stdout
    assert "Side by side" not in done.stdout


def test_a_search_ends_with_its_own_next_step(invoke: Invoke, tmp_path):
    plan = tiny_search(tmp_path).write()
    for entry in plan.look():
        run_alone(entry)
    done = invoke("grid", "resume", tmp_path)
    assert f"grid freeze {tmp_path}" in done.stdout and "Side by side" not in done.stdout
    frozen = invoke("grid", "freeze", tmp_path, "--out", tmp_path / "t.json")
    assert frozen.exit_code == 0 and "fedprox on dsa_mini, cnn: training.lr=" in frozen.stdout, frozen.output


@pytest.mark.slow
@pytest.mark.ray
def test_a_damaged_cell_does_not_stop_the_others(invoke: Invoke, cluster, tmp_path):
    plan = tiny_plan(tmp_path / "g", methods=("fedavg", "fedprox", "relief")).write()
    damaged, cut, _ = plan.look()
    for entry in (damaged, cut):
        run_alone(entry)
    ledger = damaged.folder / "rounds.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"{]\n" + lines[-1])
    (cut.folder / "rounds.jsonl").write_bytes(b"")
    status = invoke("grid", "status", plan.out)
    assert status.exit_code == 0 and "2 failed, 1 planned of 3 cells" in status.stdout
    assert "line 1 is damaged" in status.stdout and "ends with no round (0 of 3 rounds)" in status.stdout
    resumed = invoke("grid", "resume", plan.out)
    out, err = resumed.stdout, resumed.stderr
    assert resumed.exit_code == 5 and "2 cells failed; the others are not touched" in err, (out, err)
    assert [e.status for e in plan.look()] == ["failed", "failed", "done"]
    assert "internal error" not in out + err and "Traceback" not in out + err
    ledger.write_bytes(b"".join(lines))
    assert "2 done, 1 failed" in invoke("grid", "status", plan.out).stdout


@pytest.mark.ci
@pytest.mark.ray
def test_cells_that_were_not_requested_do_not_run(invoke: Invoke, cluster, tmp_path):
    smoke = ["grid", "smoke", "--out", tmp_path, *SMALL, "--set=data.max_windows_per_client=4", "--set=rounds=1"]
    smoke += ["--set=tracking.enabled=false", "--set=folds=[0]", "--set=seeds=[0]"]
    Plan(kind="grid", out=tmp_path, name="smoke", title="", cells=cells_of(load_grid("smoke"), ["methods=v1"])).write()
    done = invoke(*smoke, "--set=methods=[fedavg]")
    assert done.exit_code == 0 and "smoke: 5 cells, 1 to do" in done.stdout, done.output
    assert f"Go on with  relief-ray grid resume {tmp_path}" in done.stdout
    assert {e.cell.label: e.status for e in Plan.read(tmp_path, kind="grid").look()} == {
        "fedavg": "done",
        "v1": "planned",
    }


@pytest.mark.slow
@pytest.mark.ray
def test_a_budget_in_which_a_round_fits_begins_a_cell(start: Start, tmp_path):
    plan = tiny_plan(tmp_path, methods=("fedavg",), rounds=100_000).write()
    process = start("grid", "resume", tmp_path, "--budget", "45s")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, (out, err)
    assert "0 of 1 cells to do fit; dsa_mini-fedavg-s0" in out and "is begun, a resume goes on with it" in out
    (entry,) = plan.look()
    assert entry.status == "interrupted" and 0 < entry.num_rounds < 100_000
    assert "Side by side" not in out and "Go on with  relief-ray grid resume" in out


@pytest.mark.slow
@pytest.mark.ray
def test_the_dashboard_opens_with_its_token_and_names_no_finished_cell(start: Start, tmp_path):
    """A process and its workers serve one cell after the other, and Ray never renames them."""
    hosts = {"runtime.mode": "packed", "runtime.num_hosts": 1}
    tiny_plan(tmp_path, methods=("fedavg",), rounds=100_000, **hosts).write()
    process = start("grid", "resume", tmp_path, "--dashboard")
    assert process.stdout is not None
    said = next(line for line in process.stdout if line.startswith("dashboard: "))
    url, token = re.fullmatch(r"dashboard: (http://\S+) \(its token: (\w+)\)\n", said).groups()
    request = urllib.request.Request(f"{url}/api/v0/actors?detail=true", headers={"Authorization": f"Bearer {token}"})
    until, shown = time.monotonic() + 90, ""
    names: set[str] = set()
    while len(names) < 2:
        assert time.monotonic() < until, shown[-2000:]
        time.sleep(0.5)
        with suppress(urllib.error.URLError):
            shown = urllib.request.urlopen(request, timeout=10).read().decode()
        names = set(re.findall(r'"repr_name": "([^"]+)"', shown))
    (cell,) = re.findall(r'"class_name": "tiny/cell".*?"repr_name": "([^"]+)"', shown)
    assert re.fullmatch(r"tiny/process-\d+", cell) and names == {cell, f"{cell}/host-0"}
    with pytest.raises(urllib.error.HTTPError, match="Unauthorized"):
        urllib.request.urlopen(f"{url}/api/v0/actors", timeout=10)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smok"], "did you mean 'smoke'"),
        (["resume"], "Missing argument 'DIR|URI'"),
        (["status"], "Missing argument 'DIR'"),
        (["smoke", "elsewhere"], "extra argument(s) (elsewhere)"),
        (["smoke", "--budget", "soon"], "expected a positive time such as 8h"),
        (["smoke", "--set", "methods=[]"], "expected"),
        (["smoke", "--set", "folds=[9]"], "expected"),
    ],
)
def test_what_is_wrong_is_named(invoke: Invoke, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = invoke("grid", *words)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split()), done.output
    assert not list(tmp_path.iterdir())


SEARCHED = """from dataclasses import replace
from tune_configs.registry import GRIDS
def grid():
    return replace(GRIDS["search_lr"], name="mine", claims="own.yaml")
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search_lr", "--search", "optuna", "--claims", "c.yaml"], "--claims c.yaml: --search optuna opens no test"),
        (["mine.py", "--search", "optuna"], "grid mine: claims = own.yaml: --search optuna opens no test part"),
        (["search_lr", "--search", "optuna", "--skip-unknown"], "--skip-unknown: is not read by --search optuna"),
        (["search_lr", "--seed", "0"], "--seed 0: is read by --search optuna alone"),
    ],
)
def test_options_that_a_search_or_its_lack_would_ignore_are_refused(
    invoke: Invoke, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SEARCHED)
    done = invoke("grid", *words, "--dry-run")
    assert done.exit_code == 2 and message in " ".join(done.stderr.split()), done.output
    assert not (tmp_path / "runs").exists()


def test_a_resume_does_not_change_what_is_computed(invoke: Invoke, tmp_path):
    tiny_plan(tmp_path).write()
    done = invoke("grid", "resume", tmp_path, "--set", "rounds=5")
    assert done.exit_code == 2 and "a resume may only change" in done.stderr
