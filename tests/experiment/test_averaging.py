"""Averaged models: by hand, against numpy, what they leave alone, and that a run's training never sees them."""

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relief_ray.config.experiment import parse
from relief_ray.core.messages import ServerState
from relief_ray.experiment.evaluation import NO_AVERAGES, advanced, evaluate_run, is_tested, with_averages
from relief_ray.experiment.export import common_model
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.recording import binding_of
from relief_ray.records import checkpoint
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import after_rounds, config_of, drive


def state(**models):
    return ServerState(models={name: {"a": torch.tensor([value])} for name, value in models.items()})


def by_name(state):
    return {name: name for name in state.models}


def config(rounds=5, **evaluation):
    return parse({"rounds": rounds, "evaluation": evaluation})


def figures(config, values):
    """The model that each tested round tests, where round ``1 + i`` ends with ``values[i]``; most averages kept."""
    averages, tested, most = NO_AVERAGES, {}, 0
    for round_, value in enumerate(values, 1):
        now = state(**{"global": value})
        averages = advanced(config, averages, round_, now, by_name(now))
        most = max(most, len(averages.models))
        if is_tested(config, round_):
            tested[round_] = float(with_averages(now, averages, by_name(now)).models["global"]["a"])
    return tested, most


def test_a_tail_of_three_by_hand():
    """Tested in rounds 2, 4 and 5; round 2 has but two rounds behind it."""
    tested, most = figures(config(every=2, average="tail", window=3), [1.0, 2.0, 6.0, 1.0, 8.0])
    assert tested == pytest.approx({2: 1.5, 4: 3.0, 5: 5.0}) and most == 2


def test_an_ema_by_hand():
    """x = 8; 0.75 * 8 + 0.25 * 4 = 7; 0.75 * 7 + 0.25 * 0 = 5.25."""
    tested, most = figures(config(3, every=1, average="ema", decay=0.75), [8.0, 4.0, 0.0])
    assert tested == pytest.approx({1: 8.0, 2: 7.0, 3: 5.25}) and most == 1


values = st.lists(st.floats(-8.0, 8.0, width=32), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 6), st.integers(1, 8))
def test_a_tail_is_the_mean_of_the_last_rounds(values, every, window):
    """Never more copies than stated."""
    tested, most = figures(config(len(values), every=every, average="tail", window=window), values)
    for round_, mean in tested.items():
        past = values[:round_][-window:]
        assert mean == pytest.approx(float(np.mean(past)), abs=1e-5)
    assert most <= ceil(window / every) + 1


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 4), st.floats(0.0, 0.99))
def test_an_ema_is_numpys(values, every, decay):
    tested, _ = figures(config(len(values), every=every, average="ema", decay=decay), values)
    mean = values[0]
    for round_, value in enumerate(values[1:], 2):
        mean = decay * mean + (1.0 - decay) * value
        if round_ in tested:
            assert tested[round_] == pytest.approx(mean, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 4))
@pytest.mark.parametrize("how", [{"average": "tail", "window": 1}, {"average": "ema", "decay": 0.0}], ids=str)
def test_a_window_of_one_and_a_decay_of_zero_are_the_last_model_to_the_bit(how, values, every):
    tested, _ = figures(config(len(values), every=every, **how), values)
    assert tested == figures(config(len(values), every=every), values)[0]


def test_nothing_is_kept_by_default_nor_between_two_windows():
    assert figures(config(), [1.0, 2.0, 3.0])[1] == 0
    assert figures(config(10, every=5, average="tail", window=2), [1.0, 2.0, 3.0])[1] == 0


def test_what_is_no_floating_point_number_is_the_last_rounds():
    first, second = (
        ServerState(models={"global": {"a": torch.tensor([v]), "count": torch.tensor([n])}})
        for v, n in ((1.0, 3), (2.0, 8))
    )
    how = config(2, every=2, average="tail")
    averages = advanced(how, NO_AVERAGES, 1, first, by_name(first))
    averages = advanced(how, averages, 2, second, by_name(second))
    tested = with_averages(second, averages, by_name(second)).models["global"]
    assert tested["count"].dtype == torch.int64 and int(tested["count"]) == 8 and float(tested["a"]) == 1.5


def test_a_model_that_stands_for_others_begins_anew_and_keeps_its_mean_under_another_name():
    """Cluster 0 of round 1 is cluster 1 of round 2; the other one is new then."""
    how, averages = config(2, every=2, average="tail"), NO_AVERAGES
    rounds = [
        (state(**{"cluster.0": 1.0}), {"cluster.0": "clients 1 2"}),
        (state(**{"cluster.0": 5.0, "cluster.1": 3.0}), {"cluster.0": "clients 3", "cluster.1": "clients 1 2"}),
    ]
    for round_, (now, names) in enumerate(rounds, 1):
        averages = advanced(how, averages, round_, now, names)
    tested = with_averages(*(rounds[1][0], averages, rounds[1][1])).models
    assert {name: float(model["a"]) for name, model in tested.items()} == {"cluster.0": 5.0, "cluster.1": 2.0}


