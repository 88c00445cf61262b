"""Refused clients in whole runs: who is named where, what the quorum does, and that the others' bits are their own."""

import pickle
from dataclasses import replace

import pytest

from relief_ray.core.federated import RoundVoid
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.experiment.update_filter import _reasons
from relief_ray.records.committed import condense
from relief_ray.records.facts import Alerts, left_out_of, sentence, summary_line
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.report.comparison import compare_runs
from relief_ray.report.remarks import remarks
from relief_ray.report.runs import load_runs
from relief_ray.server.aggregation import NOT_FINITE
from relief_ray.support.errors import LeftOut, UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of
from tests.refusals import REASONS, Absent, huge, run, run_without, spoiled

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.mark.ci
@pytest.mark.parametrize("case", ["fedavg", "relief", "fedlease"])
def test_one_update_of_1e30_is_refused_and_the_others_train_as_if_that_client_were_away(case, tmp_path):
    rounds = run(tmp_path / "huge", spoiled(huge), case, runtime={"quorum": 0.8})
    assert [sorted(r.rejected) for r in rounds if r.round >= 1] == [[], [3], [3]]
    assert all("norm rule" in r.rejected[3] for r in rounds if r.rejected)
    expected = run(tmp_path / "away", case=case, make=Absent)
    assert [r.model_sha256 for r in rounds] == [r.model_sha256 for r in expected]
    assert [c.client for c in rounds[-1].clients] == list(range(8)), "it has worked, and that is charged"


@pytest.mark.ci
@pytest.mark.parametrize("reason", REASONS.values(), ids=REASONS)
def test_every_rule_names_the_client_in_records_and_reports(reason, tmp_path):
    rounds = run_without(tmp_path / "run", reason)
    last = rounds[-1]
    assert reason.rule in last.rejected[3] and summary_line(last) == "7/8 clients"
    device = last.left_out[3].device
    assert (last.left_out[3].cause, last.left_out[3].since) == (reason.cause, 2)
    (entry,) = read_run(tmp_path / "run").left_out
    assert (entry.client, entry.device, entry.cause, entry.rounds) == (3, device, reason.cause, (2, 3))
    (loaded,) = load_runs([tmp_path / "run"])
    told = f"client 3 (type {device}) was left out of 2 rounds (2-3): "
    assert any(told in remark and reason.rule in remark for remark in remarks(compare_runs([loaded])))
    assert any(told in warning for warning in condense(loaded.run, loaded.rounds).warnings)


def test_a_missing_client_is_named_where_it_begins_and_in_the_first_round_that_a_process_hears_of(tmp_path):
    rounds = run_without(tmp_path / "run", REASONS["norm"])
    device, why = rounds[-1].left_out[3].device, [f"its update was refused ({r.rejected.get(3)})" for r in rounds]
    alerts = Alerts()
    first, (news,), again = map(alerts.of, rounds)
    assert (first, again) == ([], []) and news == f"round 2: without client 3 (type {device}): {why[1]}"
    (reminder,) = Alerts().of(rounds[-1])
    assert reminder == f"round 3: still without client 3 (type {device}), since round 2: {why[2]}"
    gone = {3: rounds[-1].left_out[3].model_copy(update={"cause": "lost", "since": 4})}
    later = rounds[-1].model_copy(update={"round": 4, "left_out": gone, "warnings": ("round 4: fusion.B",)})
    other_cause, warned = alerts.of(later)
    assert other_cause.startswith("round 4: without client 3") and warned == "round 4: fusion.B"
    back = later.model_copy(update={"rejected": {}, "left_out": {}, "warnings": ()})
    assert alerts.of(back) == [] and len(alerts.of(rounds[-1])) == 1, "it is missing once more"


