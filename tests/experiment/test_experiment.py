"""A whole run, end to end, on real data: what it leaves behind is complete and adds up."""

import errno
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from relief_ray.core.codec import encode
from relief_ray.core.federated import RoundVoid
from relief_ray.devices.fleet import PRESETS as DEVICES
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.setup import choose_engine, context_of
from relief_ray.records.cells import look
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import selection
from relief_ray.report.results import cost_figures
from relief_ray.report.runs import load_runs
from relief_ray.strategies.relief.strategy import planned_round_s
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of, drive

pytestmark = pytest.mark.usefixtures("run_cache")
CLOCK = "split_naive"
CLOCKS = {"flop_proportional", "split_naive", "split_reuse"}


def run(path, case="relief", edit=lambda setup: setup, **changes):
    """A finished run's setup, run record and rounds."""
    setup, folder = create(config_of(case, **changes), path)
    setup = edit(setup)
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    return setup, read_run(path), read_rounds(path)


@pytest.fixture(scope="module")
def relief(run_cache, tmp_path_factory):
    path = tmp_path_factory.mktemp("relief") / "run"
    return run(path, evaluation={"every": 2, "parts": ["test", "validation"]}, record={"pairwise_every": 2}, rounds=3)


@pytest.fixture(scope="module")
def fedavg(run_cache, tmp_path_factory):
    return run(tmp_path_factory.mktemp("fedavg") / "run", "fedavg")


# Records ---------------------------------------------------------------------------------------------------------


def test_the_run_record_says_what_was_run(relief):
    setup, record, _ = relief
    assert (record.status, record.strategy, record.engine, record.data_origin) == (
        "done",
        "relief",
        choose_engine(setup.config),
        "real",
    )
    assert record.planning_model == CLOCK and record.calibration["origin"] == "FITTED"
    assert set(record.calibration["clocks"]) == set(record.budget["fedavg_reference"]) == CLOCKS
    assert record.budget["deadline_s"] > 0.0 and record.num_resumes == 0
    assert record.data_digest == setup.data.digest and len(record.cell) == 16 and len(record.source_digest) == 64
    assert [sum(c["train"]) for c in record.coverage["clients"]] == [c.num_windows for c in setup.fleet.clients]
    assert record.created <= record.finished


def test_the_bootstrap_is_the_first_round_and_trains_all_that_is_accessible(relief):
    setup, _, rounds = relief
    assert [r.round for r in rounds] == [1, 2, 3]
    assert [r.phase for r in rounds] == ["bootstrap", "train", "train"]
    for client in rounds[0].clients:
        accessible = setup.layout.accessible(setup.fleet[client.client].modalities)
        assert client.trained == client.uploaded == tuple(g.id for g in accessible)


def test_evaluated_every_second_round_and_in_the_last(relief):
    _, _, rounds = relief
    assert [r.metrics is not None for r in rounds] == [False, True, True]
    assert [r.validation is not None for r in rounds] == [False, True, True]
    assert [bool(r.pairwise) for r in rounds] == [False, True, False]


def test_an_evaluation_is_complete_and_consistent(relief):
    setup, _, rounds = relief
    metrics = rounds[-1].metrics
    counts = np.array(metrics.confusion)
    assert counts.sum() == metrics.num_windows == len(setup.data.test)
    assert metrics.accuracy == pytest.approx(np.trace(counts.sum(0)) / counts.sum())
    assert metrics.f1 == pytest.approx(
        np.mean([f for f in metrics.f1_by_class if f] + [0.0] * metrics.f1_by_class.count(0.0))
    )
    assert set(metrics.f1_by_subject) == {str(s) for s in setup.data.spec.subjects}
    assert set(metrics.f1_by_modality) == {"acc", "gyro", "mag"} and metrics.f1_rare == metrics.f1_by_modality["mag"]
    assert rounds[-1].validation.num_windows == len(setup.data.validation) != metrics.num_windows


