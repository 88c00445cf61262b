"""A user's method whose client 2 sends 1e30: what the screen, JSON, `compare`, `report` and MLflow say of it.

NaN that a user's function returns is that function's fault (``tests/faulty.py``); the other rules are in
``tests/experiment/test_acceptance.py``.
"""

import json

import pytest

from relief_ray.records.cells import look
from relief_ray.records.exported import ending_tags, exported_scalars
from relief_ray.records.run_folder import read_rounds, read_run
from tests.actors.conftest import SMALL
from tests.own import METHOD

WRONG = """
from dataclasses import replace

from relief_ray.client import ClientProgram


def wrong(context, update):
    if context.info.id != 2:
        return update
    return replace(update, delta={j: d * 0 + 1e30 for j, d in update.delta.items()})

"""


@pytest.fixture
def method(write):
    """The method of ``tests.own``, with a client that sends 1e30."""
    reduction = "reduction=reduction,"
    code = METHOD.replace(reduction, f"{reduction} client=ClientProgram(after=wrong),")
    assert code != METHOD
    return f"{write(WRONG + code)}:Mine"


@pytest.mark.ci
def test_a_refused_client_is_named_everywhere(invoke, method, tmp_path):
    command = ("run", "quick", "--strategies", method, *SMALL, "--set=rounds=4", "--set=runtime.quorum=0.8")
    done = invoke(*command, "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert shown.count("7/8 clients") == 4
    assert shown.count("WARNING: round 1: without client 2 (type") == 1, "said once, not every round"
    assert "norm rule" in shown
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    run, last = read_run(folder), read_rounds(folder)[-1]
    assert [(entry.client, entry.cause, entry.rounds) for entry in run.left_out] == [(2, "update", (1, 2, 3, 4))]
    assert exported_scalars(last, run.planning_model)["clients_used"] == 7.0
    (tag,) = ending_tags(run).items()
    assert tag[0] == "relief.left_out.2.update" and "norm rule" in tag[1]
    told = "client 2 (type A) was left out of 4 rounds (1-4): its update was refused"
    assert told in " ".join(invoke("compare", folder).output.split())
    assert invoke("report", tmp_path / "runs", "--out", tmp_path / "page").exit_code == 0
    assert any("was left out of 4 rounds (1-4)" in page.read_text() for page in (tmp_path / "page").glob("*.html"))
    done = invoke(*command, "--json", "--out", tmp_path / "again")
    (event, *_) = (e for line in done.stdout.splitlines() if (e := json.loads(line)).get("event") == "round")
    assert (event["clients"], event["participants"]) == (7, 8)
    (left,) = event["left_out"]
    assert (left["client"], left["device"], left["cause"], left["since"]) == (2, "A", "update", 1)


def test_by_default_a_refused_update_ends_the_run_with_code_3(invoke, method, tmp_path):
    done = invoke("run", "quick", "--strategies", method, *SMALL, "--set=rounds=4", "--out", tmp_path / "runs")
    shown = " ".join(done.output.split())
    assert done.exit_code == 3 and "the updates of 7 of 8 clients can be used, runtime.quorum = 1; client 2: " in shown
    assert "norm rule" in shown
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    run = read_run(folder)
    (left,) = run.left_out
    assert (left.client, left.device, left.cause, left.rounds) == (2, "A", "update", (1,)) and "norm rule" in left.why
    assert (run.status, len(read_rounds(folder))) == ("failed", 0)
    assert run.note.startswith("round 1: the updates of 7 of 8 clients can be used, runtime.quorum = 1; client 2: ")
    assert look(folder).why == run.note == ending_tags(run)["relief.note"]
    compared = " ".join(invoke("compare", folder).output.split())
    assert "0 of 4 rounds (failed: round 1: the updates of 7 of 8 clients" in compared and "norm rule" in compared
    assert invoke("report", tmp_path / "runs", "--out", tmp_path / "page").exit_code == 0
    assert any("7 of 8 clients can be used" in page.read_text() for page in (tmp_path / "page").glob("*.html"))
