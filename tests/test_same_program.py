"""A resume continues the same computation: the same program, the same clocks; anything else is refused or named."""

import pytest

from relief_ray.devices.time import Profile, Throughput, profile_text
from relief_ray.experiment.lifecycle import reopen
from relief_ray.records.identity import other_program, source_digest
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.support.errors import UserError
from tests.conformance.cases import after_rounds, config_of, drive
from tests.sealed import change_run


def begin(path, **changes):
    """Stopped after its bootstrap."""
    drive(config_of("relief", **changes), path, should_stop=after_rounds(1))
    return read_run(path)


def profile(path, speed, backbone="cnn"):
    row = Throughput(forward_flops_per_s=speed, backward_flops_per_s=speed, optimizer_flops_per_s=speed)
    path.write_text(profile_text(Profile(origin="test bench", backbone=backbone, devices=dict.fromkeys("ABC", row))))
    return path


def test_this_program_is_no_other(tmp_path):
    run = begin(tmp_path)
    assert run.source_digest == source_digest() and other_program(run) is None


def test_another_program_is_named_by_what_differs(tmp_path):
    run = begin(tmp_path)
    machine = run.machine.model_copy(update={"torch": "1.0", "architecture": "z80"})
    difference = other_program(run.model_copy(update={"source_digest": "f" * 64, "machine": machine}))
    assert (
        difference is not None
        and f"sources ffffffffffff there, {source_digest()[:12]} here; torch 1.0 there" in difference
    )
    assert "architecture z80 there" in difference


def test_a_resume_by_another_program_is_refused_unless_asked_for_and_then_recorded(tmp_path):
    run = begin(tmp_path)
    change_run(tmp_path, source_digest="f" * 64)
    with pytest.raises(UserError, match=r"begun by another program \(sources ffffffffffff there.*--other-code"):
        reopen(tmp_path)
    setup, folder = reopen(tmp_path, other_code=True)
    folder.close()
    (note,) = read_run(tmp_path).warnings
    assert note.startswith("resumed by another program: sources ffffffffffff there")
    assert setup.engine == run.engine


def test_a_device_profile_counts_by_its_content(tmp_path):
    config = {"costs": {"profile": str(profile(tmp_path / "p.json", 1e9)), "planning_time": "measured"}}
    before = config_of("relief", **config).identity()
    run = begin(tmp_path / "run", **config)
    assert run.calibration["clocks"]["measured"]["profile"]["devices"]["A"]["forward_flops_per_s"] == 1e9
    profile(tmp_path / "p.json", 2e9)
    assert config_of("relief", **config).identity() != before
    with pytest.raises(UserError, match=r"the clocks are not those it was begun with .*p\.json"):
        reopen(tmp_path / "run")
    profile(tmp_path / "p.json", 1e9)
    assert config_of("relief", **config).identity() == before
    reopen(tmp_path / "run")[1].close()


def test_a_profile_of_another_backbone_is_refused(tmp_path):
    named = {"costs": {"profile": str(profile(tmp_path / "p.json", 1e9, "moment_lora"))}}
    with pytest.raises(UserError, match="measured with backbone 'moment_lora', expected 'cnn'"):
        drive(config_of("fedavg", **named), tmp_path / "run")


@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm", "fused"])
def test_fedavg_is_exactly_as_fast_as_itself_under_every_clock(tmp_path, engine):
    config = {
        "costs": {"profile": str(profile(tmp_path / "p.json", 1e9)), "planning_time": "measured"},
        "training": {"epochs": 3, "engine": engine},
        "rounds": 1,
    }
    run = drive(config_of("fedavg", **config), tmp_path / "run")
    record = read_rounds(tmp_path / "run")[-1]
    assert record.speedup == pytest.approx(1.0, abs=1e-12)
    wanted = {clock: row["round_s"] for clock, row in run.budget["fedavg_reference"].items()}
    assert wanted == {clock: pytest.approx(cost.round_s, rel=1e-12) for clock, cost in record.costs.items()}