def test_means_before_are_left_as_they_were():
    how, now = config(3, every=3, average="tail"), state(**{"global": 1.0})
    first = advanced(how, NO_AVERAGES, 1, now, by_name(now))
    advanced(how, first, 2, state(**{"global": 9.0}), by_name(now))
    assert float(first.models["3/global"]["a"]) == 1.0 and first.num_rounds == {"3/global": 1}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"window": 3},
            r"evaluation.window = 3 with average = 'last', which does not read it; .*set evaluation.average=",
        ),
        (
            {"average": "tail", "decay": 0.5},
            r"decay = 0.5 with average = 'tail'.*set evaluation.average=ema or remove decay",
        ),
        ({"average": "mean"}, r"evaluation.average = 'mean': expected one of last, tail, ema"),
        ({"average": "ema", "decay": 1.0}, r"evaluation.decay = 1.0"),
        ({"average": "tail", "window": 0}, r"evaluation.window = 0"),
    ],
)
def test_settings_that_nothing_reads_are_refused(values, why):
    with pytest.raises(UserError, match=why):
        parse({"evaluation": values})


def test_the_default_leaves_an_identity_as_it_was():
    assert "evaluation" not in parse({}).identity()
    assert parse({"evaluation": {"average": "ema"}}).identity()["evaluation"] == {"average": "ema"}


# Runs ------------------------------------------------------------------------------------------------------------

HOW = {"last": {}, "tail": {"average": "tail", "window": 2}, "ema": {"average": "ema", "decay": 0.5}}


class Watched(SerialExecutor):
    """Keeps the models that training began with, by round, and those that were tested."""

    def __init__(self, job):
        super().__init__(job)
        self.began, self.tested = {}, []

    def train(self, round_, models, tasks, states):
        self.began[round_] = dict(models)
        return super().train(round_, models, tasks, states)

    def evaluate(self, models, targets, states, part):
        self.tested.append(models)
        return super().evaluate(models, targets, states, part)


def run(case, path, how, **changes):
    evaluation = {"every": 2} | HOW[how]
    watched = []

    def make(job):
        watched.append(Watched(job))
        return watched[0]

    drive(config_of(case, evaluation=evaluation, **changes), path, make)
    return watched[0], read_rounds(path)


@pytest.mark.ci
@pytest.mark.parametrize("case", ["relief", "pilot"])
def test_training_is_the_same_and_what_is_tested_is_the_mean(case, run_cache, tmp_path):
    plain, tail, ema = (run(case, tmp_path / how, how, rounds=4) for how in HOW)
    hashes = [[record.model_sha256 for record in records] for _, records in (plain, tail, ema)]
    assert hashes[0] == hashes[1] == hashes[2]
    watched = tail[0]
    model = "global" if case == "relief" else "client.3"
    after_2, after_3, after_4 = watched.began[3][model], watched.began[4][model], plain[0].tested[-1][model]
    for j, value in watched.tested[-1][model].items():
        torch.testing.assert_close(value, (after_3[j] + after_4[j]) / 2, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(value, after_4[j]) for j, value in watched.tested[-1][model].items())
    assert all(torch.equal(value, after_2[j]) for j, value in plain[0].tested[-2][model].items())
    assert tail[1][-1].metrics != plain[1][-1].metrics or ema[1][-1].metrics != plain[1][-1].metrics


@pytest.mark.ci
@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_is_tested_by_averaged_models(preset, run_cache, tmp_path):
    """Two rounds of each: the record has the same figures as a second evaluation of the checkpoint."""
    changes = {"training": {"epochs": 1, "lr": 0.01, "batch_size": 64}, "rounds": 2}
    _, records = run(preset, tmp_path / "run", "ema", **changes)
    again, recorded = evaluate_run(tmp_path / "run"), records[-1].metrics
    if again.canonical:
        assert again.canonical[0].f1 == recorded.f1
    if again.own:
        assert {s.client: s.f1 for s in again.own} == recorded.f1_by_client


def test_an_export_holds_the_model_that_was_tested(run_cache, tmp_path):
    watched, _ = run("fedavg", tmp_path / "run", "tail")
    setup, folder = reopen(tmp_path / "run")
    point = checkpoint.load(tmp_path / "run", binding_of(setup, folder.run))
    folder.close()
    exported = common_model(setup, point, tmp_path / "run")
    assert all(torch.equal(value, watched.tested[-1]["global"][j]) for j, value in exported.items())
    assert any(not torch.equal(value, point.state.models["global"][j]) for j, value in exported.items())


def test_an_interrupted_run_is_tested_by_the_mean_so_far(run_cache, tmp_path):
    """Stopped after rounds 1 and 2 of the window that ends with round 3."""
    values = config_of("relief", evaluation={"every": 3, "average": "tail", "window": 3})
    drive(values, tmp_path / "run", should_stop=after_rounds(2))
    setup, folder = reopen(tmp_path / "run")
    point = checkpoint.load(tmp_path / "run", binding_of(setup, folder.run))
    folder.close()
    assert point.averages.num_rounds == {"3/global": 2}
    assert evaluate_run(tmp_path / "run").round == 2


def test_a_checkpoint_without_averages_has_no_trace_of_them(run_cache, tmp_path):
    setup, folder = create(config_of("fedavg"), tmp_path / "run")
    folder.close()
    drive(config_of("fedavg"), tmp_path / "run")
    point = checkpoint.load(tmp_path / "run", binding_of(setup, folder.run))
    assert point.averages == NO_AVERAGES
