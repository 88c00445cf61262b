"""Fixtures of all tests: a data cache, one Ray cluster; Hypothesis has no deadline."""

import gc
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest

from relief_ray.kernels.library import why_missing
from relief_ray.plugins import blame
from relief_ray.support.files import cache_root
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
    "tests/actors/commands/test_mirror.py",
    "tests/guards/test_model_hashes.py",
    "tests/studies/test_call.py",
    "tests/test_extending.py",
)


# Files of ten seconds and more, after which the short ones fill both processes evenly.
LONG = (
    "tests/actors/commands/test_interrupt.py",
    "tests/conformance/",
    "tests/devices/test_calibration.py",
    "tests/records/",
    "tests/test_resume.py",
    "tests/test_stacked_runs.py",
    "tests/training/test_moment_training.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while modules are imported, and never again among what they hold: a tenth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first where several processes share the tests: the cluster's, then ``LONG``.

    Tests that the command line names one by one stay in its order (``tests.slow`` has a better one). Those of the
    engine ``fused`` are skipped where its library cannot be had.
    """
    if why := why_missing():
        for item in items:
            values = (
                item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
            )
            if any(isinstance(value, str) and value in ("fused", "own") for value in values):
                item.add_marker(pytest.mark.skip(reason=f"engine fused: {why}"))
    if hasattr(config, "workerinput") and not any("::" in place for place in config.args):
        items.sort(key=lambda item: 2 - item.nodeid.startswith(LONG) - 2 * item.nodeid.startswith(ON_CLUSTER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hands out files in the order of their tests, not those of many tests first.

    All files on the cluster go to one process, and all that import momentfm, which takes seconds, to one.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(super()._split_scope(nodeid))

    @cache
    def together(file: str) -> str:
        if file.startswith(ON_CLUSTER):
            return "cluster"
        return "momentfm" if re.search("momentfm|tiny_moment", (config.rootpath / file).read_text()) else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _no_users_code() -> Iterator[None]:
    """A test that ran users' code here leaves the next one a process that counts as free of it."""
    yield
    blame._CONFIGURED.clear()
    blame._CHANGED.clear()


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run-cache")
    if not why_missing() and (compiled := cache_root() / "kernels").is_dir():
        (folder / "kernels").symlink_to(compiled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIEF_CACHE", str(folder))
        patch.delenv("RELIEF_DATA", raising=False)
        yield folder


@pytest.fixture(scope="session")
def cluster(run_cache: Path) -> Iterator[None]:
    """A local cluster of three cores (on paper) that offers three devices of each type, for all tests of a process."""
    from actors.runtime.session import SessionOptions, ray_session

    resources = {"type_a": 3.0, "type_b": 3.0, "type_c": 3.0}
    with ray_session(SessionOptions(num_cpus=3, object_store_mib=256, resources=resources)):
        yield
