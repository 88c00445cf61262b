"""Test what a study gives back: frames, tables, pictures, single runs, the report, and what it says of itself."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import relief_ray as rr
from relief_ray.plugins.load import load
from relief_ray.records.run_folder import read_rounds
from relief_ray.report.claims import last_lines
from relief_ray.report.comparison import compare
from relief_ray.report.formats.text import plain
from relief_ray.report.frames import GAIN_COLUMNS, read_cells
from relief_ray.support.errors import UserError
from tests.own import METHOD
from tests.sealed import page, put_page
from tests.studies.conftest import SMALL

TITLED = """
from relief_ray.strategies.fedavg import FedAvg

class Mine(FedAvg):
    title = "mine of a test"
"""


def test_frames_hold_a_row_per_run_and_per_round(small_study):
    frame, rounds = small_study.frame, small_study.rounds
    assert sorted(zip(frame.method, frame.seed, strict=True)) == [
        ("fedavg", 0), ("fedavg", 1), ("relief", 0), ("relief", 1)
    ]  # fmt: skip
    assert rounds.groupby("cell").size().to_dict() == {"fedavg-s0": 2, "fedavg-s1": 2, "relief-s0": 2, "relief-s1": 2}
    last = read_rounds(small_study.folder / "relief-s1")[-1]
    row = frame.set_index("cell").loc["relief-s1"]
    assert row.f1_percent == pytest.approx(100 * last.metrics.headline)
    assert row.energy_j == last.totals["flop_proportional"].energy_j


def test_the_table_and_the_sentence_are_those_of_compare(small_study):
    comparison = compare([small_study.folder])
    assert str(small_study.table(width=120, wide=True)) == plain(comparison, wide=True)
    assert max(map(len, str(small_study.table()).splitlines())) <= 80
    with pytest.raises(UserError, match="width=20: expected 60 characters or more"):
        small_study.table(width=20)
    assert str(small_study.verdicts()) == " ".join(last_lines(comparison)) and small_study.verdicts().claims == ()
    assert small_study.table()._repr_markdown_().count("| relief |") == 1
    measured = small_study.table(clock="split_naive")
    naive = "with every pass through every layer counted"
    told = [" ".join(str(table).split()) for table in (measured, small_study.table())]
    assert naive in told[0] and f"simulated {naive}" not in told[1]


def test_columns_are_there_without_rows(small_study, tmp_path):
    one_row = (set(read_cells([small_study.folder]).frame.columns), set(small_study.rounds.columns))
    shutil.copytree(small_study.folder, tmp_path / "begun")
    for run in (tmp_path / "begun").glob("*/run.json"):
        run.write_text(run.read_text().replace('"status": "done"', '"status": "interrupted"'))
    begun = rr.load(tmp_path / "begun")
    assert len(begun.frame) == len(begun.rounds) == 0
    assert set(begun.frame.columns) <= one_row[0] and {"method", "f1_percent", "time_s"} <= set(begun.frame.columns)
    assert set(begun.rounds.columns) <= one_row[1] and {"method", "round", "f1_percent"} <= set(begun.rounds.columns)


def test_a_gain_is_the_mean_difference_of_paired_runs(small_study):
    scores = small_study.frame.pivot(index="seed", columns="method", values="f1_percent")
    assert small_study.gain("relief").mean == pytest.approx((scores.relief - scores.fedavg).mean())
    assert small_study.gain("fedavg", "relief").mean == pytest.approx(-small_study.gain("relief").mean)


def test_a_ledger_has_at_most_800_bytes_a_client_and_round(small_study):
    """Tested in every round; the backbone's size changes no more than digits."""
    for run in small_study.runs:
        assert all(record.metrics is not None and record.metrics.confusion for record in run.ledger)
        num_rows = sum(len(record.clients) for record in run.ledger)
        num_bytes = (run.folder / "rounds.jsonl").stat().st_size / num_rows
        assert (num_rows, num_bytes <= 800) == (8 * 2, True), f"{run.folder.name}: {num_bytes:.0f} bytes"


