"""Parts that need Ray: records, MLflow and the shares of a round without training, at their smallest."""

from contextlib import closing

import pytest

from actors.runtime.session import SessionOptions, ray_session
from benchmarks.engine.orchestration import driver, host
from benchmarks.engine.product import Product, Shares
from benchmarks.engine.recording import measure
from benchmarks.engine.scenario import setup, without_training

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def session():
    with ray_session(SessionOptions(num_cpus=8, object_store_mib=200)):
        yield


def test_shares_add_up_and_every_part_is_seen(session, scenario, tmp_path):
    prepared = without_training(setup(scenario))
    with closing(Product(prepared, tmp_path / "run")) as product:
        shares = Shares.of(product)
        product.run(3)
        assert sum(shares.figures().values()) == pytest.approx(1.0)
        split = driver(product, 3, {"wire": 0.75, "server": 0.25})
        assert sum(v for k, v in split.items() if k.startswith("wire_")) == pytest.approx(0.75)
        assert sum(split.values()) == pytest.approx(1.0)
        hosts = host(prepared, 2)
        assert sum(hosts.values()) == pytest.approx(1.0)
        assert all(v > 0.0 for k, v in (split | hosts).items() if not k.endswith("other"))


def test_what_mlflow_gets_is_complete(session, tmp_path):
    figures = measure(tmp_path, num_turns=1, num_rounds=2)
    assert figures["recording_n8_run_s"] > 0 and figures["recording_n8_bare_s"] > 0
    assert figures["recording_n8_unsaved_s"] > 0
    assert figures["recording_n8_run_mlflow_s"] > 0 and figures["recording_n8_points_left"] == 0
