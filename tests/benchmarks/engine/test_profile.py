import pytest

from benchmarks.engine import profile
from benchmarks.engine.missed import PHASES


@pytest.mark.ci
def test_the_phases_of_a_round_add_up(scenario):
    figures = profile.measure(scenario)
    for name in ("full", "type_c_full", "type_c_reuse"):
        shares = [figures[f"profile_{name}_{key}_share"] for key, _ in PHASES]
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0.0
        assert figures[f"profile_{name}_kernel_share"] > 0.0, "timed apart from the step: above 1 on a busy machine"
    assert figures["profile_full_encoder_forward_share"] > 0.02
    assert figures["profile_type_c_reuse_s"] < figures["profile_full_s"]
    assert figures["profile_full_test_s"] > 0.0