@pytest.mark.ci
def test_a_method_without_arguments_keeps_its_title_and_its_class_names_it(write, tmp_path):
    """Beside a variant; a gain takes what run() took."""
    mine = load(f"{write(METHOD)}:Mine", "strategies")
    methods, out = ["fedavg", mine, mine(alpha=0.25)], tmp_path / "own"
    study = rr.run("quick", strategies=methods, rounds=1, backbone=SMALL, out=out, quiet=True)
    title = mine.__name__
    assert [run.method for run in study.runs] == ["fedavg", title, f"{title} (alpha=0.25)"]
    assert study.gain(mine) == study.gain(title) and study.gain(mine(alpha=0.25), mine).num_pairs == 1
    assert study.gain(mine(alpha=0.25)) == study.gain(f"{title} (alpha=0.25)")
    with pytest.raises(rr.UserError, match=f"no run of it; there are fedavg, {title}"):
        study.gain(mine(alpha=0.3))


def test_gains_of_all_methods_are_a_frame(small_study):
    (row,) = small_study.gains().to_dict("records")
    one = small_study.gain("relief")
    assert (row["method"], row["mean"], row["p"], row["pairs"]) == ("relief", one.mean, one.p, 2)
    assert row["p_holm"] == one.p and list(small_study.gains("relief").method) == ["fedavg"]
    committed = rr.load(Path(__file__).parents[2] / "results" / "smoke").gains()
    tested = committed[committed.p_holm.notna()]
    assert (tested.p_holm >= tested.p).all()


def test_the_page_and_the_docstring_say_how_gains_are_printed_whole(small_study, monkeypatch):
    printed = "print(study.gains().round(2).to_string())"
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    assert printed in page and printed in rr.Study.gains.__doc__
    monkeypatch.setenv("COLUMNS", "60")
    with pd.option_context("display.width", 60, "display.max_columns", 0):
        assert "..." in str(small_study.gains()), "as a terminal of 60 columns cuts it"
        whole = eval(printed.removeprefix("print(").removesuffix(")"), {"study": small_study})
    assert whole.split("\n")[0].split() == list(GAIN_COLUMNS) and "..." not in whole


def test_a_gain_of_another_figure_is_that_of_the_frame(small_study):
    """Of rare sensors, of a single figure of all methods, and at equal simulated cost."""
    scores = small_study.frame.pivot(index="seed", columns="method", values="f1_rare_percent")
    one = small_study.gain("relief", figure="f1_rare")
    assert one.mean == pytest.approx((scores.relief - scores.fedavg).mean()) and one != small_study.gain("relief")
    (row,) = small_study.gains(figure="f1_rare").to_dict("records")
    assert row["mean"] == one.mean
    assert small_study.gain("relief", figure="f1_at_joules").num_pairs == 2


def test_frames_have_the_figures_of_the_table(small_study):
    frame, rounds = small_study.frame.set_index("cell"), small_study.rounds
    reference, proposed = frame.loc["fedavg-s0"], frame.loc["relief-s0"]
    assert reference.speedup == 1.0 and proposed.speedup > 1.0 and 0.0 < proposed.link_percent < 100.0
    last = read_rounds(small_study.folder / "relief-s0")[-1]
    assert proposed.f1_acc_percent == pytest.approx(100 * last.metrics.f1_by_modality["acc"])
    row = rounds[(rounds.cell == "relief-s0") & (rounds["round"] == last.round)].iloc[0]
    assert (row.loss, row.wall_s) == (last.loss, last.wall_s) and row.f1_rare_percent == proposed.f1_rare_percent
    alone = small_study.run("relief", seed=0).rounds
    assert alone.iloc[-1].loss == last.loss and alone.iloc[-1].wall_s == last.wall_s
    committed = rr.load(Path(__file__).parents[2] / "results" / "smoke")
    assert committed.rounds.loss.isna().all() and committed.frame.speedup.notna().any()


