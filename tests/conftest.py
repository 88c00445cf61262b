"""What all tests share: a data cache of their own, one Ray cluster, and Hypothesis without a deadline."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.own import write as write

# The first call into torch takes longer than Hypothesis' 0.2 s, and a busy machine is no bug.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
# Files whose tests need the shared cluster: one process runs them all.
ON_CLUSTER = (
    "tests/actors/runtime/",
    "tests/actors/grids/test_scheduler.py",
    "tests/actors/commands/test_grid.py",
    "tests/actors/commands/test_grid_plan.py",
    "tests/test_extending.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Deals out files in their order, not those of many tests first, and all files on the cluster as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "cluster" if file.startswith(ON_CLUSTER) else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIEF_CACHE", str(folder))
        patch.delenv("RELIEF_DATA", raising=False)
        yield folder


@pytest.fixture(scope="session")
def cluster(run_cache: Path) -> Iterator[None]:
    """A local cluster of three cores (on paper) that offers three devices of each type, for all tests of a process."""
    from actors.runtime.session import SessionOptions, ray_session

    resources = {"type_a": 3.0, "type_b": 3.0, "type_c": 3.0, "server": 1.0}
    with ray_session(SessionOptions(num_cpus=3, object_store_mib=256, resources=resources)):
        yield
