"""The benchmark of predictions on a backbone of a few hundred values: its rows, its ratios, its file."""

import json
import sys

import pytest

from benchmarks.moment import paired
from benchmarks.prediction import Case, assignments, cases, compare, load_of, main, table
from relief_ray.config import parse
from relief_ray.setup import prepare

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


def test_ratios_are_to_full_training_of_the_same_client():
    found = compare(Case(name="small", values=SMALL), turns=2)
    rows = found["rows"]
    assert [r["measured"] for r in rows if r["assignment"].startswith("everything")] == [1.0] * 3
    for r in rows:
        assert r["error"] == pytest.approx(r["predicted_stages"] / r["measured"] - 1)
        assert r["measured_q1"] <= r["measured"] <= r["measured_q3"] and r["predicted_s"] > 0
    assert found["profile"]["status"] == "MEASURED" and found["profile"]["turns"] == 2
    assert json.loads(json.dumps(found)) == found
    assert len(table(found).splitlines()) == 2 + len(rows) - 3


def test_an_unknown_case_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prediction", "--cases", "cnn,huge", "--json", str(tmp_path / "f.json")])
    with pytest.raises(SystemExit):
        main()
    assert "--cases huge: expected some of cnn, tiny, small" in capsys.readouterr().err
    assert set(cases()) == {"cnn", "tiny", "small"} and not (tmp_path / "f.json").exists()


def test_paired_ratios_come_from_one_turn_each():
    assert paired([2.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == {"median": 2.0, "q1": 2.0, "q3": 2.5}
    assert paired([3.0], [2.0]) == {"median": 1.5, "q1": 1.5, "q3": 1.5}
