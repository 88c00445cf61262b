"""`report`, `reproduce` and `fleet whatif`, as a user calls them."""

import json
import shutil
from pathlib import Path

import pytest

import relief_ray as rr
from relief_ray.report.build import default_place
from tests.sealed import page, put_page

# A report with its figures takes seconds.
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def reported(invoke, runs: Path, tmp_path_factory) -> tuple[Path, Path, str]:
    out = tmp_path_factory.mktemp("report")
    result = invoke("report", runs, "--out", out / "page", "--commit", out / "small")
    assert result.exit_code == 0, result.output
    return out / "page", out / "small", result.stdout


def test_report_writes_one_page_tables_figures_and_the_small_form(reported) -> None:
    page, small, shown = reported
    assert shown.splitlines()[0] == "Cells   4 done"
    text = (page / "index.html").read_text()
    assert "<svg" in text and "relief" in text and "http" not in text.replace("http://www.w3.org/", "")
    assert (page / "report.md").exists() and (page / "tables" / "cells.tex").exists()
    assert {p.name for p in (page / "tables").iterdir()} >= {"e1-main.csv", "e1-ablation.csv", "cells.csv"}
    assert set(json.loads((small / "cells.json").read_text())["cells"]) == {"fedavg-s0", "relief-s0", "v1-s0", "v3-s0"}


def test_report_of_a_partial_plan_marks_the_gap(invoke, runs: Path, tmp_path: Path, monkeypatch) -> None:
    # Figures take seconds and are looked at above.
    monkeypatch.setattr("relief_ray.report.build.draw", lambda plots, folder: {})
    part = tmp_path / "part"
    shutil.copytree(runs, part)
    shutil.rmtree(part / "v1-s0")
    (part / "v3-s0" / "run.json").write_text("{")
    result = invoke("report", part, "--json")
    facts = json.loads(result.stdout)
    others = dict.fromkeys(("running", "interrupted", "stopped", "untested"), 0)
    assert facts["cells"] == {"done": 2, "failed": 1, "planned": 1, **others}
    assert "2 of 4 cells done" in facts["lead"]
    assert "planned, never begun" in (part / "report" / "index.html").read_text()


def test_report_of_nothing_is_refused_with_the_fix(invoke, tmp_path: Path) -> None:
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "name folders that `relief-ray run` or `relief-ray grid` made" in " ".join(result.stderr.split())


def test_a_title_without_results_to_name_is_refused(invoke, runs: Path, tmp_path: Path) -> None:
    result = invoke("report", runs, "--out", tmp_path / "page", "--title", "Mine")
    assert result.exit_code == 2 and "expected --commit DIR" in " ".join(result.stderr.split())
    assert not (tmp_path / "page").exists()


def test_report_of_committed_results_leaves_their_folder_alone(invoke, reported, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("relief_ray.report.build.draw", lambda plots, folder: {})
    monkeypatch.chdir(tmp_path)
    before = sorted(reported[1].iterdir())
    named = tmp_path / "named"
    assert invoke("report", reported[1], "--commit", named, "--title", "Four methods").exit_code == 0
    assert json.loads((named / "cells.json").read_text())["title"] == "Four methods"
    assert "Read from a summary of finished runs" in (tmp_path / "report" / "index.html").read_text()
    assert sorted(reported[1].iterdir()) == before


def test_reproduce_gives_equal_bits(invoke, reported) -> None:
    result = invoke("reproduce", f"{reported[1]}#relief-s0")
    assert result.exit_code == 0 and result.stdout.startswith("relief-s0: equal bits\n")


def test_reproduce_of_a_changed_cell_is_different_and_exits_6(invoke, reported, tmp_path: Path) -> None:
    facts = page(reported[1] / "cells.json")
    facts["cells"]["relief-s0"]["rounds"][-1][2] *= 2
    facts["cells"]["relief-s0"]["model_sha256"] = "0" * 64
    put_page(tmp_path / "cells.json", facts)
    result = invoke("reproduce", f"{tmp_path}#relief", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 6 and answer["answer"] == "different" and answer["cell"] == "relief-s0"
    assert any("time_s" in d for d in answer["differences"])


def test_whatif_prints_both_fleets_and_says_that_the_allocation_stays(invoke, runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("gap: 100\n")
    shown = invoke("fleet", "whatif", runs, "--fleet", other).stdout
    assert "the allocation is the one that was planned for the recorded fleet and local round" in " ".join(
        shown.split()
    )
    assert all(len(line) <= 120 for line in shown.splitlines())
    listed = json.loads(invoke("fleet", "whatif", runs, "--fleet", other, "--json").stdout)["runs"]
    slower = next(r for r in listed if r["title"].startswith("fedavg"))
    assert slower["whatif"]["split_naive"]["round_s"] > slower["recorded"]["split_naive"]["round_s"]


def test_whatif_says_what_differs_and_prints_the_numbers_of_its_json(invoke, runs: Path) -> None:
    options = ("--windows", 1900, "--epochs", 5)
    text = invoke("fleet", "whatif", runs, *options).stdout
    assert "run(s) with 1,900 windows a client, with 5 local epochs" in text
    for run in json.loads(invoke("fleet", "whatif", runs, *options, "--json").stdout)["runs"]:
        assert f" {run['whatif']['flop_proportional']['round_s']:.3f} " in text


def test_whatif_refuses_other_sections(invoke, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("costs: {utilisation: 2}\n")
    result = invoke("fleet", "whatif", runs, "--fleet", tmp_path / "other.yaml")
    assert result.exit_code == 2 and "expected the keys of a fleet" in " ".join(result.stderr.split())


def test_report_of_several_folders_changes_none_of_them(invoke, runs: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("relief_ray.report.build.draw", lambda plots, folder: {})
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(runs, tmp_path / "runs" / name)
    before = sorted((tmp_path / "runs").rglob("*"))
    result = invoke("report", "runs/one", "runs/two")
    assert result.exit_code == 0 and "Written report-one-two/index.html" in result.stdout
    rr.load(["runs/one", "runs/two"]).report()
    assert sorted((tmp_path / "runs").rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report-one-two", "runs"]
    assert default_place([Path(name) for name in "abcde"]).name == "report-a-b-c-and-2-more"
