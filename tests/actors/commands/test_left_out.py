"""What the screen, JSON, `compare`, `report` and MLflow say of clients that rounds went on without, for every reason.

A user's method whose client 2 sends 1e30 is run by the command line; NaN that a user's function returns is that
function's fault (``tests/faulty.py``).
"""

import html
import io
import json
import re
import sys
from contextlib import redirect_stdout

import pytest

from actors.terminal.progress import display
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.records.cells import look
from relief_ray.records.facts import Alerts
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.sync.mlflow import ending_tags, exported_scalars
from relief_ray.studies.progress import Bar, LineDisplay
from relief_ray.studies.spec import Cell
from tests.actors.conftest import SMALL
from tests.refusals import REASONS, SENDS_1E30, run_without


class Terminal(io.StringIO):
    """An output that may be drawn on."""

    def isatty(self):
        return True


@pytest.fixture
def method(write):
    """A method with a client that sends 1e30."""
    return f"{write(SENDS_1E30)}:Mine"


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


@pytest.mark.ci
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run for each reason why its client 3 is left out, by its title: each has a seed of its own."""
    out = tmp_path_factory.mktemp("reasons")
    for seed, (name, reason) in enumerate(REASONS.items()):
        run_without(out / name, reason, seed=seed)
    return {f"fedavg, seed {seed}": out / name for seed, name in enumerate(REASONS)}


def plain(text):
    """What a reader sees: without colours, tags and line breaks."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    return " ".join(html.unescape(text).split())


def show(title, rounds, stream=None):
    """Shows rounds as `run` does, on standard output or another stream; returns what shows them."""
    with redirect_stdout(stream or sys.stdout):
        shown, alerts = display(False, 1, 3, several=False), Alerts()
        config = ExperimentConfig(rounds=3)
        cell = Cell(name="x", label="relief", config=config, hash="", title=title)
        shown.begin(cell, "3 rounds", None)
        for record in rounds:
            shown.round(cell, record)
            for alert in alerts.of(record):
                shown.warn(alert, f"{title}: ")
        shown.close()
    return shown


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns."""
    for key, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def warned(title, rule, text):
    """How often a text warns of the client."""
    told = rf"{title}: WARNING: round 2: without client 3 \(type [ABC]\): [^(]+\([^!]{{,200}}?{re.escape(rule)}"
    return len(re.findall(told, plain(text)))


@pytest.mark.ci
@pytest.mark.parametrize(("seed", "name"), list(enumerate(REASONS)), ids=REASONS)
def test_lines_name_client_and_reason(folders, seed, name, capsys):
    title = f"fedavg, seed {seed}"
    assert isinstance(show(title, read_rounds(folders[title])), LineDisplay)
    shown = capsys.readouterr().out
    assert re.findall(r"(\d)/3  (7/8 clients)?", shown) == [("1", ""), ("2", "7/8 clients"), ("3", "7/8 clients")]
    assert warned(title, REASONS[name].rule, shown) == 1


@pytest.mark.parametrize(("seed", "name"), list(enumerate(REASONS)), ids=REASONS)
def test_a_bar_names_client_and_reason(folders, seed, name, terminal):
    title = f"fedavg, seed {seed}"
    assert isinstance(show(title, read_rounds(folders[title]), terminal), Bar)
    assert warned(title, REASONS[name].rule, terminal.getvalue()) == 1
    assert re.search(r"3/3 7/8 clients F1 +\d", last_frame(terminal))


def last_frame(terminal):
    return plain(terminal.getvalue()).rpartition("[1/1]")[2]


def test_a_bar_that_goes_on_names_who_is_still_missing_and_counts_until_all_are_back(folders, terminal):
    back, _, last = read_rounds(folders["fedavg, seed 0"])
    show("fedavg", [last], terminal)
    assert "fedavg: WARNING: round 3: still without client 3 (type" in plain(terminal.getvalue())
    assert "3/3 7/8 clients" in last_frame(terminal)
    show("fedavg", [last, back], terminal)
    assert "1/3" in last_frame(terminal) and "clients" not in last_frame(terminal)


@pytest.mark.ci
def test_compare_and_report_name_client_and_reason(invoke, folders, tmp_path):
    done = invoke("compare", *folders.values())
    assert done.exit_code == 0, done.output
    (out,) = {folder.parent for folder in folders.values()}
    assert invoke("report", out, "--out", tmp_path / "page").exit_code == 0
    for text in map(plain, (done.output, (tmp_path / "page" / "index.html").read_text())):
        for title, folder in folders.items():
            told = rf"{title}: client 3 \(type [ABC]\) was left out of 2 rounds \(2-3\): (.{{,300}})"
            assert REASONS[folder.name].rule in " ".join(re.findall(told, text)), title
