"""One Ray cluster for all tests of the runtime."""

import contextlib

import pytest
import ray
import torch

from actors.runtime.executor import open_executor
from actors.runtime.host_group import RuntimeOptions
from actors.runtime.session import SessionOptions, ray_session
from tests.actors.runtime import scenes
from tests.conformance.cases import KINDS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Clients with an actor each repeat what two hosts show, but for where state lives: one of each kind is enough."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("on_layout") == "an actor each" and str(params.get("case")).split(",")[0] not in KINDS:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def cluster():
    """A local cluster of three cores (on paper) that offers three devices of each type."""
    resources = {"type_a": 3.0, "type_b": 3.0, "type_c": 3.0, "server": 1.0}
    with ray_session(SessionOptions(num_cpus=3, object_store_mib=200, resources=resources)):
        ray.cloudpickle.register_pickle_by_value(scenes)
        yield


@pytest.fixture(autouse=True)
def one_thread():
    """Bits depend on the number of threads; hosts use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_ray(cluster):
    """Opens executors that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def open_(job, types=None, should_stop=None, **options):
            keep = {} if should_stop is None else {"should_stop": should_stop}
            executor = open_executor(job, RuntimeOptions(**options), types, **keep)
            stack.callback(executor.close)
            return executor

        yield open_