@pytest.mark.parametrize(("quorum", "ends"), [(1.0, True), (0.9, True), (0.875, False)])
def test_a_refused_update_counts_against_the_quorum(quorum, ends, tmp_path):
    setup = {"runtime": {"quorum": quorum}}
    if not ends:
        assert len(run(tmp_path / "run", spoiled(huge), **setup)) == 3
        return
    with pytest.raises(RoundVoid, match=r"round 2: the updates of 7 of 8 clients can be used, runtime.quorum = .*norm"):
        run(tmp_path / "run", spoiled(huge), **setup)
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1], "nothing of the void round is committed"


def test_a_round_that_diverges_is_told_what_helps_where_some_updates_are_only_too_far(tmp_path):
    def after(context, update):
        spoil = huge if context.info.id in (2, 5) else (lambda delta: delta * float("nan"))
        return replace(update, delta={j: spoil(d) for j, d in update.delta.items()})

    with pytest.raises(RoundVoid, match=r"norm rule.*; where all clients diverge, lower training.lr") as void:
        run(tmp_path / "run", after)
    assert "not finite" in str(void.value)


def test_a_lone_client_that_diverges_is_told_what_helps():
    rejected = {0: LeftOut(cause="update", why=f"group 'fusion.A.acc': {NOT_FINITE}")}
    fix = "where all clients diverge, lower training.lr or set training.clip_norm"
    assert _reasons(rejected).endswith(f"{NOT_FINITE}; {fix}")


def test_a_void_round_leaves_its_reason_and_a_later_attempt_takes_it_back(tmp_path):
    setup, folder = create(config_of("fedavg", rounds=3), tmp_path / "run")
    after = replace(setup.job.program, after=spoiled(huge))
    with folder:
        experiment = Experiment(setup=setup, folder=folder, executor=SerialExecutor(replace(setup.job, program=after)))
        with pytest.raises(RoundVoid) as void:
            experiment.run()
        run, (entry,) = read_run(tmp_path / "run"), read_run(tmp_path / "run").left_out
        assert (run.status, run.note) == ("failed", str(void.value)) and "runtime.quorum = 1; client 3: " in run.note
        assert (entry.client, entry.device, entry.cause) == (3, setup.fleet[3].device, "update")
        assert entry.rounds == (2,) and "norm rule" in entry.why
        sent = pickle.loads(pickle.dumps(void.value))
        assert (str(sent), sent.rejected) == (str(void.value), void.value.rejected), "from the coordinator's process"
        seen = []
        healthy = Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job))
        healthy.run(lambda record: seen.append((read_run(tmp_path / "run").note, read_run(tmp_path / "run").left_out)))
    assert seen == [("", ()), ("", ())], "gone as soon as it goes on"
    run = read_run(tmp_path / "run")
    assert (run.status, run.note, run.left_out) == ("done", "", ())


def test_a_void_round_is_added_to_those_that_a_client_was_left_out_of(tmp_path):
    def after(context, update):
        return spoiled(huge, 4, from_round=3)(context, spoiled(huge, 3)(context, update))

    with pytest.raises(RoundVoid, match="round 3: the updates of 6 of 8"):
        run(tmp_path / "run", after, runtime={"quorum": 0.8})
    left = [(entry.client, entry.rounds) for entry in read_run(tmp_path / "run").left_out]
    assert left == [(3, (2, 3)), (4, (3,))]
    assert [r.round for r in read_rounds(tmp_path / "run")] == [1, 2]


def test_rounds_of_a_row_are_written_shortly(tmp_path):
    rounds = run(tmp_path / "run", spoiled(huge, from_round=1), runtime={"quorum": 0.5})
    (entry,) = left_out_of([rounds[0], rounds[2]])
    assert "2 rounds (1, 3)" in sentence(entry)
    assert "3 rounds (1-3)" in sentence(left_out_of(rounds)[0])


def test_an_honest_run_names_nobody(tmp_path):
    rounds = run(tmp_path / "run")
    assert all(not r.rejected and not r.left_out and summary_line(r) == "8/8 clients" for r in rounds)
    assert read_run(tmp_path / "run").left_out == ()
    with pytest.raises(UserError, match="quorum"):
        config_of("fedavg", runtime={"quorum": 1.5})
