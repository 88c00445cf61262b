"""`compare`, the end of a run, and the MLflow copy."""

import json
import re
import shutil
from pathlib import Path

import pytest

from actors.commands.results import list_command
from actors.terminal.mlflow_export import PAGE
from relief_ray.records.cells import PlanFile, write_plan_file
from relief_ray.records.run_folder import read_rounds, read_run
from tests.records.sync.stores import configured
from tests.report.conftest import build, write
from tests.sealed import page, put_page, put_run

SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


def test_compare_shows_a_row_per_method_and_the_verdict_last(invoke, runs: Path) -> None:
    shown = invoke("compare", runs).stdout
    tables = [line for line in shown.rpartition("\n\n")[0].splitlines() if len(re.findall(r"\d", line)) > 5]
    rows = [line.split()[0] for line in tables if line.startswith(("fedavg", "relief", "v1", "v3"))]
    assert rows == ["fedavg", "relief", "v1", "v3"] * (len(rows) // 4) and rows, "each of the tables names them all"
    record = read_rounds(runs / "relief-s0")[-1]
    assert record.metrics is not None and f"{100 * record.metrics.f1:.1f}" in shown
    last = " ".join(shown.strip().split("\n\n")[-1].split())
    assert last.startswith("Simulated: relief is ") and last.endswith("no claim was named before these runs.")
    assert all(len(line) <= 120 for line in shown.splitlines() if not line.startswith("More "))


@pytest.mark.parametrize("columns", [80, 60])
def test_compare_fits_the_terminal_and_wide_shows_all(invoke, runs: Path, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = invoke("compare", runs).stdout
    lines = [line for line in shown.splitlines() if not line.startswith("More ")]  # a command stays whole
    assert max(map(len, lines)) <= columns and "wall, s" not in shown
    assert f"More relief-ray compare {runs} --wide (all columns) --legend (what headings mean)" in " ".join(
        shown.split()
    )
    wide = invoke("compare", runs, "--wide", "--legend").stdout
    assert "wall, s" in wide and "- `speedup`: " in wide and "More " not in wide


@pytest.mark.ci
def test_compare_reads_committed_results(invoke, runs: Path, tmp_path: Path, monkeypatch) -> None:
    """One setting by itself; of several, each under its title, or the one that is named."""
    monkeypatch.setattr("relief_ray.report.build.draw", lambda plots, folder: {})
    assert invoke("report", runs, "--out", tmp_path / "page", "--commit", tmp_path).exit_code == 0
    whole, small = (json.loads(invoke("compare", place, "--json").stdout) for place in (runs, tmp_path))
    for mine, theirs in zip(small["methods"], whole["methods"], strict=True):
        same = ("f1_percent", "speedup", "energy_j", "link_percent", "up_mib", "f1_rare_percent", "wall_s")
        assert mine["method"] == theirs["method"]
        assert [mine[name] for name in same] == pytest.approx([theirs[name] for name in same])
    facts = page(tmp_path / "cells.json")
    other = json.loads(json.dumps(facts["cells"]["fedavg-s0"]))
    other["config"]["training"]["lr"], other["config_hash"] = 0.5, "0" * 64
    facts["cells"]["long"] = other
    put_page(tmp_path / "cells.json", facts)
    titles = [line for line in invoke("compare", tmp_path).stdout.splitlines() if line.startswith("## ")]
    assert len(titles) == 2 and titles[1].endswith("lr = 0.5")
    monkeypatch.setenv("COLUMNS", "60")
    narrow = invoke("compare", tmp_path).stdout.splitlines()
    assert max(len(line) for line in narrow if not line.startswith("More ")) <= 60, "titles are wrapped too"
    monkeypatch.delenv("COLUMNS")
    named = invoke("compare", tmp_path, "--setting", "LR = 0.5").stdout
    assert "v1" not in named and named.count("## ") == 1
    refused = invoke("compare", tmp_path, "--setting", "mars")
    assert refused.exit_code == 2 and "fits none of the settings" in " ".join(refused.stderr.split())


def test_compare_writes_tables_and_figures(invoke, runs: Path, tmp_path: Path) -> None:
    result = invoke("compare", runs, "--out", tmp_path / "report", "--json")
    facts = json.loads(result.stdout)
    names = {"comparison.md", "comparison.json", "comparison.csv", "timeline.png", "curves.png"}
    assert {Path(path).name for path in facts["files"]} == names
    assert all((tmp_path / "report" / name).stat().st_size > 100 for name in names)
    assert facts["verdict"].endswith("Described, not tested: no claim was named before these runs.")


def test_compare_of_one_run_gives_no_verdict(invoke, runs: Path) -> None:
    shown = invoke("compare", runs / "relief-s0").stdout
    assert "relief" in shown and "no claim" not in shown


def test_compare_refuses_folders_without_runs(invoke, tmp_path: Path) -> None:
    result = invoke("compare", tmp_path)
    assert result.exit_code == 2
    assert "no run.json there or one folder below" in " ".join(result.stderr.split())


def test_a_run_of_fedavg_and_relief_leaves_the_figure(runs: Path) -> None:
    assert (runs / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_sync_goes_on_after_a_run_that_cannot_be_exported(invoke, runs: Path, tmp_path: Path) -> None:
    """Both runs ask for a store whose credentials are not kept: the second is tried although the first failed."""
    for name in ("fedavg-s0", "relief-s0"):
        (tmp_path / name).mkdir()
        put_run(tmp_path / name, read_run(runs / name))
        configured(tmp_path / name, enabled=True, uri="https://***@tracker.example")
    refused = invoke("sync", tmp_path)
    said = " ".join(refused.stderr.split())
    assert refused.exit_code == 2 and said.startswith(f"error: 2 of 2 runs were not exported {tmp_path}")
    assert all(f"{tmp_path / name}: its MLflow store" in said for name in ("fedavg-s0", "relief-s0"))
    assert "1 of" not in invoke("sync", tmp_path / "relief-s0").stderr


@pytest.mark.ci
def test_a_sync_that_lacks_one_run_does_not_end_well(invoke, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    for name in ("fedavg-s0", "relief-s0"):
        shutil.copytree(runs / name, tmp_path / name)
    configured(tmp_path / "fedavg-s0", enabled=True, uri="https://***@tracker.example")
    refused = invoke("sync", tmp_path)
    assert refused.exit_code == 2
    assert "1 of 2 runs were not exported; the others are" in " ".join(refused.stderr.split())
    assert "relief-s0: " in refused.stdout and "new points in sqlite:" in refused.stdout


@pytest.mark.slow
def test_mlflow_gets_every_round_and_sync_adds_nothing(invoke, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    result = invoke(
        "run", "quick", "--strategies=relief,fedavg", "--out", tmp_path, *SMALL, "--set=tracking.enabled=true"
    )
    assert result.exit_code == 0, result.output
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path / 'mlflow.db'}\n        {PAGE}" in result.stdout
    assert (
        PAGE.endswith("compareRunsMode=CHART&viewStateShareKey=methods")
        and "MLFLOW_DISABLE_TELEMETRY=true mlflow ui" in result.stdout
    )
    store = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert store.get_experiment_by_name("relief-ray").experiment_id == "1", "as the page's address says"
    experiment = store.get_experiment_by_name("relief-ray")
    (study,) = store.search_runs([experiment.experiment_id], "tags.`relief.kind` = 'grid'")
    assert [a.path for a in store.list_artifacts(study.info.run_id)] == ["timeline.png"]
    assert invoke("report", tmp_path).exit_code == 0
    assert {a.path for a in store.list_artifacts(study.info.run_id)} == {"timeline.png", "index.html", "report.md"}
    (target,) = json.loads((tmp_path / "relief-s0" / "sync.json").read_text())["targets"].values()
    assert target["step"] == 2 and target["status"] == "done"
    again = json.loads(invoke("sync", tmp_path / "relief-s0", "--json").stdout)
    assert again["num_points"] == 0 and again["run_id"] == target["run_id"]


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_on_ray_gives_the_bits_of_one_without(start, invoke, tmp_path: Path) -> None:
    args = ["quick", *SMALL, "--strategies=relief,fedavg"]
    process = start("run", *args, "--out", tmp_path / "ray", "--set=runtime.mode=packed")
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "8 clients on Ray, packed" in out and errors == ""
    assert invoke("run", *args, "--out", tmp_path / "inline").exit_code == 0
    for cell in ("relief-s0", "fedavg-s0"):
        one, other = (read_rounds(tmp_path / place / cell) for place in ("ray", "inline"))
        assert [r.model_sha256 for r in one] == [r.model_sha256 for r in other]


def test_ls_shows_the_newest_folder_first_with_what_differs(invoke, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for extra in ([], ["--set=training.lr=0.1"]):
        assert invoke("run", "quick", *SMALL, "--rounds", 1, *extra).exit_code == 0
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "run.json").write_text("{")
    folders = json.loads(invoke("ls", "--json").stdout)["folders"]
    assert {f["folder"]: (f["done"], f["cells"]) for f in folders} == {
        "runs/quick-2": (1, 1), "runs/quick": (1, 1), "runs/torn": (0, 1)
    }  # fmt: skip
    newer, older, torn = folders
    assert newer["differs"] == {"training.lr": 0.1} and older["differs"] == {"training.lr": 0.001}
    metrics = read_rounds(tmp_path / older["folder"] / "relief-s0")[-1].metrics
    assert metrics is not None and older["f1_percent"] == {"relief": pytest.approx(100 * metrics.f1)}
    assert torn["f1_percent"] == {} and torn["why"].startswith("runs/torn/run.json: unreadable")
    shown = invoke("ls").stdout.splitlines()
    assert shown[2].split() == ["runs/quick-2", "1/1", newer["last"][:10], "relief",
                                f"{newer['f1_percent']['relief']:.1f};", "training.lr=0.1"]  # fmt: skip
    alone = invoke("ls", "runs/quick").stdout
    assert "runs/quick " in alone and "training.lr" not in alone, "nothing to differ from"


def test_ls_has_a_row_for_each_setting_of_a_folder(tmp_path: Path) -> None:
    """Runs of other learning rates, and of other fields of a method, are never averaged."""
    for seed, (lr, fields) in enumerate([(0.1, {}), (0.01, {}), (0.01, {"gamma": 0.25})]):
        extra = {"training": {"epochs": 2, "lr": lr}, "strategy": {"name": "relief", **fields}}
        made = build("relief", seed=seed, scores=(0.1, (seed + 1) / 10), extra=extra)
        write(made, tmp_path / "study" / f"relief-s{seed}")
    write_plan_file(tmp_path / "study" / "plan.json", PlanFile(kind="grid", name="g", cells=()))
    rows = list_command(tmp_path).facts["folders"]
    assert {row["differs"]["training.lr"]: row["f1_percent"] for row in rows} == {
        0.1: {"relief": pytest.approx(10.0)},
        0.01: {"relief": pytest.approx(20.0), "relief (gamma=0.25)": pytest.approx(30.0)},
    }


@pytest.mark.parametrize(("folder", "found"), [("none", "no such folder"), (".", "nothing that was run")])
def test_ls_of_nothing_says_what_it_lists(invoke, tmp_path: Path, monkeypatch, folder: str, found: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("ls", folder)
    assert result.exit_code == 2 and f"{folder}: {found}; expected a folder of results" in " ".join(
        result.stderr.split()
    )
