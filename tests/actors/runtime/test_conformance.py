"""Every strategy on Ray, packed on one to three hosts or one actor per client: the bits of the plain loop.

By default one strategy per kind of state on two packed hosts, three of them where three clients have an actor each, and
RELIEF on Backbone 2. All others are slow tests.
"""

from operator import attrgetter

import pytest
import torch

from relief_ray.records.run_folder import read_rounds
from tests.conformance.cases import CASES, after_rounds, config_of, drive, outcome, params

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("run_cache", "cluster")]
ONE, TWO, THREE = ({"num_hosts": number} for number in (1, 2, 3))
EACH = {"mode": "actors"}
TWO_HOSTS, ALONE = [pytest.param(TWO, id="two hosts")], [pytest.param(EACH, id="an actor each")]
# One host and three only repeat what two show: that no bit depends on how many there are. Eight actors take seconds.
OTHERS = [pytest.param(ONE, id="one host"), pytest.param(THREE, id="three hosts"), *ALONE]
has_kind, slow = attrgetter("has_kind"), pytest.mark.slow


def is_relief(case):
    return case.preset == "relief"


def changes_executor(case):
    return case.preset in ("relief", "local", "v3")


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


def on(layouts, cases, *marks):
    """Every case in every layout; slow where the case or the layout is."""
    return [
        pytest.param(
            *layout.values, *case.values, id=f"{case.values[0]}-{layout.id}", marks=[*layout.marks, *case.marks, *marks]
        )
        for case in cases
        for layout in layouts
    ]


def kinds(*families):
    """Parameters of the families' cases whose strategy stands for a kind of state."""
    return [case for case in params(*families) if CASES[case.values[0]].has_kind]


# Every case where two hosts share the clients; a kind of state in every layout, on both backbones and with 100 clients.
SAME_BITS = [
    *on(TWO_HOSTS, params("preset", fast=has_kind)),
    *on(TWO_HOSTS, params("moment", fast=is_relief)),
    *on(ALONE, params("few", fast=changes_executor)),
    *on(TWO_HOSTS, params("variation", "moment variation", "clients"), slow),
    *on(OTHERS, kinds("preset"), slow),
    *on(ALONE, kinds("variation", "moment"), slow),
    *on(TWO_HOSTS, kinds("moment masked", "crowd"), slow),
]


@pytest.mark.ci
@pytest.mark.parametrize(("make", "case"), SAME_BITS, indirect=["make"])
def test_a_run_on_ray_has_the_bits_of_the_plain_loop(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


CHANGING = [
    *on(TWO_HOSTS, params("preset", fast=changes_executor)),
    *on(ALONE, params("few"), slow),
    *on(OTHERS, kinds("preset"), slow),
    *on(TWO_HOSTS, kinds("crowd"), slow),
    *on([*TWO_HOSTS, *ALONE], kinds("moment resumed"), slow),
]


@pytest.mark.ci
@pytest.mark.parametrize(("make", "case"), CHANGING, indirect=["make"])
def test_a_run_may_change_its_executor_at_any_boundary(case, make, plain, tmp_path):
    """It leaves Ray after its first round and comes back a round later."""
    path = tmp_path / "run"
    drive(config_of(case), path, make, after_rounds(1))
    drive(config_of(case), path, should_stop=after_rounds(1))
    drive(config_of(case), path, make)
    assert len(read_rounds(path)) >= 3
    assert outcome(path) == plain(case)
