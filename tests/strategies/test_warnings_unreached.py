"""The warning that a run ends before its method's later phase, held against what its clients were really asked."""

import pytest

from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import prepare
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import PRESETS
from relief_ray.strategies.common import first_phase_rounds, rounds_beyond
from relief_ray.strategies.pilot import Pilot
from relief_ray.strategies.relief import PRESETS as RELIEF
from tests.conformance.cases import config_of, drive

# Harmony's other warning, of every fleet as small as these.
INERT = "k-means decides nothing"
FIRST = {"fedlease": {"warm-up", "allocation"}, "harmony": {"unimodal"}, "pilot": {"stage1"}}


def run_of(strategy, rounds, **changes):
    return config_of(strategy["name"], strategy=strategy, rounds=rounds, **changes)


def phases(config, folder):
    drive(config, folder)
    return {client.phase for record in read_rounds(folder) for client in record.clients}


@pytest.mark.ci
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
    (warning,) = (w for w in setup.warnings if INERT not in w)
    assert warning.startswith(f"{strategy['name']}, {setting}, rounds = {rounds}: ")
    assert run_record(setup).warnings == setup.warnings
    assert phases(config, tmp_path / "short") <= FIRST[strategy["name"]]
    advised = int(warning.split("set rounds=")[1].split()[0])
    assert advised == 3 if rounds == 2 or strategy["name"] == "fedlease" else advised == 2
    longer = run_of(strategy, advised)
    assert (
        all(INERT in w for w in prepare(longer).warnings)
        and not phases(longer, tmp_path / "long") <= FIRST[strategy["name"]]
    )
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


@pytest.mark.parametrize(
    ("share", "needed"), [(0.05, 2), (0.5, 2), (2 / 3, 2), (0.75, 3), (0.9, 5), (0.99, 51), (1.0, None)]
)
def test_the_least_rounds_leave_one_over_and_one_fewer_does_not(share, needed):
    assert rounds_beyond(share) == needed
    lengths = {n: first_phase_rounds(share, n) for n in range(1, 300)}
    assert all((length < n) is (needed is not None and n >= needed) for n, length in lengths.items())


def test_every_method_says_how_many_rounds_it_needs():
    needed = {name: (c.rounds_needed(1.0), c.rounds_needed(0.5)) for name, c in PRESETS.items()}
    several = {"harmony": (2, 2), "fedlease": (6, 11), "pilot": (2, 2)}
    several |= {name: (2, 2) for name in RELIEF if name not in ("v1", "relief_plus")}  # a bootstrap
    assert needed == {name: several.get(name, (1, 1)) for name in PRESETS}
    assert Pilot(stage1_share=0.0).rounds_needed(1.0) == 1, "without a first stage the first round is of the second"


@pytest.mark.parametrize(
    ("strategy", "num_clients", "is_inert"),
    [
        ({"name": "harmony"}, 8, True),
        ({"name": "harmony"}, 16, False),
        ({"name": "harmony", "by_sensors": False}, 8, False),
        ({"name": "harmony", "clusters": "dominant"}, 8, False),
        ({"name": "harmony", "clusters": 2}, 8, False),
        ({"name": "harmony", "clusters": 1}, 8, False),
    ],
)
def test_harmony_says_where_it_forms_no_clusters(run_cache, strategy, num_clients, is_inert):
    """Sensor sets of eight clients: 3 / 3 / 2, of which the last has one sensor; of sixteen 6 / 6 / 4."""
    many = {"data": {"name": "dsa_mini", "stride_s": 10.0, "num_clients": num_clients, "split": "within_subject"}}
    config = run_of(strategy, 3, **many, fleet={"num_clients": num_clients})
    warnings = prepare(config).warnings
    assert [INERT in warning for warning in warnings] == [True] * is_inert
    if is_inert:
        assert warnings[0].startswith("harmony, clusters = 'size'") and "has 3, so" in warnings[0]
        assert "strategy.clusters=dominant" in warnings[0]
