"""Whose seconds a device profile is good for, and what is said where it is not."""

import json

import pytest

from relief_ray.config import parse
from relief_ray.devices.time import Conditions, Profile, Throughput, load_profile, save_profile
from relief_ray.experiment.clocks import foreign_profile, profile_settings, run_clocks
from tests.models.tiny_moment import SHAPE

ROW = Throughput(forward_flops_per_s=1e9, backward_flops_per_s=1e9, optimizer_flops_per_s=1e9)


def config(path, training=None, **backbone):
    return parse(
        {
            "backbone": {"name": "moment_lora", "size": "tiny", **backbone},
            "data": {"name": "dsa_mini"},
            "training": training or {},
            "costs": {"profile": str(path)},
        }
    )


def measured_with(path, asked, **also):
    """A profile file made with what ``asked`` says."""
    conditions = Conditions(
        cpu="x", num_cores=1, num_threads=1, torch="2", torch_build="x", date="2026-01-01 00:00 UTC", commit="x",
        settings={"windows_per_batch": 16, **profile_settings(asked, SHAPE), **also},
        turns=1, spread=0.0, load_before=None,
    )  # fmt: skip
    save_profile(Profile(origin="here", backbone="moment_lora", measured=conditions, devices={"A": ROW}), path)


def said(asked):
    return foreign_profile(asked, SHAPE, run_clocks(asked))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p.json"


OTHER = [
    ({"pad_to": 256}, {}, "backbone.pad_to 256 (here None)"),
    ({}, {"autocast": "bf16"}, "autocast 'bf16' (here 'none')"),
    ({}, {"micro_batch": 4}, "micro_batch 4 (here None)"),
    ({"rank": 4}, {"missing": "zero_feature"}, "missing 'zero_feature' (here 'zero_input'); backbone.rank 4 (here 8)"),
]


@pytest.mark.parametrize(("backbone", "training", "named"), OTHER)
def test_what_changes_speed_is_named_both_ways(path, backbone, training, named):
    plain, other = config(path), config(path, training, **backbone)
    measured_with(path, other)
    assert said(other) == ()
    assert said(plain) == (f"{path}: measured with {named}: its seconds are extrapolated; profile again",)
    measured_with(path, plain)
    assert said(plain) == () and len(said(other)) == 1


def test_what_does_not_change_speed_is_not_named(path):
    measured_with(path, config(path))
    for other in ({"weights_seed": 3}, {"alpha": 32}, {"revision": "main"}, {"weights": "hub"}):
        assert said(config(path, **other)) == ()


def test_older_files_are_read_and_compared(path):
    """They have the keys that do not count, none for what came later, and none for what was None."""
    measured_with(path, config(path), **{"backbone.weights": "hub", "backbone.alpha": 8})
    values = json.loads(path.read_text())
    for key in ("autocast", "micro_batch", "backbone.pad_to"):
        values["measured"]["settings"].pop(key, None)
    path.write_text(json.dumps(values))
    assert load_profile(path).measured and said(config(path)) == ()
    assert "autocast 'none' (here 'bf16')" in said(config(path, {"autocast": "bf16"}))[0]