@pytest.mark.ci
def test_several_folders_are_one_study(small_study, tmp_path):
    """Runs of equal folder names stay apart; a copy of a run counts once."""
    words = {"strategies": ["fedavg", "relief"], "seeds": [0], "backbone": SMALL, "quiet": True}
    rr.run("quick", rounds=1, out=tmp_path / "short", **words)
    shutil.copytree(small_study.folder, tmp_path / "copy")
    both = rr.load([small_study.folder, str(tmp_path / "short"), tmp_path / "copy"])
    assert both.folders == (small_study.folder, tmp_path / "short", tmp_path / "copy") and len(both.runs) == 6
    frame = both.frame.set_index("cell")
    assert sorted(frame.index) == [
        "fedavg-s0", "fedavg-s1", "relief-s0", "relief-s1", "short-fedavg-s0", "short-relief-s0"
    ]  # fmt: skip
    assert frame.loc["short-relief-s0"].rounds == 1 and frame.loc["relief-s0"].rounds == 2
    assert len(both.settings) == 2 and both.gain("relief", setting=both.settings[0]).num_pairs == 2
    assert set(both.frame.setting) == {"rounds = 1", "rounds = 2"}
    assert [both.gain("relief", setting=f"rounds = {n}").num_pairs for n in (2, 1)] == [2, 1]
    assert both.report(tmp_path / "page").exists() and "short" in repr(both)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "load: found an empty list, expected folders of runs"),
        (3, "load: found 3, expected the path of a folder"),
        ([None], "load: found None, expected the path of a folder"),
        (["results/smok"], r"results/smok: does not exist \(did you mean 'smoke'\?\)"),
    ],
)
def test_what_cannot_be_opened_is_said(given, message, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(rr.UserError, match=message):
        rr.load(given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.table(clock="noon"), r"clock 'noon': not recorded by every run; recorded are flop_proportional"),
        (lambda s: s.table(setting="Mars"), "setting 'Mars': unknown; there are DSA excerpt"),
        (lambda s: s.run("relif"), r"no run \(did you mean 'relief'\?\); there are fedavg, relief"),
        (lambda s: s.run("relief"), "2 runs fit; there are .*seed 0; .*seed 1; name seed, fold or replicate"),
        (lambda s: s.run("relief", seed=7), r"run\('relief', seed=7\): no such run; there are"),
        (lambda s: s.gain("v1"), "no finished run of 'v1'"),
        (lambda s: s.gain("relief", figure="f1_rar"), r"figure 'f1_rar': unknown \(did you mean 'f1_rare'\?\)"),
        (lambda s: s.gains(figure="loss"), "figure 'loss': unknown; expected one of f1, f1_rare"),
        (lambda s: s.figure("allocations"), r"unknown \(did you mean 'allocation'\?\)"),
        (lambda s: s.figure("convergence", over="second"), r"over='second': unknown \(did you mean 'seconds'\?\)"),
        (lambda s: s.figure("modalities", over="seconds"), "expected none with this figure"),
        (lambda s: s.timeline("fedavg", "fedprox"), "no finished run.*there are fedavg, relief"),
        (lambda s: s.run("relief", seed=0).explain(round=9, client=0), "round 9: no such round"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(small_study, call, message):
    with pytest.raises(rr.UserError, match=message):
        call(small_study)


def test_a_single_run_has_its_configuration_its_rounds_and_its_reasons(small_study):
    run = small_study.run("relief", seed=1)
    assert run.config.seed == 1 and run.config.label() == run.strategy == "relief" and run.status == "done"
    assert list(run.rounds["round"]) == [1, 2] == [record.round for record in run.ledger]
    assert run.folder == small_study.folder / "relief-s1" and repr(run) == "<Run relief, seed 1: done, 2 rounds>"
    clients = run.clients
    assert list(clients.client) == [c.client for c in run.ledger[0].clients] and set(clients.type) == {"A", "B", "C"}
    served = run.ledger[-1].metrics.f1_by_client
    assert clients.f1_percent.tolist() == [100 * served[client] for client in clients.client]
    assert set(clients[clients.type == "C"].sensors) == {"acc"} and (clients.windows > 0).all()
    reasons = run.explain(round=2, client=0)
    assert "The record of round 2 says the same." in str(reasons) and reasons.facts["client"] == 0
    assert set(reasons.groups) == set(next(c.trained for c in run.ledger[-1].clients if c.client == 0))
    assert str(small_study.folder) not in str(reasons), "the folder may be one of this machine alone"


@pytest.mark.ci
def test_methods_go_by_their_import_path_too(write, run_cache, monkeypatch):
    name = write(TITLED)
    study = rr.run("quick", strategies=["fedavg", f"{name}:Mine"], rounds=1, backbone=SMALL, quiet=True)
    for given in (f"{name}:Mine", f"{name}.py:Mine", "mine of a test"):
        assert study.run(given).method == "mine of a test"
        assert study.gain(given) == study.gain("mine of a test") and study.gain("fedavg", given).num_pairs == 1
    said = str(study.run(given).explain(round=1, client=7))
    assert said.startswith(
        "Client 7 (Type C; acc) trained all 11 groups of the model. mine of a test gives no reasons:"
    )
    assert "relief" not in said.replace("relief_ray.Explanation", "") and "deadline" not in said
    gains = study.gains(f"{name}:Mine")
    assert list(gains.method) == ["fedavg"] and gains.low.dtype == float and gains.low.isna().all()  # of one pair
    variants = [{"name": f"{name}:Mine", "weighting": weighting} for weighting in ("uniform", "samples")]
    study = rr.run("quick", strategies=variants, rounds=1, backbone=SMALL, quiet=True)
    with pytest.raises(
        rr.UserError, match=r"2 variants ran; name one of them: mine of a test, mine of a test \(weighting=s"
    ):
        study.run(f"{name}:Mine")


@pytest.mark.ci
def test_methods_of_a_file_go_by_class_file_folder_and_title(write):
    name = write(TITLED + "\n\nclass Other(FedAvg):\n    title = 'other of a test'\n")
    methods = ["fedavg", f"{name}:Mine", {"name": f"{name}:Mine", "weighting": "samples"}]
    study = rr.run("quick", strategies=methods, rounds=1, backbone=SMALL, quiet=True)
    plain, varied = "mine of a test", "mine of a test (weighting=samples)"
    for given in ("Mine of a Test", "mine_of_a_test", f"{name}.Mine"):
        assert study.run(given).method == plain
    assert study.run(f"{name}.Mine-weightingsamples").method == varied == study.run(varied).method
    for given in (name, f"{name}.py", "mine", "Mine"):
        with pytest.raises(rr.UserError, match=rf"2 variants ran; name one of them: {plain}, {plain} \(weighting=s"):
            study.run(given)
    study = rr.run("quick", strategies=[f"{name}:Mine", f"{name}:Other"], rounds=1, backbone=SMALL, quiet=True)
    assert [study.run(given).method for given in ("mine", "Other", f"{name}.Other")] == [
        plain,
        *["other of a test"] * 2,
    ]
    assert study.gain("mine", "Other").num_pairs == 1
    with pytest.raises(rr.UserError, match="2 methods of that name ran; name one of them: mine of a test, other of"):
        study.run(name)
    there = rf"there are {plain} \({name}:Mine\), other of a test \({name}:Other\)$"
    with pytest.raises(rr.UserError, match=rf"method 'Othr': no run \(did you mean 'Other'\?\); {there}"):
        study.run("Othr")


@pytest.mark.ci
def test_pictures_show_themselves_and_are_saved(small_study, tmp_path):
    picture = small_study.timeline()
    data, hints = picture._repr_mimebundle_()
    assert picture.png.startswith(b"\x89PNG") and data["image/png"] and hints == {"image/png": {"width": 760}}
    assert picture.save(tmp_path / "new" / "timeline.png").read_bytes() == picture.png
    swapped = small_study.timeline("relief", "fedavg", round=1)
    assert swapped.png != picture.png and swapped.caption.startswith("relief") and "fedavg" in swapped.caption
    assert small_study.curves().png.startswith(b"\x89PNG")
    assert small_study.figure("allocation").png != small_study.figure("allocation", method="fedavg").png
    assert small_study.figure("convergence").png == small_study.curves().png
    assert small_study.figure("convergence", over="seconds").png != small_study.curves().png


def test_what_a_notebook_shows_of_a_study(small_study):
    shown = small_study._repr_html_()
    assert "4 runs (4 done)" in shown and "<th scope='row'>relief</th>" in shown
    assert "<li>data dsa_mini: subjects 1 and 6: acc, gyro and mag are 0" in shown, "warnings of the terminal"
    assert repr(small_study).startswith("<Study quick: 4 runs (4 done) in ")


def test_load_opens_what_run_left(small_study):
    again = rr.load(small_study.folder)
    pd.testing.assert_frame_equal(again.frame, small_study.frame)
    single = rr.load(str(small_study.folder / "fedavg-s1"))
    assert [run.draw for run in single.runs] == ["seed 1"] and list(single.frame.seed) == [1]


def test_load_opens_the_folder_of_a_grid(small_study, tmp_path):
    grid = tmp_path / "grid"
    shutil.copytree(small_study.folder, grid)
    put_page(grid / "plan.json", {**page(grid / "plan.json"), "kind": "grid"})
    assert rr.load(grid).name == "quick" and len(rr.load(grid).runs) == 4


def test_load_of_nothing_names_the_nearest(small_study, tmp_path):
    with pytest.raises(rr.UserError, match=r"does not exist \(did you mean 'small'\?\); name a folder of runs"):
        rr.load(small_study.folder.parent / "sma")
    with pytest.raises(rr.UserError, match=r"found no run\.json"):
        rr.load(tmp_path)


def test_a_study_without_a_finished_run_says_how_to_go_on(small_study, tmp_path):
    copy = tmp_path / "begun"
    shutil.copytree(small_study.folder, copy)
    for path in copy.glob("*/rounds.jsonl"):
        path.unlink()
    study = rr.load(copy)
    with pytest.raises(rr.UserError, match=r"no finished run \(4 failed\); call run\(\) again with the same out="):
        study.table()


def test_committed_results_are_a_study():
    study = rr.load(Path(__file__).parents[2] / "results" / "smoke")
    assert {"relief", "fedavg"} <= set(study.frame.method) and set(study.rounds["round"]) == {1, 2, 3}
    assert "relief" in str(study.table()) and len(study.settings) == 1
    run = next(run for run in study.runs if run.method == "relief")
    assert run.config.label() == "relief" and list(run.rounds["round"]) == [row.round for row in run.ledger]
    with pytest.raises(rr.UserError, match="a committed result has no run folder"):
        run.explain(round=1, client=0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"participation": 0.5}, r"others were drawn (participation = 0.5)"),
        (
            {"fleet": {"types": {"A": {"available": 0.1}, "B": {"available": 0.1}}}},
            "a device of its type is there with chance 0.1 (`available`)",
        ),
    ],
)
def test_a_client_that_was_not_there_is_explained_by_that(words, why):
    """The bootstrap takes all who are there; in round 2 some are not drawn."""
    run = rr.run("quick", strategies="relief", rounds=2, backbone=SMALL, quiet=True, **words).runs[0]
    absent = next(n for n in range(8) if n not in run.ledger[1].participants)
    said = str(run.explain(round=2, client=absent))
    assert f"took no part in round 2: {why}." in " ".join(said.split())
