"""`--mirror URI` and `resume URI` as a user meets them: whatever becomes of the machine, the copy is gone on with."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.records.sync.mirror import Mirror
from relief_ray.records.sync.sender import Senders
from relief_ray.studies.plan import Plan
from tests.actors.conftest import SMALL, Invoke, Start
from tests.actors.grids.tiny_plans import tiny_plan
from tests.actors.trials import run_alone
from tests.sealed import change_run

RUN = ["run", "quick", *SMALL, "--strategies=relief,fedavg"]


def rounds_in(folder: Path) -> dict[str, list[object]]:
    return {path.parent.name: [comparable(r) for r in read_rounds(path.parent)] for path in folder.glob("*/run.json")}


@pytest.mark.ci
def test_a_copy_becomes_a_folder_that_a_resume_completes_to_the_same_bits(invoke: Invoke, tmp_path):
    here, copy, back = tmp_path / "here", tmp_path / "copy", tmp_path / "back"
    done = invoke(*RUN, "--out", here, "--mirror", f"file://{copy}")
    assert done.exit_code == 0 and f"mirror file://{copy}: up to date" in done.output, done.output
    assert rounds_in(copy) == rounds_in(here)
    # The machine is lost in the middle of the second run, and with it what this folder had.
    shutil.rmtree(copy / "fedavg-s0" / "checkpoints" / "round-000002")
    lines = (copy / "fedavg-s0" / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "fedavg-s0" / "rounds.jsonl").write_bytes(b"".join(lines[:1]))
    change_run(copy / "fedavg-s0", status="running")
    expected = rounds_in(here)
    shutil.rmtree(here)

    resumed = invoke("resume", f"file://{copy}", "--out", back)
    assert resumed.exit_code == 0, resumed.output
    assert "fetched 2 runs (" in resumed.stderr and f"from file://{copy}, checked; records in {back}" in resumed.stderr
    assert rounds_in(back) == expected == rounds_in(copy), "and it is kept up to date from then on"
    assert read_run(back / "fedavg-s0").num_resumes == 1 and read_run(back / "relief-s0").num_resumes == 0

    again = invoke("resume", f"file://{copy}", "--out", back)
    assert again.exit_code == 2 and "exists already" in again.stderr
    assert invoke("resume", back, "--out", back).exit_code == 2


@pytest.mark.ci
def test_a_single_run_goes_on_into_its_place_in_the_copy(invoke: Invoke, tmp_path):
    here, copy = tmp_path / "here", tmp_path / "copy"
    assert invoke(*RUN, "--out", here, "--mirror", f"file://{copy}").exit_code == 0
    before = sorted(path.relative_to(copy) for path in copy.rglob("*"))
    resumed = invoke("resume", here / "fedavg-s0")
    assert resumed.exit_code == 0 and "up to date" in resumed.output, resumed.output
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == before


@pytest.mark.ci
def test_a_store_that_stays_away_costs_no_run_but_the_end_says_so(invoke: Invoke, tmp_path, monkeypatch):
    monkeypatch.setattr(Mirror, "patience_s", 0.1)
    (tmp_path / "file").touch()
    uri = f"file://{tmp_path}/file/copy"
    done = invoke(*RUN, "--out", tmp_path / "here", "--mirror", uri)
    assert done.exit_code == 8, done.output
    assert done.output.count(f"mirror {uri}: failed (NotADirectoryError") == 1
    assert f"send the rest: relief-ray resume {tmp_path / 'here'}" in done.stderr
    assert {len(rounds) for rounds in rounds_in(tmp_path / "here").values()} == {2}
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    resumed = invoke("resume", tmp_path / "here")
    assert resumed.exit_code == 0 and rounds_in(tmp_path / "file" / "copy") == rounds_in(tmp_path / "here")


def test_a_wrong_address_is_refused_before_anything_is_computed(invoke: Invoke, tmp_path):
    refused = invoke(*RUN, "--out", tmp_path / "here", "--mirror", "s4://bucket")
    assert refused.exit_code == 2 and "runtime.mirror = 's4://bucket'" in refused.stderr
    assert not list((tmp_path / "here").glob("*/run.json"))


def test_credentials_in_an_address_are_not_kept_and_are_wanted_again(invoke: Invoke, tmp_path):
    tiny_plan(tmp_path / "here", **{"runtime.mirror": "s3://key:word@bucket/x"}).write()
    assert "word" not in (tmp_path / "here" / "plan.json").read_text()
    refused = invoke("grid", "resume", tmp_path / "here")
    assert refused.exit_code == 2, refused.output
    assert "credentials of runtime.mirror = s3://***@bucket/x are not kept" in " ".join(refused.stderr.split())


@pytest.mark.ci
@pytest.mark.ray
def test_a_grid_goes_on_from_its_copy(invoke: Invoke, cluster, tmp_path):
    plan = tiny_plan(tmp_path / "here", **{"runtime.mirror": f"file://{tmp_path}/copy"}).write()
    first, second = plan.look()
    assert run_alone(first) == "done"
    senders = Senders([Mirror(plan.out, None, f"file://{tmp_path}/copy")], print)
    senders.finish()
    assert not senders.behind
    resumed = invoke("grid", "resume", f"file://{tmp_path}/copy", "--out", tmp_path / "back")
    assert resumed.exit_code == 0 and "tiny: 2 done of 2 cells" in resumed.stdout, resumed.output
    assert run_alone(second) == "done"
    assert rounds_in(tmp_path / "back") == rounds_in(tmp_path / "here") == rounds_in(tmp_path / "copy")


@pytest.mark.slow
@pytest.mark.ray
def test_a_grid_whose_machine_is_lost_three_times_ends_with_the_same_bits(start: Start, tmp_path):
    """SIGKILL of the driver while it sends, all of its folder gone, and the copy gone on with elsewhere."""
    short, copy = ["--set=rounds=6", "--set=tracking.enabled=false", "--json"], tmp_path / "copy"
    assert wait(start("grid", "smoke", "--out", tmp_path / "whole", *short)) == 0
    expected = rounds_in(tmp_path / "whole")
    total = sum(map(len, expected.values()))
    words = ["grid", "smoke", "--out", tmp_path / "at0", "--mirror", f"file://{copy}", *short]
    moments = []
    for kill in range(3):
        process = start(*words)
        goal = total * (kill + random.random()) / 4
        while (sent := sum(path.read_bytes().count(b"\n") for path in copy.glob("*/rounds.jsonl"))) < goal:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        moments.append(sent)
        time.sleep(1)
        shutil.rmtree(tmp_path / f"at{kill}", ignore_errors=True)
        words = ["grid", "resume", f"file://{copy}", "--out", tmp_path / f"at{kill + 1}", "--json"]
    assert wait(start(*words)) == 0
    print(f"killed after {moments} of {total} rounds had arrived")
    assert rounds_in(tmp_path / "at3") == expected == rounds_in(copy), moments
    assert {e.status for e in Plan.read(tmp_path / "at3", kind="grid").look()} == {"done"}


def wait(process: "subprocess.Popen[str]") -> int:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, (output[-2000:], errors[-3000:])
    return process.returncode
