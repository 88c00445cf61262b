"""docs/paper-notes.md: the arithmetic on the figures that the paper prints."""

import pytest

PAMAP2 = [4, 4, 4, 2, 2, 2, 1, 1]  # modalities per device: 3 Full, 3 Acc+Gyro, 2 Acc
MHEALTH = [4, 4, 4, 2, 2, 2, 1, 1, 1, 1]


def coverage(fleet):
    return sum(fleet) / (4 * len(fleet))


def test_trainable_parameters():
    rank, width, hidden = 8, 512, 256
    one_encoder = 8 * (2 * rank * (512 + 384) + 2 * rank * (512 + 1024))  # q, v and two FFN matrices of 8 blocks
    assert one_encoder == 311_296
    fusion = rank * 4 * width + width * rank
    head = width * hidden + hidden
    assert 4 * one_encoder + fusion + head == 1_396_992
    assert 1_396_992 * 4 / 1024 == 5457.0
    assert one_encoder / 1_396_992 < 0.25


def test_energy_savings():
    assert 1 - 846 / 1346 == pytest.approx(0.37, abs=0.005)
    assert 1 - 312 / 847 == pytest.approx(0.63, abs=0.005)
    assert 1 - 178 / 1284 == pytest.approx(0.86, abs=0.005)


def test_measured_speedups():
    assert 9.05 / 4.70 == pytest.approx(1.93, abs=0.005)
    assert 19.02 / 13.68 == pytest.approx(1.39, abs=0.005)
    assert 19.02 - 12 - 6 == pytest.approx(1.02)
    assert 13.68 - 12 - 1.5 == pytest.approx(0.18)


def test_backward_only_speedup():
    assert 6.5 / 1.5 == pytest.approx(4.3, abs=0.05)
    assert 6.0 / 1.5 == 4.0


def test_trained_share():
    assert 0.61 / 0.98 == pytest.approx(0.62, abs=0.005)
    assert 3408 / 5457 == pytest.approx(0.625, abs=0.001)


def test_communication_is_modality_coverage():
    assert coverage(PAMAP2) == 0.625
    assert coverage(MHEALTH) == 0.55
    assert 1 - 3408 / 5457 == pytest.approx(1 - coverage(PAMAP2), abs=0.001)


def test_communication_of_backbone_1():
    assert 4.76 / 4.81 == pytest.approx(0.99, abs=0.001)
    assert sum(owned < 4 for owned in PAMAP2) == 5
    type_c = (8 * 4.76 - 6 * 4.81) / 2
    assert type_c == pytest.approx(4.61, abs=0.005) and type_c / 4.81 == pytest.approx(0.96, abs=0.005)


def test_normalisers_of_b_and_head():
    """Weights |M_n|: 20 on PAMAP2, 17 on `dsa`, of which Types A and B hold 18 and 15; the head has 6 of 8 devices."""
    assert sum(PAMAP2) == 20 and sum(owned for owned in PAMAP2 if owned > 1) == 18
    dsa = [min(owned, 3) for owned in PAMAP2]
    assert sum(dsa) == 17 and sum(owned for owned in dsa if owned > 1) == 15
    assert sum(owned > 1 for owned in PAMAP2) == 6 and len(PAMAP2) == 8


@pytest.mark.parametrize(("v1", "reach", "most", "printed"), [(1.66, 0.2608, 2.16, 2.87), (1.52, 0.3218, 2.02, 9.41)])
def test_v1_bounds_v0(v1, reach, most, printed):
    """A round is f + (1 - f) x, x the trained share of the work: V1 has x = ``reach``, V0 at best x = 0."""
    fixed = (1 / v1 - reach) / (1 - reach)
    assert 1 / fixed == pytest.approx(most, abs=0.005) and 1 / fixed < printed


def test_v2_over_v0_is_the_same_on_both_backbones():
    assert 3.84 / 2.87 == pytest.approx(1.338, abs=5e-4)
    assert 12.6 / 9.41 == pytest.approx(1.339, abs=5e-4)
    assert 1.338 == pytest.approx(4 / 3, abs=0.01), "one group fewer of four"


def test_type_c_sends_half_of_its_reach():
    type_c = (8 * 3408 - 3 * 5457 - 3 * 2993) / 2
    assert type_c == 957 and type_c / 1761 == pytest.approx(0.54, abs=0.005)
    assert 0.18 / 1.02 * 5457 == pytest.approx(963, abs=0.5)
