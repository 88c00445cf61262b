"""Every strategy on Ray, packed on one to three hosts or one actor per client: the bits of the plain loop.

By default one strategy per kind of state: on two packed hosts, and where three clients have an actor each; those whose
state has the shape of the backbone on both backbones. All others are slow tests.
"""

from functools import partial
from operator import attrgetter

import pytest
import torch

from relief_ray.records import read_rounds
from tests.conformance.cases import after_rounds, config_of, drive, outcome, params

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("run_cache", "cluster")]
ONE, TWO, THREE = ({"num_hosts": number} for number in (1, 2, 3))
EACH = {"mode": "actors"}
slow = partial(pytest.param, marks=pytest.mark.slow)
# One host and three only repeat what two show: that no bit depends on how many there are. Eight actors take seconds.
LAYOUTS = [
    slow(ONE, id="one host"),
    pytest.param(TWO, id="two hosts"),
    slow(THREE, id="three hosts"),
    slow(EACH, id="an actor each"),
]
ON_MOMENT = [pytest.param(TWO, id="two hosts"), slow(EACH, id="an actor each")]
has_kind = attrgetter("has_kind")


@pytest.fixture(scope="module")
def plain(run_cache, tmp_path_factory):
    """The outcome of a case's plain loop, computed once."""
    known = {}

    def oracle(case):
        if case not in known:
            path = tmp_path_factory.mktemp("plain") / "run"
            torch.set_num_threads(1)
            drive(config_of(case), path)
            known[case] = outcome(path)
        return known[case]

    return oracle


@pytest.fixture
def make(request, on_warm_hosts):
    """Makes executors in the layout that a test is parametrised with."""
    return lambda job: on_warm_hosts(job, **request.param)


@pytest.mark.parametrize("make", LAYOUTS, indirect=True)
@pytest.mark.parametrize("case", params("preset", fast=has_kind))
def test_every_strategy_gives_the_bits_of_the_serial_run(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.parametrize("make", ON_MOMENT, indirect=True)
@pytest.mark.parametrize("case", params("moment"))
def test_every_strategy_gives_the_serial_bits_on_backbone_2(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.parametrize("make", [EACH], ids=["an actor each"], indirect=True)
@pytest.mark.parametrize("case", params("few", fast=has_kind))
def test_every_kind_of_state_gives_the_serial_bits_with_an_actor_per_client(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("make", LAYOUTS, indirect=True)
@pytest.mark.parametrize("case", params("variation", "moment variation"))
def test_variations_give_the_serial_bits(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("make", [TWO], ids=["two hosts"], indirect=True)
@pytest.mark.parametrize("case", params("moment masked"))
def test_every_strategy_gives_the_serial_bits_without_absent_sensors(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("make", [TWO], ids=["two hosts"], indirect=True)
@pytest.mark.parametrize("case", params("clients", "crowd"))
def test_other_fleets_give_the_serial_bits(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("make", [TWO], ids=["two hosts"], indirect=True)
@pytest.mark.parametrize("case", params("crowd"))
def test_a_run_of_100_clients_may_change_its_executor(case, make, plain, tmp_path):
    assert changing(case, make, tmp_path / "run") == plain(case)


def changing(case, make, path):
    """The outcome of a run that leaves Ray after its first round and comes back a round later."""
    drive(config_of(case), path, make, after_rounds(1))
    drive(config_of(case), path, should_stop=after_rounds(1))
    drive(config_of(case), path, make)
    assert len(read_rounds(path)) >= 3
    return outcome(path)


@pytest.mark.slow
@pytest.mark.parametrize("make", ON_MOMENT, indirect=True)
@pytest.mark.parametrize("case", params("moment resumed"))
def test_a_run_on_backbone_2_may_change_its_executor(case, make, plain, tmp_path):
    assert changing(case, make, tmp_path / "run") == plain(case)


CHANGING = ("relief", "local", "v3")


@pytest.mark.parametrize("make", LAYOUTS, indirect=True)
@pytest.mark.parametrize("case", params("preset", fast=lambda case: case.preset in CHANGING))
def test_a_run_may_change_its_executor_at_any_boundary(case, make, plain, tmp_path):
    assert changing(case, make, tmp_path / "run") == plain(case)


@pytest.mark.parametrize("make", [EACH], ids=["an actor each"], indirect=True)
@pytest.mark.parametrize("case", params("few", fast=lambda case: case.preset in CHANGING))
def test_a_run_with_an_actor_per_client_may_change_its_executor(case, make, plain, tmp_path):
    assert changing(case, make, tmp_path / "run") == plain(case)
