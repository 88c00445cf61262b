"""Hosts that hold another frozen encoder than the run are refused, by name; same bits from elsewhere are not."""

import os
import shutil
import socket
from dataclasses import replace
from functools import partial

import pytest

from relief_ray.models.backbone import build_verified, differing_facts
from relief_ray.models.moment.weights import load_frozen, weights_folder
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.actors.runtime.federation import make_job, make_tasks, start_models
from tests.models.tiny_moment import SHAPE, TINY, tiny

pytestmark = pytest.mark.usefixtures("run_cache")


def moment_job(folder, weights, **changes):
    """The federation of the actors' tests on Backbone 2."""
    config = TINY.model_copy(update={"weights": str(weights)})
    channels = (("acc", 2), ("gyro", 1), ("hr", 1))
    build = partial(config.build, replace(SHAPE, channels=channels, num_classes=3), 0)
    job = make_job(folder, 3, build=build, frozen=dict(build().facts))
    return replace(job, trainer=replace(job.trainer, engine="reuse"), **changes)


def put_weights(folder, seed):
    """Another encoder under the same path, as a second download would."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(weights_folder("tiny", "random", seed), folder)


def test_the_same_weights_are_accepted_wherever_they_lie(tmp_path):
    put_weights(tmp_path / "weights", 0)
    build = partial(tiny, weights=str(tmp_path / "weights"))
    assert build_verified(build, tiny().facts).facts["weights"] == str(tmp_path / "weights")
    assert build_verified(build, {}).facts == build().facts
    assert differing_facts(tiny().facts, build().facts) == ()
    assert differing_facts({"a": 1, "b": 2}, {"a": 1, "c": 2}) == ("b", "c")


def test_one_process_trains_only_on_the_weights_of_the_run(tmp_path):
    put_weights(tmp_path / "weights", 0)
    job = moment_job(tmp_path, tmp_path / "weights")
    trained = SerialExecutor(job).train(1, start_models(job), make_tasks(job), {})
    assert len(trained.reduced.receipts) == 3
    put_weights(tmp_path / "weights", 1)
    load_frozen.cache_clear()
    with pytest.raises(UserError) as caught:
        SerialExecutor(job)
    here = str(job.build().facts["weights_sha256"])
    expected = str(job.frozen["weights_sha256"])
    message = str(caught.value)
    assert f"host {socket.gethostname()} (process {os.getpid()})" in message and here != expected
    assert f"found weights_sha256 {here[:20]}" in message and f"expected weights_sha256 {expected[:20]}" in message
    assert message.endswith("copy the driver's files of backbone.weights to that host, or name a folder that all share")


def test_drawn_weights_have_a_fix_of_their_own(tmp_path):
    job = moment_job(tmp_path, "random")
    with pytest.raises(UserError, match=r"expected weights_sha256 0000.*; remove the folder `moment` from that host"):
        SerialExecutor(replace(job, frozen={**job.frozen, "weights_sha256": "0" * 64}))
