"""The warning that a run ends before its method's later phase, held against what its clients were really asked."""

import pytest

from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import prepare
from relief_ray.records import read_rounds
from tests.conformance.cases import config_of, drive

FIRST = {"fedlease": {"warm-up", "allocation"}, "harmony": {"unimodal"}, "pilot": {"stage1"}}


def run_of(strategy, rounds, **changes):
    return config_of(strategy["name"], strategy=strategy, rounds=rounds, **changes)


def phases(config, folder):
    drive(config, folder)
    return {client.phase for record in read_rounds(folder) for client in record.clients}


@pytest.mark.parametrize(
    ("strategy", "rounds", "setting"),
    [
        ({"name": "fedlease", "warmup_rounds": 2}, 1, "warmup_rounds = 2"),
        ({"name": "fedlease", "warmup_rounds": 2}, 2, "warmup_rounds = 2"),
        ({"name": "harmony"}, 1, "unimodal_share = 0.6667"),
        ({"name": "harmony", "unimodal_share": 0.75}, 2, "unimodal_share = 0.75"),
        ({"name": "pilot"}, 1, "stage1_share = 0.05"),
        ({"name": "pilot", "stage1_share": 0.75}, 2, "stage1_share = 0.75"),
    ],
)
def test_a_run_says_that_its_later_phase_never_comes_and_the_advice_helps(
    run_cache, tmp_path, strategy, rounds, setting
):
    config = run_of(strategy, rounds)
    setup = prepare(config)
    (warning,) = setup.warnings
    assert warning.startswith(f"{strategy['name']}, {setting}, rounds = {rounds}: ")
    assert run_record(setup).warnings == (warning,)
    assert phases(config, tmp_path / "short") <= FIRST[strategy["name"]]
    advised = int(warning.split("set rounds=")[1].split()[0])
    assert advised == 3 if rounds == 2 or strategy["name"] == "fedlease" else advised == 2
    longer = run_of(strategy, advised)
    assert prepare(longer).warnings == () and not phases(longer, tmp_path / "long") <= FIRST[strategy["name"]]
    key = setting.split()[0]
    assert (f"a smaller strategy.{key}" in warning) is (rounds > 1), "of one round nothing is left to a second phase"


def test_where_clients_miss_rounds_fedlease_may_wait_twice_as_long(run_cache):
    """Two planned rounds: clusters come after four at the latest, so five rounds are enough for sure."""
    strategy = {"name": "fedlease", "warmup_rounds": 2}
    assert "set rounds=5 or more" in prepare(run_of(strategy, 4, participation=0.5)).warnings[0]
    assert prepare(run_of(strategy, 5, participation=0.5)).warnings == ()


def test_a_stage_that_is_everything_has_no_number_of_rounds(run_cache):
    (warning,) = prepare(run_of({"name": "pilot", "stage1_share": 1.0}, 2)).warnings
    assert warning.endswith("is ever mixed in; set a smaller strategy.stage1_share")


@pytest.mark.parametrize("name", ["fedavg", "relief", "darkdistill", "local"])
def test_methods_of_one_phase_say_nothing(run_cache, name):
    assert prepare(config_of(name, rounds=1)).warnings == ()


def test_one_phase_of_harmony_says_nothing(run_cache):
    strategy = {"name": "harmony", "protocol": "one_phase", "fusion_federation": "none"}
    assert prepare(run_of(strategy, 1)).warnings == ()
