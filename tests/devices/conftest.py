import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toy():
    spec = importlib.util.spec_from_file_location("devices_toy", Path(__file__).with_name("toy.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
