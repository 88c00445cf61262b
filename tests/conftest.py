"""What tests of whole runs share: a data cache of their own, so that none reads or leaves anything in the user's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.own import write as write


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIEF_CACHE", str(folder))
        patch.delenv("RELIEF_DATA", raising=False)
        yield folder
