"""`run` and `resume`: folders, texts, reuse, and every way in which they refuse."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from actors.commands.run import overruled_mode, placed
from actors.runtime.session import SessionOptions
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.studies.plan import Plan, load_spec
from relief_ray.studies.spec import as_typed
from relief_ray.support.errors import UserError
from tests.conformance.cases import after_rounds, drive
from tests.plans import planned, typed
from tests.sealed import change_run

# Stands for the folder of a single run among the words of a command.
SINGLE = "SINGLE"
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


def test_a_run_leaves_a_folder_per_strategy_and_a_line_per_round(runs: Path) -> None:
    assert sorted(p.name for p in runs.iterdir() if p.is_dir()) == ["fedavg-s0", "relief-s0", "v1-s0", "v3-s0"]
    assert [r.round for r in read_rounds(runs / "relief-s0")] == [1, 2]
    assert read_run(runs / "fedavg-s0").status == "done"


def test_lines_show_round_seconds_joules_and_f1(invoke, tmp_path: Path) -> None:
    shown = invoke("run", "quick", "--out", tmp_path, *SMALL, "--set=rounds=1").stdout.splitlines()
    assert shown[0] == f"quick: 1 run; dsa_mini, within subjects; records in {tmp_path}"
    assert shown[1] == "[1/1] relief, seed 0: 1 round, 8 clients in this process, 448 windows (real)"
    assert shown[2] == "devices: 3 A acc gyro mag, 3 B acc gyro, 2 C acc"
    (record,) = [r for r in read_rounds(tmp_path / "relief-s0") if r.round == 1]
    cost = record.costs["split_naive"]
    line = next(line for line in shown if line.startswith("  1/1  loss"))
    assert f"{cost.round_s:.3f} s" in line and f"{cost.energy_j:.3f}"[:3] in line
    assert record.metrics is not None and record.metrics.f1 is not None
    assert f"F1 {100 * record.metrics.f1:.1f} %" in line
    assert shown[3].startswith("WARNING: data dsa_mini: subjects 1 and 6: ")
    assert all(len(text) <= 80 for text in (shown[2], line))


def test_json_is_one_object_per_line_and_agrees_with_the_records(invoke, tmp_path: Path) -> None:
    result = invoke("run", "quick", "--out", tmp_path, *SMALL, "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events[:4]] == ["run", "round", "round", "end"]
    records = read_rounds(tmp_path / "relief-s0")
    assert [e["loss"] for e in events[1:3]] == [r.loss for r in records]
    assert events[2]["energy_j"] == records[-1].totals["flop_proportional"].energy_j
    assert events[3]["status"] == "done"


def test_a_finished_run_is_reused_and_not_computed_again(invoke, runs: Path) -> None:
    before = (runs / "v1-s0" / "rounds.jsonl").read_bytes()
    result = invoke("run", "quick", "--out", runs, "--strategies", "v1", *SMALL, "--set=costs.utilisation=3e-7")
    assert result.exit_code == 0
    assert "[1/1] v1, seed 0: reused, finished already" in result.stdout
    assert (runs / "v1-s0" / "rounds.jsonl").read_bytes() == before


def test_json_of_a_reused_run_keeps_to_the_vocabulary(invoke, runs: Path) -> None:
    options = ["--strategies", "v1", *SMALL, "--set=costs.utilisation=3e-7", "--json"]
    (end,) = [
        json.loads(line)
        for line in invoke("run", "quick", "--out", runs, *options).stdout.splitlines()
        if '"end"' in line
    ]
    assert (end["status"], end["why"]) == ("done", "reused, finished already")


@pytest.mark.ci
def test_the_advice_for_a_damaged_plan_loses_no_result(invoke, tmp_path: Path) -> None:
    """Two runs were planned; one has a round, the other was never begun, and the plan is damaged."""
    command = ["run", "quick", "--out", tmp_path, "--strategies", "fedavg,v1", *SMALL]
    settings = [option.removeprefix("--set=") for option in SMALL]
    plan = planned("quick", tmp_path, *settings, strategies="fedavg,v1")
    plan.write()
    begun = plan.cells[0]
    drive(begun.config, tmp_path / begun.name, should_stop=after_rounds(1))
    first = (tmp_path / begun.name / "rounds.jsonl").read_bytes()
    (tmp_path / "plan.json").write_text("{")
    advice = f"first finish what was begun (relief-ray resume {tmp_path / 'RUN'}), then start it again"
    assert advice in flat(invoke("resume", tmp_path))
    (tmp_path / "plan.json").rename(tmp_path / "damaged.json")
    assert "was begun and is not finished" in flat(invoke(*command)), "the same command alone would not do"
    assert invoke("resume", tmp_path / begun.name).exit_code == 0
    assert (tmp_path / begun.name / "rounds.jsonl").read_bytes().startswith(first)
    assert "fedavg, seed 0: reused, finished already" in " ".join(invoke(*command).stdout.split())
    assert [cell.name for cell in Plan.read(tmp_path).cells] == ["fedavg-s0", "v1-s0"]


@pytest.mark.ci
def test_a_finished_run_of_another_program_is_refused_and_may_be_computed_again(invoke, tmp_path: Path) -> None:
    command = ["run", "quick", "--out", tmp_path, *SMALL, "--set=rounds=1"]
    assert invoke(*command).exit_code == 0
    change_run(tmp_path / "relief-s0", source_digest="f" * 64)
    for words in (command, ["resume", tmp_path]):
        refused = invoke(*words)
        assert refused.exit_code == 2 and "speedup" not in refused.stdout, "no number of the old program is shown"
        said = flat(refused)
        assert "relief-s0: holds a run of other code or weights: sources ffffffffffff there" in said
        assert "--rerun-stale" in said and f"relief-ray resume {tmp_path} --other-code" in said
        assert ("--out DIR" in said) == (words is command), "of `resume` it names where a copy is brought to"
    added = invoke(*command, "--strategies", "relief,fedavg")
    assert added.exit_code == 2 and not (tmp_path / "fedavg-s0").exists(), "nothing is computed beside it"
    taken = invoke("resume", tmp_path, "--other-code")
    assert taken.exit_code == 0 and "speedup" in taken.stdout
    assert "reused, finished already; stale: sources ffffffffffff there" in " ".join(taken.stdout.split())
    assert read_run(tmp_path / "fedavg-s0").status == "done", "what was added is completed with it"
    again = ["resume", tmp_path, "--rerun-stale"]
    for number, words in enumerate(([*command, "--rerun-stale"], again, ["resume", SINGLE, "--rerun-stale"])):
        change_run(tmp_path / "relief-s0", source_digest=f"{number}" * 64)
        again = invoke(*(tmp_path / "relief-s0" if word is SINGLE else word for word in words))
        assert again.exit_code == 0 and "relief, seed 0: reused" not in again.stdout
        assert read_run(tmp_path / "stale" / f"relief-s0-{number * 11111111:08}").source_digest == f"{number}" * 64
        assert len(read_run(tmp_path / "relief-s0").source_digest.strip("012")) > 0
        assert read_rounds(tmp_path / "relief-s0")[-1].round == 1
    assert invoke("compare", tmp_path).exit_code == 0, "what was set aside is not among the runs"


def test_a_begun_run_of_another_program_is_refused_with_the_same_ways_on(invoke, tmp_path: Path) -> None:
    command = ["run", "quick", "--out", tmp_path, *SMALL, "--set=rounds=1"]
    assert invoke(*command).exit_code == 0
    change_run(tmp_path / "relief-s0", source_digest="f" * 64, status="interrupted")
    refused = invoke(*command)
    assert refused.exit_code == 2 and "relief-s0: holds a run of other code or weights" in flat(refused)
    refused = invoke("resume", tmp_path)
    assert refused.exit_code == 2 and "relief-s0: holds a run of other code or weights" in flat(refused)
    assert invoke(*command, "--rerun-stale").exit_code == 0
    assert read_run(tmp_path / "relief-s0").status == "done" and (tmp_path / "stale").is_dir()


def test_a_run_that_only_validates_ends_well_and_says_why_there_is_no_table(invoke, tmp_path: Path) -> None:
    result = invoke("run", "quick", "--out", tmp_path, *SMALL, "--set=rounds=1", "--set=evaluation.parts=[validation]")
    assert result.exit_code == 0 and "never evaluated on the test part" in flat(result)
    assert read_rounds(tmp_path / "relief-s0")[-1].validation is not None
    refused = invoke("run", "quick", "--out", tmp_path / "b", *SMALL, "--set=evaluation.parts=[]")
    assert refused.exit_code == 2 and "evaluation.parts" in flat(refused)


def test_another_run_in_the_folder_is_named_by_its_difference(invoke, runs: Path) -> None:
    result = invoke("run", "quick", "--out", runs, *SMALL, "--set=costs.utilisation=3e-7", "--set=rounds=3")
    assert result.exit_code == 2
    assert "relief-s0: holds another run (rounds is 2 there, asked: 3); choose a folder with --out DIR" in flat(result)


def test_resume_of_a_finished_run_says_so(invoke, runs: Path) -> None:
    result = invoke("resume", runs / "relief-s0")
    assert result.exit_code == 0
    assert "finished already" in result.stdout


def test_a_finished_run_of_other_data_is_not_reused(invoke, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "relief-s0"
    shutil.copytree(runs / "relief-s0", folder)
    change_run(folder, data_digest="0123456789ab" + "0" * 52)
    result = invoke("resume", folder)
    assert result.exit_code == 2 and "was computed on data 0123456789ab, found" in flat(result)


def test_a_single_run_has_nothing_to_run_side_by_side(invoke, runs: Path) -> None:
    result = invoke("resume", runs / "relief-s0", "--jobs", 2)
    assert result.exit_code == 2
    assert "--jobs 2: " in flat(result) and "is a single run; expected the folder of several" in flat(result)


def test_a_run_that_failed_before_its_first_round_can_be_started_again(invoke, tmp_path: Path, monkeypatch) -> None:
    def refuse(options: SessionOptions, lost: object = None) -> None:
        raise UserError(f"cannot join {options.address}")

    # As where no cluster answers (test_session), which this process could not show: it may have joined one already.
    monkeypatch.setattr("actors.launch.ray_session", refuse)
    failed = invoke("run", "quick", "--out", tmp_path, *SMALL, "--set=runtime.mode=packed", "--address", "127.0.0.1:1")
    assert failed.exit_code == 2 and "cannot join 127.0.0.1:1" in failed.stderr
    assert read_run(tmp_path / "relief-s0").status != "done" and not read_rounds(tmp_path / "relief-s0")
    assert invoke("resume", tmp_path, "--set=rounds=9").exit_code == 2
    refused = invoke("resume", tmp_path, "--set=runtime.mode=inline", "--set=runtime.address=127.0.0.1:1")
    assert refused.exit_code == 2 and "which does not read it" in flat(refused), "typed now"
    assert invoke("resume", tmp_path, "--set=runtime.mode=inline").exit_code == 0
    assert read_run(tmp_path / "relief-s0").status == "done"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["run", "quickly"], "unknown (did you mean 'quick'?)"),
        (["run", "smoke"], "run smoke: is a grid, expected a preset or a file; type relief-ray grid smoke"),
        (["run", "missing.yaml"], "missing.yaml: no such file in"),
        (["run", "quick", "--set=rouns=2"], "unknown key 'rouns' (did you mean 'rounds'?)"),
        (["run", "quick", "--set=training.epoch=2"], "unknown key 'training.epoch' (did you mean 'training.epochs'?)"),
        (["run", "quick", "--set=rounds=0"], "rounds = 0: expected a whole number, at least 1"),
        (["run", "quick", "--set=rounds"], "expected path=value"),
        (["run", "quick", "--set=fleet.types={C: {uplink_mbit_s: -1}}"], "expected a number above 0"),
        (["run", "quick", "--set=fleet.types={A: {sensors: [acc, gyro]}}"], "no client owns modality 'mag'"),
        (["run", "quick", "--strategies", "fedavgg"], "unknown strategy 'fedavgg' (did you mean 'fedavg'?)"),
        (["run", "quick", "--strategies", ","], "--strategies: found no name"),
        (["run", "quick", "--bogus"], "No such option: --bogus"),
        (["rum"], "No such command 'rum'"),
        (["run", "pamap2"], "relief-ray data fetch pamap2"),
    ],
)
def test_bad_input_is_one_block_on_stderr_and_exit_code_2(
    invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*args)
    assert result.exit_code == 2
    assert flat(result).startswith("error: ") and expected in flat(result)
    assert result.stdout == "" or "error" not in result.stdout
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("runs/*/*/rounds.jsonl"))


def test_a_folder_that_cannot_be_made_is_named(invoke, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("run", "quick", "--out", tmp_path / "file" / "runs", *SMALL)
    assert result.exit_code == 2
    assert "cannot write the plan: Not a directory" in flat(result)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(invoke, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = invoke("run", "quick", "--out", tmp_path / "runs", *SMALL)
    tmp_path.chmod(0o700)
    assert result.exit_code == 2 and "Permission denied" in flat(result) and "--out DIR" in flat(result)


def test_a_void_round_has_its_own_exit_code_and_commits_nothing(invoke, tmp_path: Path) -> None:
    result = invoke("run", "quick", "--out", tmp_path, *SMALL, "--set=training.lr=1e38")
    assert result.exit_code == 3
    told = "round 1: the updates of 0 of 8 clients can be used, runtime.quorum = 1; clients 0-7: group 'fusion.A.acc': "
    fix = "the update is not finite; where all clients diverge, lower training.lr or set training.clip_norm"
    assert told + fix in flat(result)
    assert read_rounds(tmp_path / "relief-s0") == ()


def test_a_file_runs_with_its_own_strategy_and_the_named_ones(invoke, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "strategy: {name: v1, gamma: 0.5}\nrounds: 1\nseed: 3\ndata: {stride_s: 10.0}\ntraining: {epochs: 1}\n"
        "backbone: {conv1: 2, conv2: 2, steps: 2, fusion: 2}\nruntime: {mode: inline}\ntracking: {enabled: false}\n"
    )
    assert invoke("run", path, "--out", tmp_path / "a").exit_code == 0
    assert read_run(tmp_path / "a" / "v1-s3").config["strategy"]["gamma"] == 0.5
    assert invoke("run", path, "--out", tmp_path / "b", "--strategies", "fedavg").exit_code == 0
    assert read_run(tmp_path / "b" / "fedavg-s3").strategy == "fedavg"


def flat(result) -> str:
    """Standard error with its line breaks undone."""
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("settings", "jobs", "first", "instead_of"),
    [
        ([], 1, None, None),
        ([], 2, "runtime.mode=inline", None),
        (["runtime.placement=typed"], 1, "runtime.mode=actors", "packed"),
        (["runtime.placement=typed"], 2, "runtime.mode=actors", "packed"),
        (["runtime.placement=typed", "runtime.mode=actors"], 1, None, None),
        (["runtime.placement=typed", "runtime.placement=virtual"], 1, None, None),
        (["runtime.physical=true"], 1, "runtime.mode=actors", "packed"),
        (["runtime.address=10.0.0.1:6379"], 1, "runtime.mode=auto", None),
        (["runtime.address=10.0.0.1:6379"], 4, "runtime.mode=auto", None),
        (["runtime.address=null"], 1, None, None),
        (["runtime.physical=true", "runtime.physical=false"], 1, None, None),
    ],
)
def test_types_imply_an_actor_for_each_client_and_say_so(settings, jobs, first, instead_of) -> None:
    given = typed(*settings)
    assert as_typed(placed(given, jobs)) == [*([] if first is None else [first]), *settings]
    assert overruled_mode(load_spec("demo"), given, jobs) == instead_of
    assert overruled_mode(load_spec("dsa"), given, 1) is None, "a preset without a mode of its own loses none"


@pytest.mark.parametrize(
    ("preset", "added"), [("demo", []), *((name, ["runtime.mode=auto"]) for name in ("quick", "dsa"))]
)
def test_a_named_cluster_replaces_no_mode_but_that_of_this_process(preset, added) -> None:
    """The demo is packed on a cluster, too: an actor for each client would be another way to run it."""
    named = typed("runtime.address=10.0.0.1:6379")
    assert as_typed(placed(named, 1, load_spec(preset).settings)) == [*added, *as_typed(named)]


def test_an_address_that_no_run_reads_is_refused(invoke, tmp_path: Path) -> None:
    words = ["run", "quick", "--out", tmp_path, "--strategies", "fedavg", "--rounds", "1"]
    refused = invoke(*words, "--set", "runtime.mode=inline", "--address", "10.0.0.1:6379")
    assert refused.exit_code == 2, refused.output
    said = " ".join(refused.stderr.split())
    assert "runtime.address=10.0.0.1:6379: a run with" in said and "(--set runtime.mode=packed), or no address" in said
    assert not any(ledger.read_bytes() for ledger in tmp_path.rglob("rounds.jsonl"))


@pytest.mark.ci
def test_run_demo_placed_by_type_is_no_packed_run(invoke, tmp_path: Path) -> None:
    """It used to be packed on any nodes, without a word."""
    words = ["run", "demo", "--out", tmp_path, "--dry-run", "--json", "--strategies", "fedavg", "--folds", "0"]
    shown = invoke(*words, "--placement", "typed")
    assert shown.exit_code == 0, shown.output
    assert "NOTE: runtime.placement=typed takes an actor for each client: runtime.mode=actors instead of packed" in (
        shown.stderr
    )
    refused = invoke(*words, "--placement", "typed", "--set", "runtime.mode=packed")
    assert refused.exit_code == 2 and "placement = 'typed' with mode = 'packed'" in refused.stderr


@pytest.mark.ci
def test_claims_are_named_with_the_command_and_judged_at_its_end(invoke, tmp_path: Path) -> None:
    """FedProx's clients train and send what FedAvg's do: its claim is judged all the same."""
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims:\n  - {first: fedprox, second: fedavg}\n")
    words = ("run", "quick", "--out", tmp_path / "runs", "--strategies", "fedavg,fedprox", "--claims", claims)
    few = "at least 6 seeds or replicates are needed (0-5)"
    assert few in " ".join(invoke(*words, "--dry-run", "--seeds", "0-2", *SMALL).stdout.split())
    said = " ".join(invoke(*words, "--seeds", "0-5", "--set=rounds=1", *SMALL).stdout.split())
    assert re.search(r"Of 1 claim named before the first run: (too short to judge|undecided|supported|contr)", said)
    longer = invoke(*words, "--seeds", "0-6", "--set=rounds=1", *SMALL)
    assert longer.exit_code == 2 and "with more of them after the first run was begun it would be" in flat(longer)


@pytest.mark.ci
def test_without_out_other_settings_or_code_take_a_folder_of_their_own(invoke, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", "quick", *SMALL, "--set=rounds=1")

    def place(*more: str) -> str:
        result = invoke(*words, *more)
        assert result.exit_code == 0, flat(result)
        assert ("training.lr is 0.001 there" in flat(result)) == ("--set=training.lr=1" in more)
        return re.search(r"records in (\S+)", result.stdout)[1]

    assert place() == place("--strategies=fedavg") == place("--seeds=[1]") == "runs/quick"
    assert place("--set=training.lr=1") == place("--strategies=v1", "--set=training.lr=1") == "runs/quick-2"
    (tmp_path / "runs/quick-3").mkdir()  # another command's, a moment ago
    assert place("--set=training.lr=1", "--set=costs.utilisation=1e-6") == "runs/quick-4"
    assert {p.name for p in (tmp_path / "runs/quick").iterdir() if p.is_dir()} == {
        "relief-s0",
        "fedavg-s0",
        "relief-s1",
    }
    refused = invoke(*words, "--set=training.lr=1", "--out", "runs/quick")
    assert refused.exit_code == 2 and "holds another run (training.lr is 0.001 there" in flat(refused)


@pytest.mark.ci
def test_without_out_a_run_that_was_begun_is_gone_on_with(invoke, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan.of(
        load_spec("quick"), Path("runs/quick"), typed(*(word.removeprefix("--set=") for word in SMALL))
    ).write()
    drive(plan.cells[0].config, plan.out / plan.cells[0].name, should_stop=after_rounds(1))
    assert invoke("run", "quick", *SMALL, "--out", "runs/quick").exit_code == 2
    result = invoke("run", "quick", *SMALL)
    assert result.exit_code == 0 and "going on after round 1" in " ".join(result.stdout.split())
