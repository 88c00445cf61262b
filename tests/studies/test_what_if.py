"""Finished runs on other hardware: the recorded fleet gives the recorded bits, another one what its speeds say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.allocation import receipts
from relief_ray.config.experiment import parse
from relief_ray.core.messages import Assignment
from relief_ray.devices.fleet import FleetConfig, device_types
from relief_ray.devices.time import Profile, Throughput, profile_text
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create, stored_engine
from relief_ray.plugins.load import digests
from relief_ray.records.identity import other_program
from relief_ray.records.schema import selection
from relief_ray.report.runs import load_runs
from relief_ray.studies.what_if import SAID, price_fleet, what_if
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of
from tests.own import CLOCK

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def runs(run_cache, tmp_path_factory):
    """RELIEF, FedAvg with half the clients, the pooled bound, FedProx with its term's cost, RELIEF+ with one epoch."""
    recorded = {}
    half = {"participation": 0.5}
    cases = (("relief", {}), ("fedavg", half), ("central", {}), ("fedprox", {}), ("fedel", {}), ("relief_plus", {}))
    for case, more in cases:
        path = tmp_path_factory.mktemp(case) / "run"
        setup, folder = create(config_of(case, **more), path)
        with folder:
            Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
        (recorded[case],) = load_runs([path])
    return recorded


@pytest.mark.ci
@pytest.mark.parametrize("case", ["relief", "fedavg", "fedprox", "fedel"])
def test_the_same_fleet_gives_the_recorded_costs_to_the_bit(runs, case):
    loaded = runs[case]
    for before, after in zip(loaded.rounds, what_if(loaded, {}).rounds, strict=True):
        assert (after.costs, after.totals) == (before.costs, before.totals)
        assert (after.speedup, after.fedavg) == (before.speedup, before.fedavg)
        assert after.deadline_s == before.deadline_s


def test_half_the_power_halves_the_joules_and_nothing_else(runs):
    loaded = runs["relief"]
    types = device_types(FleetConfig.model_validate(loaded.run.config["fleet"]))
    halved = {name: {"active_power_w": kind.active_power_w / 2} for name, kind in types.items()}
    after = what_if(loaded, {"types": halved})
    for old, new in zip(loaded.rounds, after.rounds, strict=True):
        for clock in old.costs:
            assert new.costs[clock].round_s == old.costs[clock].round_s
            assert new.costs[clock].energy_j == pytest.approx(old.costs[clock].energy_j / 2)
        assert [c.trained for c in new.clients] == [c.trained for c in old.clients]
        assert (new.metrics, new.model_sha256) == (old.metrics, old.model_sha256)


def test_the_papers_protocol_prices_the_same_allocation_with_more_work(runs):
    """1,900 windows and 5 epochs: as if these tasks had been done there; links and groups stay as recorded."""
    loaded = runs["relief"]
    config = parse({**loaded.run.config, "training": {**loaded.run.config["training"], "epochs": 5}})
    hardware = price_fleet(config, [1900] * 8, stored_engine(loaded.run))
    after = what_if(loaded, {}, windows=1900, epochs=5)
    for old, new in zip(loaded.rounds, after.rounds, strict=True):
        tasks = [
            Assignment(
                client=c.client, down=hardware.layout.select(), train=selection(c.trained), up=selection(c.uploaded),
                epochs=5,
            )
            for c in old.clients
        ]  # fmt: skip
        charged = hardware.accountant.charged(receipts(hardware, tasks), hardware.fleet.clients)
        expected = hardware.accountant.cost(charged, hardware.fleet, 0.0)
        assert {n: c.round_s for n, c in new.costs.items()} == {n: c.round_s for n, c in expected.items()}
        links = [[(c.times.up_s, c.times.down_s) for c in r.costs["split_naive"].clients] for r in (old, new)]
        assert links[0] == links[1] and [c.trained for c in old.clients] == [c.trained for c in new.clients]
        target_s = hardware.strategy.insight.deadline_s(hardware.context(old.round))
        assert new.deadline_s == (None if old.deadline_s is None else target_s)
    assert loaded.rounds[-1].deadline_s < after.rounds[-1].deadline_s
    assert after.run.config["training"]["epochs"] == 5
    last = loaded.rounds[-1], after.rounds[-1]
    assert last[0].speedup < last[1].speedup, "link is a smaller share of a longer round"


@pytest.mark.parametrize("case", ["relief", "fedel", "relief_plus"])
def test_the_recorded_speed_at_the_papers_protocol_is_the_what_ifs(runs, case):
    after = what_if(runs[case], {}, windows=1900, epochs=5)
    speeds = [[r.speedup for r in after.rounds], [r.speedup_paper for r in runs[case].rounds]]
    assert speeds[0] == pytest.approx(speeds[1], rel=1e-6)


def test_a_method_with_a_number_of_epochs_of_its_own_keeps_it(runs):
    """RELIEF+ runs one epoch, however many FedAvg runs."""
    loaded = runs["relief_plus"]
    after = what_if(loaded, {}, epochs=9)
    assert [r.costs for r in after.rounds] == [r.costs for r in loaded.rounds]
    assert all(new.speedup > 2 * old.speedup for new, old in zip(after.rounds, loaded.rounds, strict=True))


