"""Final models have the bits that ``model_hashes.json`` names, with every executor."""

import pytest

from relief_ray.kernels import library
from tests.guards import model_hashes
from tests.guards.model_hashes import (
    ENGINES,
    EXECUTORS,
    METHODS,
    comparable,
    differences,
    hashes_of,
    other_machine,
    read,
)

# One that keeps averages at the server, one that draws at random, one that keeps models of clients.
FEW = ("relief", "v3", "pilot")


@pytest.fixture
def check(run_cache):
    """Compare the hashes of those of some methods that have the file's bits on this machine."""

    def check_all(executor, engine, methods):
        if engine == "fused" and (why := library.why_missing()):
            pytest.skip(why)
        if not (mine := [name for name in methods if name in comparable(engine)]):
            pytest.skip(f"{other_machine()}; `python -m tests.guards.model_hashes --write`")
        assert not list(differences(read()[1][engine], hashes_of(executor, engine, mine)))

    return check_all


def test_every_method_has_its_hashes():
    assert {engine: list(hashes) for engine, hashes in read()[1].items()} == {key: list(METHODS) for key in ENGINES}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_final_models_are_what_they_were(engine, check):
    check("one process", engine, FEW)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_all_final_models_are_what_they_were(executor, engine, check):
    check(executor, engine, METHODS)


def test_another_hash_and_another_machine_are_named(monkeypatch):
    known = {"fedavg": {"state": "aa", "tensors": "bb"}}
    found = {"fedavg": {"state": "aa", "tensors": "cc"}, "own": {"state": "dd"}}
    assert list(differences(known, found)) == [
        "fedavg: tensors is cc, expected bb",
        "own: state is dd, expected nothing",
    ]
    assert list(differences(known, known)) == []
    there = read()[0]
    monkeypatch.setattr(model_hashes, "facts", lambda: there)
    assert other_machine() == "" and comparable("gemm") == comparable("fused") == METHODS
    monkeypatch.setattr(model_hashes, "facts", lambda: there | {"torch": "1.0"})
    assert other_machine() == f"torch: written on {there['torch']}, here 1.0"
    assert comparable("gemm") == () and {"fedavg", "relief"} <= set(comparable("fused")) < set(METHODS)
