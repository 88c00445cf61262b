"""A device profile of this machine: made by training, read by the existing loader, used by the existing clock."""

from pathlib import Path

import pytest

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.core.messages import Assignment
from relief_ray.core.stages import descendants
from relief_ray.devices.time import Profile, load_profile, profile_text
from relief_ray.experiment.setup import choose_engine, prepare
from relief_ray.profiling.profile import (
    EVERYTHING,
    LEAST,
    groups_to_train,
    open_bench,
    profile_device,
    scenarios,
    spread,
)
from relief_ray.records.identity import commit
from relief_ray.support.errors import UserError

SMALL = {"name": "cnn", "conv1": 2, "conv2": 2, "steps": 2, "fusion": 2}
VALUES = {"backbone": SMALL, "data": {"name": "dsa_mini", "stride_s": 10.0}, "runtime": {"mode": "inline"}}


def config(**changes: object) -> ExperimentConfig:
    return parse({**VALUES, **changes})


@pytest.fixture(scope="module")
def profile(run_cache: Path) -> Profile:
    return profile_device(config(), ("A", "C"), turns=2)


def test_a_profile_says_on_what_it_was_measured(profile):
    seen = profile.measured
    assert profile.origin.startswith("MEASURED ") and seen.status == "MEASURED" and seen.turns == 2
    assert seen.cpu and seen.num_cores >= 1 and seen.num_threads == 1 and seen.torch_build and seen.date.endswith("UTC")
    assert seen.commit == commit() and seen.spread >= 0
    assert seen.settings["backbone.conv1"] == 2 and seen.settings["windows_per_batch"] == 32
    assert (profile.backbone, profile.engine, sorted(profile.devices)) == ("cnn", choose_engine(config()), ["A", "C"])


def test_the_existing_loader_reads_it_back_equal(profile, tmp_path):
    (tmp_path / "p.json").write_text(profile_text(profile))
    assert load_profile(tmp_path / "p.json") == profile


TINY = {"name": "moment_lora", "size": "tiny"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("backbone", "micro_batch", "max_step_bytes"),
    [
        (SMALL, None, 2**29),
        (SMALL, 3, 2**29),
        # 0.9 MB a window of one sensor's two blocks, so 3 windows of one, 1 of three.
        pytest.param(TINY, None, 3 * 10**6, marks=pytest.mark.slow),
        pytest.param(TINY, None, 2**29, marks=pytest.mark.slow),
        pytest.param(TINY, 3, 2**29, marks=pytest.mark.slow),
    ],
)
def test_scenes_time_every_stage_in_every_mode_that_a_client_can_ask_for(
    backbone, micro_batch, max_step_bytes, run_cache, monkeypatch
):
    monkeypatch.setattr("relief_ray.core.stages.MAX_STEP_BYTES", max_step_bytes)
    setup = prepare(config(backbone=backbone, training={"batch_size": 4, "micro_batch": micro_batch}))
    bench = open_bench(setup)
    timed = profile_device(setup.config, ("A",), turns=1).devices["A"].stagewise
    for scenario in scenarios(setup.layout, setup.fleet.modalities, 4, 1):
        load, spans = bench.load(scenario), bench.train(scenario).spans
        assert timed.seconds(load)
        # What the cost model says runs is what the trainer was seen to run.
        assert {(r.stage, r.mode) for r in load.runs if r.mode} == {
            (s.stage, s.phase) for s in spans if s.phase not in ("live", "frozen")
        }
        assert {r.stage for r in load.runs if r.live} == {s.stage for s in spans if s.phase == "live"}
        calls = {r.stage: timed.repeats(load, r, timed.parts(load)) for r in load.runs}
        forward = [s for s in spans if s.phase in ("live", "frozen")]
        rows = {r: [s.rows for s in forward if s.stage == r] for r in calls}
        assert calls == {r: (len(numbers), sum(numbers)) for r, numbers in rows.items()}


def test_scenes_begin_with_everything_and_repeat_nothing(run_cache):
    layout = prepare(config()).layout
    planned = scenarios(layout, ("acc", "gyro", "mag"), 32, 2)
    assert [s.name for s in planned[:2]] == [EVERYTHING, LEAST] and len({s.name for s in planned}) == len(planned)
    assert {s.rows for s in planned} == {4, 32} and {len(s.present) for s in planned} == {1, 3}
    assert len({(s.groups, s.present, s.rows, s.epochs) for s in planned}) == len(planned)
    assert set(groups_to_train(layout)["everything"]) == set(layout.ids)


def test_predictions_grow_with_the_work(profile, run_cache):
    setup, row = prepare(config()), profile.devices["A"]
    counter = setup.accountant.counter

    def seconds(groups, num_windows=64):
        task = Assignment(client=0, down={}, train=setup.layout.select(groups), up={}, epochs=2)
        footprint = counter.footprint(("acc",), task, "reuse")
        load = footprint.workload(
            num_windows=num_windows, epochs=2, num_steps=num_windows // 16, bytes_up=0, bytes_down=0
        )
        return sum(row.compute_s(load))

    everything, block = setup.layout.ids, ("fusion.A.acc",)
    assert 0 < seconds(block) < seconds(everything) < seconds(everything, 6400)
    assert len(descendants(counter.costs.stages, block)) < len(counter.costs.stages)


def test_a_profile_of_another_engine_is_refused(profile, tmp_path, run_cache):
    (tmp_path / "p.json").write_text(profile_text(profile))
    costs = {"profile": str(tmp_path / "p.json")}
    with pytest.raises(
        UserError, match=r"measured with engine '(fused|gemm)', this run trains with 'naive'; .*engine=naive"
    ):
        prepare(config(costs=costs, training={"engine": "naive"}))
    with pytest.raises(UserError, match=r"none for type 'B'"):
        prepare(config(costs=costs))


def test_spread():
    assert spread([3.0]) == 0.0 and spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)
