from __future__ import annotations

import math

from relief_ray.records import Metrics, read_rounds
from relief_ray.records.metrics import METRICS, round_scalars
from relief_ray.records.sync_state import SyncState, Target, flat_params, read_sync, write_failure, write_sync


def test_a_round_gives_its_scalars(finished):
    metrics = Metrics(f1=0.5, f1_fleet=0.25, f1_rare=0.125, accuracy=0.625)
    record = read_rounds(finished)[1].model_copy(update={"metrics": metrics, "speedup": 2.0, "trained_fraction": 0.75})
    assert round_scalars(record, "split") == {
        "f1": 0.5,
        "f1_fleet": 0.25,
        "f1_rare": 0.125,
        "accuracy": 0.625,
        "loss": 0.5,
        "speedup": 2.0,
        "trained_fraction": 0.75,
        "round_s": 2.5,
        "time_s": 4.0,
        "energy_j": 30.0,
        "bytes_up": 162.0,
        "bytes_down": 400.0,
        "wall_s": 0.5,
    }
    assert set(round_scalars(record, "split")) == set(METRICS)


def test_what_is_not_known_or_not_finite_is_left_out(finished):
    record = read_rounds(finished)[0].model_copy(update={"clients": (), "speedup": math.nan, "trained_fraction": None})
    assert set(round_scalars(record, "measured")) == {"wall_s"}


def test_parameters_are_flat():
    config = {"a": {"b": 1, "c": {"d": None}}, "e": [1, 2], "f": "x" * 600, "g": True}
    assert flat_params(config) == {"a.b": "1", "a.c.d": "null", "e": "[1, 2]", "f": "x" * 500, "g": "true"}


def test_the_watermark_is_kept_per_store_and_holds_no_credentials(tmp_path):
    assert read_sync(tmp_path) == SyncState()
    write_sync(tmp_path, "http://me:pw@h", Target(run_id="r", step=3))
    write_failure(tmp_path, "cannot reach http://me:pw@h")
    write_sync(tmp_path, "sqlite:////x", Target(run_id="s"))
    assert read_sync(tmp_path).targets == {
        "http://***@h": Target(run_id="r", step=3),
        "sqlite:////x": Target(run_id="s"),
    }
    write_failure(tmp_path, "cannot reach http://me:pw@h")
    assert read_sync(tmp_path).error == "cannot reach http://***@h" and len(read_sync(tmp_path).targets) == 2
    (tmp_path / "sync.json").write_text("{torn")
    assert read_sync(tmp_path) == SyncState()
