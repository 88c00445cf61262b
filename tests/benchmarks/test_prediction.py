"""The benchmark of predictions on a backbone of a few hundred values: its rows, its ratios, its file."""

import json
import sys

import pytest

from benchmarks.moment import paired
from benchmarks.prediction import Case, assignments, cases, compare, earlier_profile, load_of, main, table
from relief_ray.config.experiment import parse
from relief_ray.devices.time import profile_text
from relief_ray.experiment.setup import prepare
from relief_ray.profiling.profile import profile_device
from relief_ray.support.errors import UserError
from relief_ray.support.process import use_threads

SMALL = {
    "strategy": "relief",
    "backbone": {"name": "cnn", "conv1": 2, "conv2": 2, "steps": 2, "fusion": 2},
    "data": {"name": "dsa_mini", "stride_s": 10.0},
    "training": {"epochs": 1},
    "runtime": {"mode": "inline"},
}

pytestmark = pytest.mark.usefixtures("run_cache")


def test_every_client_type_is_asked_for_at_least_six_assignments_in_all():
    setup = prepare(parse(SMALL))
    rows = assignments(setup)
    assert [r.client for r in rows if r.name.startswith("everything")] == ["A", "B", "C"]
    assert len({(r.client, r.groups) for r in rows}) == len(rows)
    for client in "ABC":
        own = [r for r in rows if r.client == client]
        assert len(own) >= 4 and any("V0" in r.name for r in own)
        full, *parts = (load_of(setup, r) for r in own)
        assert all(p.backward_flops < full.backward_flops for p in parts)
    poor = {j for r in rows if r.client == "C" and not r.name.startswith("everything") for j in r.groups}
    assert not [j for j in poor if "gyro" in j or "mag" in j]


@pytest.mark.ci
def test_ratios_are_to_full_training_of_the_same_client():
    comparison = compare(Case(name="small", values=SMALL), turns=2)
    rows = comparison["rows"]
    assert [r["measured"] for r in rows if r["assignment"].startswith("everything")] == [1.0] * 3
    for r in rows:
        assert r["error"] == pytest.approx(r["predicted_stages"] / r["measured"] - 1)
        assert r["measured_q1"] <= r["measured"] <= r["measured_q3"] and r["predicted_s"] > 0
    assert comparison["profile"]["status"] == "MEASURED" and comparison["profile"]["turns"] == 2
    assert json.loads(json.dumps(comparison)) == comparison
    assert len(table(comparison).splitlines()) == 2 + len(rows) - 3


@pytest.fixture(scope="module")
def profiled(run_cache):
    use_threads(1)
    return profile_device(parse(SMALL), ("A", "B", "C"), turns=1)


@pytest.mark.ci
def test_an_earlier_profile_is_held_against_the_same_rounds(tmp_path, profiled):
    config, path, profile = parse(SMALL), tmp_path / "earlier.json", profiled
    path.write_text(profile_text(profile))
    comparison = compare(Case(name="small", values=SMALL), 2, path)
    setup = prepare(config)
    for row, r in zip(assignments(setup), comparison["rows"], strict=True):
        own = next(x for x in assignments(setup) if x.client == row.client)
        expected, whole = (sum(profile.devices["A"].compute_s(load_of(setup, x))) for x in (row, own))
        assert r["predicted_earlier"] == pytest.approx(expected / whole)
        assert r["error_earlier"] == pytest.approx(r["predicted_earlier"] / r["measured"] - 1)
    assert comparison["earlier"]["date"] == profile.measured.date and comparison["profile"] != comparison["earlier"]
    lines = table(comparison).splitlines()
    assert {line.count("|") for line in lines[:-2]} == {10}
    assert lines[-1].startswith(f"earlier: a file of `relief-ray device profile`, {profile.measured.date}, commit")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cpu": "another processor"}, "measured on another processor, threads: 1; this is"),
        ({"num_threads": 3}, "threads: 3; this is"),
        ({"settings": {"window": 64}}, r"measured with window 64 \(here 128\)"),
    ],
)
def test_a_profile_of_something_else_is_refused(tmp_path, profiled, change, said):
    path = tmp_path / "other.json"
    path.write_text(profile_text(profiled.model_copy(update={"measured": profiled.measured.model_copy(update=change)})))
    with pytest.raises(UserError, match=said):
        earlier_profile(path, prepare(parse(SMALL)))


def test_a_profile_without_a_type_or_without_conditions_is_refused(tmp_path, profiled):
    path = tmp_path / "other.json"
    path.write_text(profile_text(profiled.model_copy(update={"devices": {"A": profiled.devices["A"]}})))
    with pytest.raises(UserError, match=r"has no row for device types B, C; profile with --types A,B,C"):
        earlier_profile(path, prepare(parse(SMALL)))
    path.write_text(profile_text(profiled.model_copy(update={"measured": None})))
    with pytest.raises(UserError, match="does not say how it was measured"):
        earlier_profile(path, prepare(parse(SMALL)))


def test_an_unknown_case_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prediction", "--cases", "cnn,huge", "--json", str(tmp_path / "f.json")])
    with pytest.raises(SystemExit):
        main()
    assert "--cases huge: expected some of cnn, tiny, small" in capsys.readouterr().err
    assert set(cases()) == {"cnn", "tiny", "small"} and not (tmp_path / "f.json").exists()


def test_paired_ratios_come_from_one_turn_each():
    assert paired([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == {"median": 2.0, "q1": 2.0, "q3": 2.5}
    assert paired([3.0], [2.0]) == {"median": 1.5, "q1": 1.5, "q3": 1.5}
