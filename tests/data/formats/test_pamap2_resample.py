"""Decimation to half the rate: no aliasing, no delay, nothing from outside."""

import numpy as np
import pytest

from relief_ray.data.formats.pamap2 import NUM_TAPS, decimate, lowpass

RATE_HZ = 100


def tone(frequency_hz: float, rate_hz: int = RATE_HZ, rows: int = 2000) -> np.ndarray:
    return np.sin(2 * np.pi * frequency_hz * np.arange(rows) / rate_hz).astype(np.float32)[:, None]


def inner(signal: np.ndarray) -> np.ndarray:
    return signal[NUM_TAPS:-NUM_TAPS]


def test_a_40_hz_tone_is_gone_and_not_folded_to_10_hz() -> None:
    assert np.abs(inner(decimate(tone(40.0)))).max() < 2e-3
    assert np.abs(inner(tone(40.0)[::2])).max() > 0.9  # plain slicing would have kept it, as 10 Hz


@pytest.mark.parametrize("frequency_hz", [30.0, 35.0, 45.0, 49.0])
def test_stop_band(frequency_hz: float) -> None:
    assert np.abs(inner(decimate(tone(frequency_hz)))).max() < 5e-3


@pytest.mark.parametrize("frequency_hz", [0.5, 2.0, 10.0, 18.0])
def test_pass_band_keeps_amplitude_and_phase(frequency_hz: float) -> None:
    expected = tone(frequency_hz, 50, 1000)
    np.testing.assert_allclose(inner(decimate(tone(frequency_hz))), inner(expected), atol=5e-3)


def test_constants_stay_up_to_the_ends() -> None:
    np.testing.assert_allclose(decimate(np.full((301, 2), 9.81, np.float32)), np.full((151, 2), 9.81), rtol=1e-6)


def test_zero_phase() -> None:
    np.testing.assert_array_equal(lowpass(), lowpass()[::-1])
    pulse = np.zeros((401, 1), np.float32)
    pulse[200] = 1.0
    assert decimate(pulse)[:, 0].argmax() == 100
