"""`device profile` from the command line: a file that a run can use and records by its content."""

import json
from pathlib import Path

import pytest

from relief_ray.devices.time import load_profile
from relief_ray.records.run_folder import read_rounds, read_run

SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


@pytest.fixture(scope="module")
def profile(invoke, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("profile") / "here.json"
    result = invoke("device", "profile", "--turns", 1, "--out", path, *SMALL)
    assert result.exit_code == 0, result.output
    return path, result.stdout


@pytest.mark.ci
def test_it_shows_what_it_measured_and_how_to_use_it(profile: tuple[Path, str]) -> None:
    path, text = profile
    saved = load_profile(path)
    assert f"MEASURED {saved.measured.date}" in text and saved.measured.torch in text
    assert all(f"  {stage} " in text for stage in saved.devices["A"].stagewise.stages)
    assert f"--set costs.profile={path} --set costs.planning_time=measured" in text
    assert all(len(line) <= 120 for line in text.splitlines() if str(path) not in line)


def test_a_run_plans_with_it_and_keeps_it(invoke, profile: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = profile
    settings = [f"--set=costs.profile={path}", "--set=costs.planning_time=measured"]
    result = invoke("run", "quick", "--out", tmp_path, *SMALL, *settings)
    assert result.exit_code == 0, result.output
    run = read_run(tmp_path / "relief-s0")
    assert run.planning_model == "measured" and not [w for w in run.warnings if "extrapolated" in w]
    kept = run.calibration["clocks"]["measured"]["profile"]
    assert kept == load_profile(path).model_dump(mode="json")
    last = read_rounds(tmp_path / "relief-s0")[-1]
    assert last.costs["measured"].round_s > 0 and last.deadline_s is not None
    shown = json.loads(invoke("fleet", "show", tmp_path / "relief-s0", "--json").stdout)
    assert shown["target_s"]["measured"] == last.deadline_s


def test_a_profile_of_another_shape_is_named(invoke, profile: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = profile
    other = ["--set=training.missing=zero_feature", f"--set=costs.profile={path}"]
    assert invoke("run", "quick", "--out", tmp_path, *SMALL, *other).exit_code == 0
    (said,) = (w for w in read_run(tmp_path / "relief-s0").warnings if "extrapolated" in w)
    assert "measured with missing 'zero_input' (here 'zero_feature'): its seconds are extrapolated" in said
    assert "conv1" not in said


@pytest.mark.ci
def test_json_and_chosen_types(invoke, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    result = invoke("device", "profile", "--turns=1", "--types=watch, C", "--json", "--out", out, *SMALL)
    printed = json.loads(result.stdout)
    assert list(printed["devices"]) == ["watch", "C"], "of any fleet"
    assert printed["measured"]["status"] == "MEASURED"
    assert printed["path"] == str(out) and load_profile(out).backbone == "cnn"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--backbone=resnet"], "--backbone resnet: unknown; expected one of cnn, moment_lora"),
        (["--types=A,2"], "--types A,2: '2': expected a name of letters, digits and _, a letter first; name types of"),
        (["--types=,"], "--types ,: '': expected a name of letters, digits and _"),
        (["--out=no/such/folder/p.json"], "expected a file in a folder that is there"),
        (["--set=training.epoch=2"], "unknown key 'training.epoch'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(invoke, args: list[str], expected: str) -> None:
    result = invoke("device", "profile", *args)
    assert result.exit_code == 2 and expected in " ".join(result.stderr.split())
