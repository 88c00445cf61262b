"""Hosts for the tests of the runtime, on the Ray cluster that all tests of a process share."""

import contextlib

import pytest
import ray
import torch

from actors.runtime import serialization
from actors.runtime.executor import RayExecutor, open_executor
from actors.runtime.placement import Placement, WorkerGroup, WorkerSpec, actor_options
from actors.runtime.worker import ClientWorker
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.experiment.experiment import never
from tests.actors.runtime import federation


@pytest.fixture(autouse=True)
def one_thread():
    """Bits depend on the number of threads; hosts use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def federation_travels():
    """Hosts need no copy of the tests: what they use of ``federation`` is sent to them."""
    ray.cloudpickle.register_pickle_by_value(federation)


@pytest.fixture
def joined(cluster, monkeypatch):
    """The shared cluster as one that was up before this process: packed runs have a coordinator, as others have."""
    monkeypatch.setattr("actors.runtime.single_run.owns_cluster", lambda: False)


@pytest.fixture
def on_ray(cluster):
    """Opens executors that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def open_(job, types=None, **options):
            executor = open_executor(job, RuntimeConfig(**{"mode": "packed"} | options), types)
            stack.callback(executor.close)
            return executor

        yield open_


@pytest.fixture(scope="session")
def on_warm_hosts(cluster):
    """Makes executors on hosts that stay for later tests, one group per layout: for tests that end none of them.

    Starting a host takes a second and more. They ask for none of the cluster's resources.
    """
    groups = {}

    def make(job, should_stop=never, **options):
        chosen = RuntimeConfig(**{"mode": "packed"} | options)
        clients = [c.id for c in job.fleet.clients] if chosen.mode == "actors" else [None] * chosen.num_hosts
        layout = (chosen.mode, *clients)
        if layout not in groups:
            groups[layout] = start_hosts(job, clients)
        return RayExecutor(job, groups[layout].with_job(job), chosen, should_stop)

    yield make
    for group in groups.values():
        group.close()


def start_hosts(job, clients):
    """A host for each of ``clients``; None: for any of them."""
    specs = tuple(WorkerSpec(name=f"warm-{i}", client=client, num_cpus=0.0) for i, client in enumerate(clients))
    actor = ray.remote(ClientWorker)
    handles = tuple(
        actor.options(**actor_options(spec, i, None, job.num_threads)).remote() for i, spec in enumerate(specs)
    )
    plan = Placement(workers=specs, mode="virtual", why="")
    return WorkerGroup(placement=plan, handles=handles, job=serialization.put(job, job.modules), reservation=None)
