"""Weights that change between the driver and its hosts: no client is trained on them."""

import pytest

from relief_ray.support.errors import UserError
from tests.actors.runtime.federation import make_tasks, start_models
from tests.models.test_backbone_frozen import moment_job, put_weights

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("run_cache", "cluster")]


@pytest.mark.ci
def test_a_host_with_other_weights_is_refused(tmp_path, on_warm_hosts):
    put_weights(tmp_path / "same", 0)
    job = moment_job(tmp_path, tmp_path / "same")
    models, tasks = start_models(job), make_tasks(job)
    fine = on_warm_hosts(job, num_hosts=1).train(1, models, tasks, {})
    assert len(fine.reduced.receipts) == len(tasks)
    put_weights(tmp_path / "changing", 0)
    job = moment_job(tmp_path, tmp_path / "changing")
    put_weights(tmp_path / "changing", 1)
    expected = str(job.frozen["weights_sha256"])[:20]
    refused = rf"host \S+ \(process \d+\): holds another frozen encoder.*expected weights_sha256 {expected}; copy"
    with pytest.raises(UserError, match=refused):
        on_warm_hosts(job, num_hosts=1).train(1, models, tasks, {})