def test_methods_that_do_part_of_the_work_still_do(runs):
    """FedProx cuts epochs; FedEL's probe is one batch, whatever the local round."""
    for case in ("fedprox", "fedel"):
        after = what_if(runs[case], {}, epochs=2 * int(runs[case].run.config["training"]["epochs"]))
        for old, new in zip(runs[case].rounds, after.rounds, strict=True):
            for clock, cost in new.costs.items():
                pairs = zip(old.costs[clock].clients, cost.clients, strict=True)
                assert all(b.times.forward_s <= 2.0 * a.times.forward_s * (1 + 1e-9) for a, b in pairs)
                assert cost.round_s > old.costs[clock].round_s


def test_the_result_says_what_it_is(runs):
    after = what_if(runs["relief"], {"gap": 100.0})
    assert SAID in after.run.warnings and after.run.config["fleet"]["gap"] == 100.0
    assert after.run.budget["fedavg_reference"] != runs["relief"].run.budget["fedavg_reference"]
    assert after.run.budget["deadline_s"] == runs["relief"].run.budget["deadline_s"], "planned for the recorded fleet"


def test_a_device_profile_adds_the_measured_clock(runs, tmp_path):
    row = Throughput(forward_flops_per_s=1e6, backward_flops_per_s=1e6, optimizer_flops_per_s=1e6)
    path = tmp_path / "p.json"
    path.write_text(profile_text(Profile(origin="by hand", backbone="cnn", devices=dict.fromkeys("ABC", row))))
    after = what_if(runs["relief"], {}, str(path))
    assert "measured" in after.rounds[-1].costs and "measured" not in runs["relief"].rounds[-1].costs
    assert after.rounds[-1].costs["split_naive"] == runs["relief"].rounds[-1].costs["split_naive"]


def test_a_users_clock_is_read_back_and_charges_the_other_fleet(write, run_cache, tmp_path):
    """All devices as slow as the recorded slowest, whatever the other fleet's speeds; links are the other fleet's."""
    path = f"{write(CLOCK)}:Mine"
    setup, folder = create(config_of("relief", costs={"planning_time": path}), tmp_path / "run")
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
    (loaded,) = load_runs([tmp_path / "run"])
    assert loaded.run.planning_model == path and loaded.run.own_sources == digests([path.partition(":")[0]])
    same, slower = what_if(loaded, {}), what_if(loaded, {"gap": 100.0, "types": {"C": {"latency_s": 9.0}}})
    for old, kept, new in zip(loaded.rounds, same.rounds, slower.rounds, strict=True):
        assert (kept.costs, kept.speedup) == (old.costs, old.speedup)
        assert new.costs[path].round_s > 18.0 > old.costs[path].round_s
        assert [c.times.forward_s for c in new.costs[path].clients] == [
            c.times.forward_s for c in old.costs[path].clients
        ]
    assert other_program(loaded.run) is None
    (file,) = loaded.run.own_sources
    Path(file).write_text(CLOCK + "ANOTHER = 1\n")
    assert file in str(other_program(loaded.run)), "a changed clock is another program, as a changed method is"


def test_other_sensors_are_refused(runs):
    with pytest.raises(UserError, match="the recorded allocation fits the same sensors only"):
        what_if(runs["relief"], {"types": {"C": {"sensors": ["gyro"]}}})


def test_another_chance_to_be_there_is_refused(runs):
    """Who took part is recorded: an `available` that were passed over would look like an answer."""
    expected = r"fleet\.types\.C\.available = 0\.5, but the run has 1: who was there cannot be computed"
    with pytest.raises(UserError, match=expected):
        what_if(runs["relief"], {"types": {"C": {"available": 0.5}}})


def test_an_unknown_key_is_refused(runs):
    with pytest.raises(UserError, match="gapp"):
        what_if(runs["relief"], {"gapp": 3})


def test_pooled_data_are_refused(runs):
    with pytest.raises(UserError, match="pooled data have no fleet"):
        what_if(runs["central"], {})


def test_costs_that_do_not_follow_from_the_recorded_work_are_refused(runs):
    loaded = runs["relief"]
    first, *others = loaded.rounds
    costs = {n: replace(c, energy_j=1.01 * c.energy_j) for n, c in first.costs.items()}
    forged = replace(loaded, rounds=(first.model_copy(update={"costs": costs}), *others))
    with pytest.raises(UserError, match=r"round 1 took .* run it again"):
        what_if(forged, {})


def test_a_record_without_clocks_is_refused(runs):
    loaded = runs["relief"]
    with pytest.raises(UserError, match="names no clocks"):
        what_if(replace(loaded, run=loaded.run.model_copy(update={"calibration": {}})), {})


def test_the_result_is_a_record_like_any_other(runs):
    after = what_if(runs["relief"], {"gap": 10.0})
    assert json.loads(after.run.model_dump_json())["warnings"][-1] == SAID
    assert after.complete
