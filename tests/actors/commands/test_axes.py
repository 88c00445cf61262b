"""`relief-ray run` over seeds, folds and rounds as options; several runs at a time; what a dry run shows."""

import json
import re

import pytest

import relief_ray as rr
from actors.commands.plan_text import differing
from actors.grids.estimate import START_S
from relief_ray.config.experiment import read_settings
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.plan import load_spec
from relief_ray.studies.spec import choose, joined, options, parse_numbers
from relief_ray.support.errors import UserError
from tests.actors.conftest import SMALL, Invoke
from tests.own import METHOD
from tests.plans import planned


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0,1,2", (0, 1, 2)), ("0-4", (0, 1, 2, 3, 4)), ("5", (5,)), ("0-2, 7,1", (0, 1, 2, 7)), ("[3, 1]", (3, 1))],
)
def test_numbers_are_a_list_or_a_range(text, numbers):
    assert parse_numbers("--seeds", text) == numbers


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--seeds", "3"], "--seeds 3: could be 3 seeds or seed 3; expected a list: --seeds 0-2 for 3 seeds from 0 on"),
        (["--seeds", "0"], "--seeds 0: found one number; expected a list: --seeds [0] for seed 0"),
        (["--seeds", "a"], "--seeds a: found 'a', expected numbers from 0 on: a list (--seeds 0,1,2) or a range"),
        (["--seeds", "4-1"], "--seeds 4-1: found '4-1'"),
        (["--seeds", "-1"], "--seeds -1"),
        (["--seeds", "0,"], "--seeds 0,: found ''"),
        (["--folds", "0"], "--folds 0: the split within_subject has no folds; expected --set data.split=held_out"),
        (["--folds", "9", "--set=data.split=held_out_subject"], "data.fold=9: dsa_mini has folds 0..3"),
        (["--seeds", "[1]", "--set=seed=2"], "--seeds and --set seed=2: choose the same; leave one of them out"),
        (["--seeds", "[1]", "--set=replicates=2"], "--seeds and --set replicates=2"),
        (["--rounds", "3", "--set=rounds=2"], "--rounds and --set rounds=2"),
        (["--rounds", "0"], "--rounds"),
        (["--jobs", "0"], "--jobs"),
        (["--dashboard"], "--dashboard: these runs use no Ray (runtime.mode = 'inline'); add --jobs 2"),
        (["--dashboard", "--jobs=2", "--address=h:1"], "opens with a local cluster, found the cluster h:1"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(invoke: Invoke, tmp_path, args, words):
    done = invoke("run", "quick", "--out", tmp_path / "runs", *args)
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


def test_a_setting_that_one_method_lacks_names_those_that_have_it_and_the_way_out(write, tmp_path):
    name = write(METHOD)
    axes, settings = f"fedavg,{name}:Mine", ["strategy.alpha=0.4"]
    with pytest.raises(UserError) as refused:
        planned("quick", tmp_path, *settings, strategies=axes)
    assert str(refused.value).startswith(f"--set strategy.alpha=0.4: fedavg has no 'alpha', only {name}:Mine;")
    assert "write CHANGED = Mine(alpha=0.4) in a file of yours" in str(refused.value)
    assert str(refused.value).endswith("--strategies fedavg,my_file:CHANGED")
    with pytest.raises(
        UserError, match=rf"relief has no 'alpha', .*: strategies=\[\.\., .*{name}:Mine', 'alpha': 0.4}}\]"
    ):
        rr.run("quick", strategies=["relief", f"{name}:Mine"], set={"strategy.alpha": 0.4}, out=tmp_path / "py")
    changed = write(f"{METHOD}\n\nCHANGED = Mine(alpha=0.4)\n")
    plan = planned("quick", tmp_path, strategies=f"fedavg,{changed}:CHANGED")
    assert plan.cells[1].config.strategy.alpha == 0.4
    assert planned("quick", tmp_path, *settings, strategies=f"{name}:Mine").cells[0].config.strategy.alpha == 0.4
    with pytest.raises(UserError, match=r"unknown key 'strategy\.alpa'"):
        planned("quick", tmp_path, "strategy.alpa=0.4", strategies=axes)


def test_seeds_take_the_place_of_a_presets_replicates_and_of_a_files_seed():
    spec, settings = choose(load_spec("demo"), options("relief, v1", "[3]", "0-1", 2))
    assert (spec.methods, spec.seeds, spec.folds) == (("relief", "v1"), (3,), (0, 1))
    assert [setting[:2] for setting in settings] == [("rounds", 2)]
    with pytest.raises(UserError, match="no folds"):
        choose(load_spec("quick"), joined(options(folds="1"), read_settings(["data.stride_s=5.0"])))


@pytest.mark.ci
def test_a_dry_run_lists_runs_settings_and_time_and_writes_nothing(invoke: Invoke, tmp_path):
    words = ("run", "quick", "--strategies", "fedavg,relief", "--seeds", "0-2", "--rounds", "3", "--dry-run")
    done = invoke(*words, *SMALL, "--set=data.max_windows_per_client=5", "--out", tmp_path / "runs")
    assert done.exit_code == 0 and not (tmp_path / "runs").exists()
    assert "quick: 6 runs (6 planned)" in done.stdout and "  rounds = 3" in done.stdout
    assert "  backbone.conv1 = 2" in done.stdout and "as fedavg: one timed round" in done.stdout
    assert "seed" not in done.stdout.partition("settings that differ")[2], "what a run is repeated over is in the table"
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    facts = json.loads(invoke(*words, *SMALL, "--json", "--out", tmp_path / "runs").stdout)
    assert [c["cell"] for c in facts["cells"]][:3] == ["fedavg-s0", "relief-s0", "fedavg-s1"]
    assert facts["settings"]["training.epochs"] == "1" and facts["core_s"] > 0
    assert "(work: set-up, rounds and tests of every run)" in done.stdout
    assert (facts["start_s"], facts["wall_s"]) == (0.0, facts["core_s"]), "these runs use no Ray"


def test_a_setting_in_which_runs_differ_is_shown_with_the_default_of_those_that_have_it(tmp_path):
    drawn = ("data.partition=dirichlet", "data.num_clients=4", "seeds=[0,1,2]")
    assert differing(planned("quick", tmp_path, *drawn))["data.seed"] == "0, 1, 2"
    shown = differing(planned("quick", tmp_path, *drawn[:2], "seeds=[0]"))
    assert shown.keys().isdisjoint({"data.seed"}) and shown["data.partition"] == "dirichlet"
    assert differing(planned("quick", tmp_path, *drawn, "data.seed=5"))["data.seed"] == "5"


@pytest.mark.ci
def test_a_dry_run_counts_rays_start_where_runs_need_it(invoke: Invoke, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = ("run", "quick", "--rounds", "1", "--dry-run", *SMALL, "--set=data.max_windows_per_client=5")
    for more, start_s in (
        ("--jobs=2", START_S),
        ("--set=runtime.mode=packed", START_S),
        ("--address=1.2.3.4:6379", 0.0),
    ):
        facts = json.loads(invoke(*words, more, "--json", "--out", tmp_path / "runs").stdout)
        assert facts["start_s"] == start_s and facts["wall_s"] == facts["core_s"] / facts["cores"] + start_s
    shown = invoke(*words, "--jobs=2", "--out", tmp_path / "runs").stdout
    assert re.search(r"in all \S+ s of work, \S+ MiB of disk; on 2 cores it takes \S+ s with Ray's start\n", shown)
    assert "(work: set-up, rounds and tests of every run; Ray's start: 20 s)" in shown


@pytest.mark.ci
@pytest.mark.ray
def test_runs_side_by_side_have_the_bits_of_one_after_the_other(invoke: Invoke, cluster, tmp_path):
    words = ("run", "quick", "--strategies", "fedavg,relief", "--seeds", "0,1", *SMALL)
    assert invoke(*words, "--out", tmp_path / "one").exit_code == 0
    done = invoke(*words, "--jobs", 2, "--out", tmp_path / "two")
    assert done.exit_code == 0, done.output
    assert "[4/4]" in done.stdout and "Figure" in done.stdout, "the table of `run` comes after the last of them"
    for name in ("fedavg-s0", "relief-s1"):
        one, two = (tuple(map(comparable, read_rounds(tmp_path / place / name))) for place in ("one", "two"))
        assert one == two and len(one) >= 2
        assert read_run(tmp_path / "two" / name).parent is None, "they are cells of no grid"


FRAGILE = """
from pathlib import Path


def fragile(alpha, reduction, state, reduced, tools):
    if Path({flag!r}).exists():
        raise KeyError("no such group")
    return damped(alpha, reduction, state, reduced, tools)
"""


@pytest.mark.ci
@pytest.mark.ray
def test_one_of_several_that_fails_stops_no_other_and_resume_goes_on(invoke: Invoke, cluster, write, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    name = write(METHOD.replace("partial(damped", "partial(fragile") + FRAGILE.format(flag=str(flag)))
    out = tmp_path / "runs"
    done = invoke("run", "quick", "--strategies", f"fedavg,{name}:Mine", *SMALL, "--jobs", 2, "--out", out)
    assert done.exit_code == 5 and "1 of 2 runs failed" in done.stderr and "relief-ray resume" in done.stderr
    assert "no such group" in done.stderr and read_run(out / "fedavg-s0").status == "done"
    flag.unlink()
    resumed = invoke("resume", out, "--jobs", 2)
    assert resumed.exit_code == 0, resumed.output
    assert read_run(out / f"{name}.Mine-s0").status == "done"


@pytest.mark.ci
@pytest.mark.parametrize("axis", [("--seeds", "0-1"), ("--set", "replicates=2")])
def test_partitions_that_are_drawn_for_each_replicate_stand_in_one_table(invoke, tmp_path, axis):
    drawn = ["--set=data.partition=dirichlet", "--set=data.dirichlet_alpha=0.3", "--set=data.num_clients=8"]
    line = ["run", "quick", "--strategies", "fedavg", "--rounds", 1, "--out", tmp_path / "x", *axis, *drawn, *SMALL]
    done = invoke(*line)
    assert done.exit_code == 0 and "±" in done.stdout, done.output
    done = invoke("report", tmp_path / "x")
    assert done.exit_code == 0 and (tmp_path / "x" / "report" / "report.md").read_text().count("\n## ") == 2
