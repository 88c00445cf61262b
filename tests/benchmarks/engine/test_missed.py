"""Tests the page's sentences about a missed aim: from figures alone, and none where an aim is met."""

import pytest

from benchmarks.engine.missed import missed, time_goes, what_is_left
from benchmarks.engine.tables import TARGETS

PROFILE = {
    "profile_full_step_ms": 5.0,
    "profile_full_gemm_share": 0.55,
    "profile_full_test_vs_round": 0.07,
    "profile_full_encoder_forward_share": 0.2,
    "profile_full_fusion_forward_share": 0.1,
    "profile_full_backward_share": 0.4,
    "profile_full_optimizer_share": 0.295,
    "profile_full_overhead_share": 0.005,
}


FULL = {
    "full_n8_hosts_share": 0.9,
    "full_n8_wire_share": 0.1,
    **{
        f"full_n8_host_{part}_share": share
        for part, share in zip(
            ("backward", "forward", "adam", "clear", "load", "delta", "measure", "sum", "pack"),
            (0.4, 0.2, 0.08, 0.07, 0.01, 0.02, 0.03, 0.08, 0.01),
            strict=True,
        )
    },
}


def test_a_missed_aim_names_value_target_and_the_largest_part_first():
    text = missed({"full_n8_vs_flower": 1.2, **FULL})
    assert "against Flower**: missed: found 1.2, target at least 1.8 (clearing" in text
    left = "what is left: backward (40 %); forward (20 %); packing, calls, shared memory and waiting for the slower"
    assert left in text and "hosts at work" not in text, "its parts stand for it"
    assert "adding, once a client however few its steps, take 21 % of the round)" in text


def test_a_case_is_explained_by_its_own_profile():
    text = missed({"full_dsa_n8_vs_torch2": 1.2, **FULL})
    assert "target at least 1.5; what is left: not profiled." in text
    rows = time_goes(FULL | {"full_dsa_n8_hosts_share": 0.7}).splitlines()
    assert "| share of a full round | PAMAP2, 8 clients | dsa, 8 clients |" in rows
    assert "| hosts at work | 90 % | 70 % |" in rows and "| *hosts:* backward | 40 % | – |" in rows


def test_all_shares_stand_on_the_page():
    figures = {"profile_windows": 8, "profile_epochs": 5}
    for name in ("full", "type_c_full", "type_c_reuse"):
        figures |= {key.replace("_full_", f"_{name}_"): value for key, value in PROFILE.items()}
    text = time_goes({**figures, "profile_full_s": 1.0})
    assert "| Adam | 30 % | 30 % | 30 % |" in text and "batches, loss and Python around the steps | 0 %" in text
    assert "matrix products* | 55 %" in text and "would add 7 %" in text and "clients |" not in text
    assert time_goes({}) == ""


def test_aims_that_are_met_or_not_measured_say_nothing():
    assert missed({"full_n8_vs_flower": 1.9, "noop_n8_vs_plain_ray": 0.9, "full_n100_vs_flower": None}) == ""


def test_an_upper_bound_is_missed_from_above():
    seconds = {"plain_ray_s": 0.02, "exact_ray_s": 0.03, "vs_exact_ray": 2.0, "wire_s": 0.01, "server_s": 0.02}
    figures = {"noop_n100_vs_plain_ray": 1.7, "noop_n100_wire_put_share": 0.25, "noop_n100_host_sum_share": 0.75}
    text = missed(figures | {f"noop_n100_{key}": value for key, value in seconds.items()})
    assert "found 1.7, target at most 1.5 (the minimal loop copies and adds in float32" in text
    assert "makes it 1.5 times as long, and ours is 2 times that; beyond its hosts' work ours spends 0.01 s" in text
    assert "what is left: hosts add up in float64 (75 %); the model into shared memory (25 %)" in text


def test_a_missed_type_c_names_its_roofline():
    figures = {"type_c_reuse_vs_own_full": 4.5, "type_c_ms": 0.8, "type_c_bound_ms": 0.6}
    text = missed(figures | {"profile_type_c_reuse_step_ms": 1.2})
    assert "on one window of zeros" in text
    assert "take 0.8 ms by themselves, 0.6 ms by the roofline, of 1.2 ms a step)" in text


def test_an_aim_without_a_profile_says_so():
    assert "what is left: not profiled." in missed({"start_n100_s": 20.0})


def test_the_command_is_not_explained_by_another_run():
    figures = {"start_command_s": 9.0, "start_n100_ray_s": 5.5, "start_floor_s": 6.5}
    assert "what is left: a bare Ray program alone takes 6.5 s." in missed(figures)
    assert "5.5" not in missed(figures)


def test_full_caches_are_explained_by_the_bound_they_were_measured_with():
    figures = {"pss_n100_held_gib": 2.5, "pss_n100_held_cache_mib": 300, "pss_n100_held_hosts_gib": 1.5}
    assert "prepared windows take 300 MiB a host, which `runtime.cache_mib` lowers" in missed(figures)
    assert "prepared windows take" not in missed({"pss_n100_held_gib": 2.5})


@pytest.mark.parametrize("key", [key for key, _, _ in TARGETS])
def test_every_aim_has_its_profile(key):
    """With all shares, seconds and GiB that a run writes, no aim is left without an explanation."""
    parts = ["hosts", "wire", "server", "host_load", "server_hash"]
    cases = ("full_n8", "full_n100", "full_dsa_n8", "full_dsa_n100", "noop_n8", "noop_n100")
    figures = {f"{case}_{part}_share": 0.2 for case in cases for part in parts}
    figures |= {"recording_n8_records_cost_s": 0.01}
    figures |= {key.replace("_full_", "_type_c_reuse_"): value for key, value in PROFILE.items()} | PROFILE
    figures |= {
        "pss_n100_driver_gib": 0.5,
        "pss_n100_held_driver_gib": 0.5,
        "start_n100_ray_s": 7.0,
        "start_floor_s": 6.0,
        "gpu_stacked_samples_per_s": 5e4,
    }
    assert what_is_left(figures, key)
