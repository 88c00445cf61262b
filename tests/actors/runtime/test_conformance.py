"""Every strategy on Ray, packed on one to three hosts or one actor per client: the bits of the plain loop.

By default one strategy per kind of state on two packed hosts, three of them where three clients have an actor each, and
RELIEF on Backbone 2. All others are slow tests.
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
TWO_HOSTS, ALONE = [pytest.param(TWO, id="two hosts")], [pytest.param(EACH, id="an actor each")]
has_kind = attrgetter("has_kind")


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


SAME_BITS = [
    *on(LAYOUTS, params("preset", fast=has_kind)),
    *on(ON_MOMENT, params("moment", fast=is_relief)),
    *on(ALONE, params("few", fast=changes_executor)),
    *on(LAYOUTS, params("variation", "moment variation"), pytest.mark.slow),
    *on(TWO_HOSTS, params("moment masked", "clients", "crowd"), pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "case"), SAME_BITS, indirect=["make"])
def test_a_run_on_ray_has_the_bits_of_the_plain_loop(case, make, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", make)
    assert outcome(tmp_path / "run") == plain(case)


CHANGING = [
    *on(LAYOUTS, params("preset", fast=changes_executor)),
    *on(ALONE, params("few"), pytest.mark.slow),
    *on(ON_MOMENT, params("moment resumed"), pytest.mark.slow),
    *on(TWO_HOSTS, params("crowd"), pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "case"), CHANGING, indirect=["make"])
def test_a_run_may_change_its_executor_at_any_boundary(case, make, plain, tmp_path):
    """It leaves Ray after its first round and comes back a round later."""
    path = tmp_path / "run"
    drive(config_of(case), path, make, after_rounds(1))
    drive(config_of(case), path, should_stop=after_rounds(1))
    drive(config_of(case), path, make)
    assert len(read_rounds(path)) >= 3
    assert outcome(path) == plain(case)
