"""Groups that nobody trains for five rounds are named, once, by every method that does not mean it."""

import pytest

from relief_ray.conformance.runner import after_rounds
from relief_ray.experiment.recording import NUM_ROUNDS, UntrainedGroups
from relief_ray.records.run_folder import read_rounds
from tests.conformance.cases import config_of, drive
from tests.strategies.relief.test_relief import CNN, PAPER


def watch():
    return UntrainedGroups(layout=CNN, name="mine")


def test_a_group_is_named_in_the_fifth_round_and_then_not_again():
    watched, rest = watch(), [j for j in CNN.ids if j not in ("encoder.hr.1", "fusion.B")]
    lines = [watched.add(r, PAPER.clients, rest) for r in range(1, 13)]
    assert [r for r, texts in enumerate(lines, start=1) if texts] == [NUM_ROUNDS]
    assert lines[NUM_ROUNDS - 1][0].startswith("round 5: fusion.B, encoder.hr.1 have not been trained by any client")


def test_being_trained_starts_the_count_again():
    watched, rest = watch(), [j for j in CNN.ids if j != "head.1"]
    lines = [watched.add(r, PAPER.clients, CNN.ids if r == 4 else rest) for r in range(1, 16)]
    assert [r for r, texts in enumerate(lines, start=1) if texts] == [9]


def test_rounds_without_an_owner_of_the_sensor_do_not_count():
    """Clients 6 and 7 have no heart rate; its encoder is nobody's fault while they are alone."""
    watched, acc = watch(), [g.id for g in CNN.accessible(("acc",))]
    assert not any(watched.add(r, PAPER.clients[6:], acc) for r in range(1, 20))
    lines = [watched.add(r, PAPER.clients[:1], acc) for r in range(20, 30)]
    assert [r for r, texts in enumerate(lines, start=20) if texts] == [24]


def test_rounds_in_which_the_method_rests_do_not_count():
    watched = watch()
    assert not any(watched.add(r, PAPER.clients, (), rests=True) for r in range(1, 20))
    assert watched.add(20, PAPER.clients, ()) == ()


STARVING = {"name": "relief", "deadline_s": 1e-6}
UNUSED = "fusion.B, encoder.acc.1"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        (STARVING, UNUSED),
        ({"name": "relief", "select": "none"}, ""),
        ({"name": "fedavg"}, ""),
        ({"name": "harmony"}, ""),
    ],
    ids=["starved", "meant", "fedavg", "two phases"],
)
def test_the_record_warns_also_after_a_resume(run_cache, tmp_path, strategy, names):
    """Harmony's first phase leaves fusion and head alone on purpose; ``select: none`` everything but the blocks."""
    config = config_of(str(strategy["name"]), strategy=strategy, rounds=8)
    drive(config, tmp_path / "whole")
    drive(config, tmp_path / "parts", should_stop=after_rounds(3))
    drive(config, tmp_path / "parts")
    for folder in ("whole", "parts"):
        warned = {r.round: r.warnings for r in read_rounds(tmp_path / folder) if r.warnings}
        assert list(warned) == ([6] if names else [])
        assert all(names in text for texts in warned.values() for text in texts)
