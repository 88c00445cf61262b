"""The physical model: gravity at rest, cadence in the spectrum, a lagging heart, one beat per beat."""

import numpy as np
import pytest

from relief_ray.data.registry import DATASETS
from relief_ray.data.synthetic import GRAVITY, MOTIONS, ecg, heart_rate, make_person, move

RATE_HZ = 50


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_activity_has_a_motion() -> None:
    named = {name for loader in DATASETS.values() for name in loader.spec.classes}
    assert named <= set(MOTIONS)


def test_at_rest_the_sensor_feels_gravity(rng: np.random.Generator) -> None:
    acc, gyro, _ = move(MOTIONS["lying"], make_person(rng, 1), 0, 3000, RATE_HZ, rng)
    assert np.linalg.norm(acc.mean(axis=0)) == pytest.approx(GRAVITY, abs=0.1)
    assert np.abs(gyro.mean(axis=0)).max() < 0.05


def test_walking_shows_its_cadence(rng: np.random.Generator) -> None:
    person = make_person(rng, 1)
    acc, _, _ = move(MOTIONS["walking"], person, 0, 6000, RATE_HZ, rng)
    spectrum = np.abs(np.fft.rfft(acc - acc.mean(axis=0), axis=0)).sum(axis=1)
    peak_hz = np.fft.rfftfreq(6000, 1 / RATE_HZ)[spectrum.argmax()]
    assert peak_hz == pytest.approx(MOTIONS["walking"].cadence_hz * person.pace, rel=0.05)


def test_the_field_keeps_its_strength(rng: np.random.Generator) -> None:
    _, _, mag = move(MOTIONS["running"], make_person(rng, 1), 0, 2000, RATE_HZ, rng)
    np.testing.assert_allclose(np.linalg.norm(mag, axis=1), np.hypot(20, 43), atol=3.0)


def test_subjects_differ_and_seeds_repeat() -> None:
    people = [make_person(np.random.default_rng(seed), 2) for seed in (1, 1, 2)]
    assert people[0].pace == people[1].pace != people[2].pace


def test_heart_rate_lags_behind_effort(rng: np.random.Generator) -> None:
    person = make_person(rng, 1)
    bpm = heart_rate([(MOTIONS["sitting"], 6000), (MOTIONS["running"], 15000)], person, RATE_HZ)
    rest, effort = bpm[5999], bpm[-1]
    assert effort - rest > 60
    reached = (bpm[6000:] - rest) / (effort - rest)
    assert np.argmax(reached > 1 - np.exp(-1)) / RATE_HZ == pytest.approx(35.0, abs=1.0)
    assert reached[0] < 0.01


def test_ecg_beats_at_the_heart_rate(rng: np.random.Generator) -> None:
    trace = ecg(np.full(60 * 200, 90.0), 200, rng)
    high = trace[:, 0] > 0.8
    assert abs(int((high[1:] & ~high[:-1]).sum()) - 90) <= 2