def test_every_client_reports_what_it_did(relief):
    setup, _, rounds = relief
    for record in rounds:
        assert record.participants == tuple(c.client for c in record.clients) == tuple(range(8))
        assert record.rejected == {} and record.wall_s > 0.0 and len(record.model_sha256) == 64
        for client in record.clients:
            assert client.num_windows == setup.fleet[client.client].num_windows
            assert client.num_steps == -(-client.num_windows // 32) and client.epochs == 1 and client.loss > 0.0
            assert set(client.sq_norm) == set(client.uploaded) and client.measured_stages.forward_s > 0.0
    assert rounds[0].loss > 0.0


def test_bytes_are_the_codecs_length_of_what_was_really_sent(relief):
    """Encoded for real: header, names and values of each client's selection."""
    setup, _, rounds = relief
    everything = len(encode(setup.layout, setup.layout.select(), setup.start))
    for record in rounds:
        for client in record.clients:
            up = selection(client.uploaded)
            assert client.bytes_up == (len(encode(setup.layout, up, {j: setup.start[j] for j in up})) if up else 0)
            assert client.bytes_down == everything


def test_every_clock_charges_every_client(relief):
    """A round lasts as long as its slowest client; who is done waits at idle power."""
    setup, _, rounds = relief
    for record in rounds:
        assert set(record.costs) == CLOCKS == set(record.totals)
        for cost in record.costs.values():
            busy = [c.times.busy_s for c in cost.clients]
            assert len(busy) == 8 and cost.round_s == pytest.approx(max(busy))
            assert [c.wait_s for c in cost.clients] == pytest.approx([cost.round_s - b for b in busy])
            energy = [joules(setup, c) for c in cost.clients]
            assert [c.energy_j for c in cost.clients] == pytest.approx(energy)
            assert cost.energy_j == pytest.approx(sum(energy))


def joules(setup, cost):
    """Active power while computing, 0.6 of it on the link, a fifth of it while waiting (Section VI-A)."""
    times, power = cost.times, DEVICES["paper"][setup.fleet[cost.client].device].active_power_w
    computing = times.forward_s + times.backward_s + times.optimizer_s
    return power * (computing + 0.6 * (times.up_s + times.down_s) + 0.2 * cost.wait_s)


def test_reuse_is_never_slower_than_naive(relief):
    _, _, rounds = relief
    for record in rounds:
        assert record.costs["split_reuse"].round_s <= record.costs["split_naive"].round_s


def test_totals_are_sums_over_all_rounds_the_bootstrap_included(relief):
    _, _, rounds = relief
    for clock in CLOCKS:
        total = rounds[-1].totals[clock]
        assert total.time_s == pytest.approx(sum(r.costs[clock].round_s for r in rounds))
        assert total.energy_j == pytest.approx(sum(r.costs[clock].energy_j for r in rounds))
        assert total.bytes_up == sum(c.bytes_up for r in rounds for c in r.clients)
        assert total.bytes_down == sum(c.bytes_down for r in rounds for c in r.clients)


def test_no_round_is_longer_than_the_planned_one(relief):
    """T* is a budget of groups: a round may pass it, but not the planned round with the dearest groups."""
    setup, record, rounds = relief
    assert {r.deadline_s for r in rounds} == {record.budget["deadline_s"]}
    planned_s = planned_round_s(setup.config.strategy, context_of(setup, 1))
    assert all(r.costs[CLOCK].round_s <= planned_s * (1 + 1e-9) for r in rounds[1:])
    assert rounds[0].costs[CLOCK].round_s > planned_s, "the bootstrap trains everything"


def test_speedup_and_trained_share_are_those_of_the_record(relief, fedavg):
    setup, record, rounds = relief
    reference = record.budget["fedavg_reference"][CLOCK]["round_s"]
    for line in rounds:
        assert line.speedup == pytest.approx(reference / line.costs[CLOCK].round_s)
        assert line.speedup_paper > line.speedup, "link is a smaller share of the paper's long rounds"
        trained = [sum(setup.layout[j].numel for j in c.trained) / setup.layout.numel for c in line.clients]
        assert line.trained_fraction == pytest.approx(sum(trained) / 8)
    assert rounds[-1].speedup > 1.5
    assert [r.speedup for r in fedavg[2]] == pytest.approx([1.0] * 3)
    assert [r.trained_fraction for r in fedavg[2]] == [1.0] * 3


def test_divergence_is_known_where_two_trained_and_smoothed_over_rounds(relief):
    _, _, rounds = relief
    assert rounds[0].d_bar == rounds[0].divergence and set(rounds[0].d_bar) == set(relief[0].layout.ids)
    for before, after in pairwise(rounds):
        for j, d_bar in after.d_bar.items():
            expected = 0.9 * after.divergence[j] + 0.1 * before.d_bar[j] if j in after.divergence else before.d_bar[j]
            assert d_bar == pytest.approx(expected)


def test_watched_pairs_are_those_that_share_a_block(relief):
    _, _, rounds = relief
    pairs = rounds[1].pairwise
    assert {j: len(p) for j, p in pairs.items()} == {"fusion.A.acc": 28, "fusion.A.gyro": 15, "fusion.A.mag": 3}
    assert all(-1.0 <= cosine <= 1.0 for rows in pairs.values() for _, _, cosine in rows)


def test_training_learns(tmp_path):
    """Not a benchmark: one device, all data, a few rounds must beat guessing among eight classes by far."""
    _, _, rounds = run(
        tmp_path / "run", "central", training={"epochs": 4, "lr": 0.005}, backbone={"name": "cnn", "fusion": 32}
    )
    assert rounds[-1].metrics.f1 > 0.6 and rounds[-1].loss < rounds[0].loss
    assert [r.speedup for r in rounds] == [None] * 3


# Participation ---------------------------------------------------------------------------------------------------


def test_half_take_part_but_all_clients_are_in_the_bootstrap(tmp_path):
    _, _, rounds = run(tmp_path / "run", "relief, half take part")
    assert [len(r.participants) for r in rounds] == [8, 4, 4]
    assert len({r.participants for r in rounds[1:]}) > 1 and all(
        list(r.participants) == sorted(r.participants) for r in rounds
    )
    for cost in rounds[1].costs.values():
        assert len(cost.clients) == 8, "who is left out pays idle power"
        away = [c for c in cost.clients if c.client not in rounds[1].participants]
        assert all(c.wait_s == cost.round_s and c.energy_j > 0.0 for c in away) and len(away) == 4


def test_speedup_compares_with_fedavg_of_the_same_clients(tmp_path):
    """FedAvg itself is 1.00x whoever takes part, under every clock, in the record and in the summary."""
    _, _, rounds = run(tmp_path / "run", "fedavg", participation=0.4)
    assert len({r.participants for r in rounds}) > 1
    for record in rounds:
        assert record.speedup == pytest.approx(1.0, abs=1e-12)
        assert record.fedavg["split_naive"].round_s == record.costs["split_naive"].round_s
        assert record.fedavg["split_naive"].energy_j == pytest.approx(record.costs["split_naive"].energy_j, rel=1e-12)
    (loaded,) = load_runs([tmp_path / "run"])
    naive = cost_figures(loaded, "split_naive", loaded)
    assert naive["speedup"] == pytest.approx(1.0, rel=1e-12) and naive["energy_saved_percent"] == pytest.approx(
        0.0, abs=1e-12
    )
    _, _, whole = run(tmp_path / "whole", "fedavg")
    assert all(r.fedavg == {} and r.speedup == pytest.approx(1.0, abs=1e-12) for r in whole)


def test_participants_depend_on_seed_and_round_alone(tmp_path):
    chosen = {}
    for case, seed in (("relief", 0), ("fedavg", 0), ("fedavg", 1)):
        _, _, rounds = run(tmp_path / f"{case}{seed}", case, participation=0.4, seed=seed)
        chosen[case, seed] = [r.participants for r in rounds if r.phase != "bootstrap"]
    assert chosen["relief", 0] == chosen["fedavg", 0][1:] and chosen["fedavg", 0] != chosen["fedavg", 1]
    assert {len(p) for p in chosen["fedavg", 1]} == {3}


def test_at_least_one_client_takes_part(tmp_path):
    _, _, rounds = run(tmp_path / "run", "fedavg", participation=0.01)
    assert [len(r.participants) for r in rounds] == [1, 1, 1]


def test_a_round_in_which_nobody_may_work_changes_nothing(tmp_path):
    """`full_only` draws clients without a magnetometer."""
    _, _, rounds = run(tmp_path / "run", "full_only, idle rounds", participation=0.1, rounds=6)
    idle = [r for r in rounds if not r.participants]
    assert idle and len(idle) < 6, "this seed draws both kinds"
    for record in idle:
        before = [r for r in rounds if r.round == record.round - 1]
        assert all(record.model_sha256 == b.model_sha256 for b in before)
        assert record.phase == "idle" and record.speedup is None and record.trained_fraction == 0.0
        assert record.loss is None


def unusable(setup):
    """Type C's updates are NaN: those clients work and send for nothing."""

    def spoil(context, update):
        if context.info.device != "C":
            return update
        return replace(update, delta={j: d * float("nan") for j, d in update.delta.items()})

    return replace(setup, job=replace(setup.job, program=replace(setup.job.program, after=spoil)))


def test_a_client_whose_update_is_rejected_has_worked_all_the_same(tmp_path):
    """Losing the straggler's update must not look like a faster round."""
    setup, _, rounds = run(tmp_path / "run", "fedavg", unusable, runtime={"quorum": 0.5})
    _, _, sound = run(tmp_path / "sound", "fedavg")
    slow = [c.id for c in setup.fleet.clients if c.device == "C"]
    for record, expected in zip(rounds, sound, strict=True):
        assert sorted(record.rejected) == slow and record.speedup == pytest.approx(1.0, abs=1e-12)
        assert record.costs == expected.costs and record.totals == expected.totals
        assert [c.client for c in record.clients] == [c.client for c in expected.clients]
        assert record.loss is not None and record.loss == record.loss


# Odd and bad input -----------------------------------------------------------------------------------------------


def relabelled(setup):
    """Every client knows one class only; the test set has them all."""
    clients = tuple(replace(w, labels=np.zeros_like(w.labels)) for w in setup.job.clients)
    return replace(setup, job=replace(setup.job, clients=clients))


@pytest.mark.ci
@pytest.mark.parametrize("case", ["relief", "fedavg", "local"])
def test_clients_with_one_class_only_run_and_learn_to_say_it(case, tmp_path):
    _, _, rounds = run(tmp_path / "run", case, relabelled, training={"epochs": 3, "lr": 0.05})
    metrics = rounds[-1].metrics
    assert rounds[-1].loss < 0.1
    f1 = metrics.f1_fleet if case == "local" else metrics.f1
    assert 0.0 < f1 < 0.1, "only one of eight classes is ever named"


def test_a_model_that_is_not_finite_is_not_committed(tmp_path):
    setup, folder = create(config_of("fedavg", training={"lr": 1e38, "epochs": 2}), tmp_path / "run")
    with folder, pytest.raises((RoundVoid, FloatingPointError), match=r"round 1: all 8 clients failed|not finite"):
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    assert read_run(tmp_path / "run").status == "failed" and read_rounds(tmp_path / "run") == ()


def test_output_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="file"):
            create(config_of("fedavg"), path)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    drive(config_of("fedavg"), tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"already holds run \w{16}; resume it or choose another folder"):
        create(config_of("relief"), tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


def test_on_round_sees_every_round(tmp_path):
    rounds = []
    setup, folder = create(config_of("relief"), tmp_path / "run")
    with folder:
        experiment = Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job))
        experiment.run(lambda record: rounds.append(record.round))
    assert rounds == [1, 2, 3]


