"""Every strategy on Ray, packed on one to three hosts or one actor per client: the bits of the plain loop."""

import pytest
import torch

from actors.runtime.executor import RayExecutor
from actors.runtime.host_group import RuntimeOptions, open_hosts
from relief_ray.experiment.setup import prepare
from relief_ray.records import read_rounds
from relief_ray.strategies import PRESETS
from tests.conformance.cases import (
    CASES,
    MASKED_ON_MOMENT,
    OF_100,
    ON_MOMENT,
    RESUMED_ON_MOMENT,
    after_rounds,
    config_of,
    drive,
    marked,
    outcome,
)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("run_cache", "cluster")]
LAYOUTS = {
    "one host": RuntimeOptions(num_hosts=1),
    "two hosts": RuntimeOptions(num_hosts=2),
    "three hosts": RuntimeOptions(num_hosts=3),
    "an actor each": RuntimeOptions(mode="actors"),
}
RESUMED = ("relief", "local", "v3")
# An actor each serves eight clients; packed hosts take any.
OTHER_CLIENTS = tuple(c for c in CASES if " clients" in c or "unseen" in c)
ELSEWHERE = {*PRESETS, *ON_MOMENT, *MASKED_ON_MOMENT, *RESUMED_ON_MOMENT, *OTHER_CLIENTS}


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


# One host and three only repeat what two show: that no bit depends on how many there are.
REPEATS = ("one host", "three hosts")
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] if name in REPEATS else []) for name in LAYOUTS]


@pytest.fixture(scope="module", params=PARAMS, ids=str)
def on_layout(request, cluster, run_cache):
    """Makes executors on hosts that serve all cases of the module."""
    options = LAYOUTS[request.param]
    group = open_hosts(prepare(config_of("fedavg")).job, options)

    def make(job):
        return RayExecutor(job, group.with_job(job), options, owns_hosts=False)

    yield make
    group.close()


@pytest.mark.parametrize("case", PRESETS)
def test_every_strategy_has_the_bits_of_the_plain_loop(case, on_layout, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", on_layout)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.parametrize("on_layout", ["two hosts", "an actor each"], indirect=True)
@pytest.mark.parametrize("case", ON_MOMENT)
def test_every_strategy_has_them_on_backbone_2(case, on_layout, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", on_layout)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c not in ELSEWHERE])
def test_variations_have_them_too(case, on_layout, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", on_layout)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("on_layout", ["two hosts"], indirect=True)
@pytest.mark.parametrize("case", MASKED_ON_MOMENT)
def test_every_strategy_has_them_where_absent_sensors_are_left_out(case, on_layout, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", on_layout)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("on_layout", ["two hosts"], indirect=True)
@pytest.mark.parametrize("case", OTHER_CLIENTS)
def test_other_clients_have_them_too(case, on_layout, plain, tmp_path):
    drive(config_of(case), tmp_path / "run", on_layout)
    assert outcome(tmp_path / "run") == plain(case)


@pytest.mark.slow
@pytest.mark.parametrize("on_layout", ["two hosts"], indirect=True)
@pytest.mark.parametrize("case", OF_100)
def test_a_run_of_100_clients_may_change_its_executor(case, on_layout, plain, tmp_path):
    assert changing(case, on_layout, tmp_path / "run") == plain(case)


def changing(case, on_layout, path):
    """The outcome of a run that leaves Ray after its first round and comes back a round later."""
    drive(config_of(case), path, on_layout, after_rounds(1))
    drive(config_of(case), path, should_stop=after_rounds(1))
    drive(config_of(case), path, on_layout)
    assert len(read_rounds(path)) >= 3
    return outcome(path)


@pytest.mark.slow
@pytest.mark.parametrize("on_layout", ["two hosts", "an actor each"], indirect=True)
@pytest.mark.parametrize("case", RESUMED_ON_MOMENT)
def test_so_may_one_on_backbone_2(case, on_layout, plain, tmp_path):
    assert changing(case, on_layout, tmp_path / "run") == plain(case)


@pytest.mark.parametrize("case", marked(PRESETS, RESUMED))
def test_a_run_may_change_its_executor_at_any_boundary(case, on_layout, plain, tmp_path):
    assert changing(case, on_layout, tmp_path / "run") == plain(case)
