"""Serial runs of every case: the oracle, and the same bits after an interruption at every round boundary."""

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from statistics import median_low

import pytest

from relief_ray.experiment.update_filter import MEDIAN_FACTOR
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.strategies import PRESETS
from tests.conformance.cases import CASES, after_rounds, config_of, drive, outcome, params

pytestmark = pytest.mark.usefixtures("run_cache")
# Cases that are like none of the others; a crowd and three rounds on Backbone 2 are presets once more.
DIFFERENT = [name for name, case in CASES.items() if case.family in ("preset", "variation", "clients", "moment")]
DIFFERENT.append("fedlease, moment, every layer routed")


@pytest.fixture(scope="module")
def folders(run_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's uninterrupted run, computed once."""
    root = tmp_path_factory.mktemp("golden")

    def folder(case: str) -> Path:
        path = root / case
        if not path.exists():
            assert drive(config_of(case), path).status == "done"
        return path

    return folder


@pytest.mark.ci
@pytest.mark.parametrize("case", params())
def test_interrupted_at_every_boundary_is_the_same_run(case, folders, tmp_path):
    config, path = config_of(case), tmp_path / "run"
    drives = 1
    while (run := drive(config, path, should_stop=after_rounds(1))).status != "done":
        assert run.status == "interrupted"
        drives += 1
    assert drives == len(read_rounds(path)) and run.num_resumes == drives - 1
    assert outcome(path) == outcome(folders(case))


@pytest.mark.ci
def test_strategies_differ_from_one_another(folders):
    """Were two of them the same computation, half of this table would test nothing."""
    states = {preset: outcome(folders(preset))["state"] for preset in PRESETS}
    twins = states.pop("fedsa_lora_table"), states["fedavg"]
    assert twins[0] == twins[1], "without anything local on a dense model FedSA-LoRA is FedAvg"
    twins = states.pop("darkdistill_table"), states["darkdistill"]
    assert twins[0] == twins[1], "what else is sent up changes bytes; here all clients have equally many windows"
    twins = states.pop("fednova"), states["fedavg"]
    assert twins[0] == twins[1], "here all clients take equally many steps"
    assert len(set(states.values())) == len(PRESETS) - 3
    assert [read_run(folders(preset)).strategy for preset in PRESETS] == list(PRESETS), "labelled by the preset"


@pytest.mark.ci
@pytest.mark.parametrize("preset", PRESETS)
def test_the_norm_rule_is_far_from_every_honest_update(preset, folders):
    """Both of its bounds must be broken; the first alone is kept by all, with a factor of ten to spare."""
    for record in read_rounds(folders(preset)):
        assert record.rejected == {} and record.left_out == {}
        norms = [sqrt(sum(c.sq_norm.values())) for c in record.clients]
        positive = [norm for norm in norms if norm > 0.0]
        assert not positive or max(positive) < MEDIAN_FACTOR / 10 * median_low(positive)


@pytest.mark.ci
def test_fast_variations_differ_from_what_they_vary(folders):
    fast = [name for name in DIFFERENT if CASES[name].is_fast]
    states = {case: outcome(folders(case))["state"] for case in fast}
    same = [case for case in fast if list(states.values()).count(states[case]) > 1]
    assert same == ["fedavg", "fedavg, pairs watched"], "watching changes records, not the model"
    assert [bool(r.pairwise) for r in read_rounds(folders(same[1]))] == [False, True, False]


@pytest.mark.slow
def test_variations_differ_from_what_they_vary(folders):
    states = {case: outcome(folders(case))["state"] for case in DIFFERENT}
    same = [case for case in DIFFERENT if case not in PRESETS and list(states.values()).count(states[case]) > 1]
    assert same[0] == "fedavg, pairs watched", "watching changes records, not the model"
    twins = [
        ["fedsa_lora, moment", "fedsa_lora_table, moment"],
        ["full_only, moment", "drop_slow, moment"],
        ["darkdistill, moment", "darkdistill_table, moment"],
        ["fedavg, moment", "fednova, moment", "helora_table, moment"],
    ]
    expected = sorted(case for pair in twins for case in pair)
    assert sorted(same[1:]) == expected, (
        "A alone travels; only the Full client is fast; more bytes; equal steps; 3/4 of 2 ranks are 2"
    )
    assert [len({states[case] for case in pair}) for pair in twins] == [1] * len(twins)
    assert len({states[pair[0]] for pair in twins}) == len(twins)


@pytest.mark.parametrize("case", ["relief", "local", "v3"])
def test_a_repeated_run_in_a_new_folder_is_the_same_run(case, folders, tmp_path):
    """One case per kind of state: the server's, the clients', random choices."""
    drive(config_of(case), tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(folders(case))


@pytest.mark.slow
def test_every_run_is_labelled_by_its_preset(folders):
    assert [read_run(folders(case)).strategy for case in DIFFERENT] == [CASES[case].preset for case in DIFFERENT]