def test_the_mean_of_personal_parts_stands_beside_the_view(tmp_path):
    """A client that keeps nothing yet is tested on the view as it is, not on the mean of the others."""
    seen = []

    class Watching(SerialExecutor):
        def evaluate(self, models, targets, states, part):
            seen.append((models, targets))
            return super().evaluate(models, targets, states, part)

    setup, folder = create(config_of("fedsa_lora, half take part"), tmp_path / "run")
    with folder:
        Experiment(setup=setup, folder=folder, executor=Watching(setup.job)).run()
    models, (canonical, *clients) = seen[0]
    assert canonical.view == "mean" and {t.view for t in clients} == {"global"}
    assert torch.equal(models["global"]["head.1"], setup.start["head.1"])
    assert not torch.equal(models["mean"]["head.1"], setup.start["head.1"])


# What fails while it is written ------------------------------------------------------------------------------------


def test_a_round_whose_line_is_not_written_leaves_the_clients_as_they_were(tmp_path, monkeypatch):
    """A second try of it begins with the personal parts that the round before committed."""
    setup, folder = create(config_of("local", rounds=2), tmp_path / "run")
    with folder:
        experiment = Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job))
        experiment.run(should_stop=lambda: experiment.next_round == 2)
        before = {c: {k: t.clone() for k, t in s.items()} for c, s in experiment.store.committed.items()}

        def full(record):
            raise UserError("rounds.jsonl: the disk is full")

        with monkeypatch.context() as patch, pytest.raises(UserError, match="disk is full"):
            patch.setattr(folder, "append", full)
            experiment.run()
        after = experiment.store.committed
        assert before and before.keys() == after.keys() and experiment.next_round == 2
        assert all(torch.equal(t, after[c][k]) for c, s in before.items() for k, t in s.items())
        assert experiment.run().status == "done"


def test_a_run_whose_last_checkpoint_is_not_on_disk_is_not_done(tmp_path, monkeypatch):
    """It is saved in a thread: the end waits for it and hears of its failure."""
    setup, folder = create(config_of("local", rounds=1), tmp_path / "run")
    with folder, monkeypatch.context() as patch, pytest.raises(UserError, match="No space left"):
        patch.setattr("relief_ray.records.checkpoint.tensor_pieces", no_space)
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    assert read_run(tmp_path / "run").status == "failed"


def test_a_folder_moved_under_its_run_ends_it_and_nothing_is_made_at_the_old_place(tmp_path):
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    setup, folder = create(config_of("fedavg", rounds=3), path)

    def move(record):
        if record.round == 2:
            path.rename(elsewhere)

    with folder, pytest.raises(UserError, match=r"rounds\.jsonl: removed or replaced while this run was writing"):
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run(move)
    assert not path.exists() and len(read_rounds(elsewhere)) == 2 and look(elsewhere).status == "interrupted"
    setup, folder = reopen(elsewhere)
    with folder:
        assert Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run().status == "done"


def no_space(tensors):
    raise OSError(errno.ENOSPC, "No space left on device")
