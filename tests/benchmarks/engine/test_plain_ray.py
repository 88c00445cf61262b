from contextlib import closing

import numpy as np
import pytest

from benchmarks.engine.plain_ray import Arithmetic, ExactHost, PlainHost, PlainRay, mean, shares


def test_a_host_sums_its_clients():
    flat = np.array([1.0, -2.0, 0.5], np.float32)
    host = PlainHost(3)
    assert np.array_equal(host.round(flat, 4), 4 * flat)
    assert np.array_equal(host.round(flat, 1), flat)


def test_an_exact_host_sums_what_its_clients_changed(monkeypatch):
    """Each of four clients changes every value by 2."""
    usual = Arithmetic.load
    monkeypatch.setattr(Arithmetic, "load", lambda self, start: usual(self, start + 2.0))
    total = ExactHost(3).round(np.array([1.0, -2.0, 0.5], np.float32), 4)
    assert total.dtype == np.float64 and total.tolist() == [8.0] * 3


def test_the_mean_by_hand():
    """(1 + 3 + 8) / 6, and sums that came in stay as they are."""
    sums, out = [np.array([1.0]), np.array([3.0]), np.array([8.0])], np.zeros(1)
    for _ in range(2):
        mean(sums, 6, out)
        assert out.tolist() == [2.0] and [s.tolist() for s in sums] == [[1.0], [3.0], [8.0]]


def test_shares_add_up():
    assert shares(101, 2) == [51, 50]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_the_model_comes_back_unchanged(exact):
    """The average of untrained clients is the model that was sent to them."""
    from actors.runtime.session import SessionOptions, ray_session

    start = np.linspace(-1, 1, 1000, dtype=np.float32)
    with ray_session(SessionOptions(num_cpus=2, object_store_mib=200)):
        with closing(PlainRay(start, 5, exact=exact)) as loop:
            loop.step()
            loop.step()
            assert np.allclose(loop.flat, start, atol=1e-6)
