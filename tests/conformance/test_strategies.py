"""Serial runs of every case: the oracle, and the same bits after an interruption at every round boundary."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from relief_ray.records import read_rounds, read_run
from relief_ray.strategies import PRESETS
from tests.conformance.cases import CASES, KINDS, LONG, ON_MOMENT, after_rounds, config_of, drive, marked, outcome

pytestmark = pytest.mark.usefixtures("run_cache")
SHORT = [case for case in CASES if case not in LONG]
# On Backbone 2 one per kind of state: there the others repeat what Backbone 1 shows of their methods.
QUICK = [case for case in SHORT if case not in ON_MOMENT or ON_MOMENT[case] in KINDS]
Golden = Callable[[str], dict[str, JsonValue]]


@pytest.fixture(scope="module")
def folders(run_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's uninterrupted run, computed once."""
    root = tmp_path_factory.mktemp("golden")

    def folder(case: str) -> Path:
        path = root / case
        if not path.exists():
            assert drive(config_of(case), path).status == "finished"
        return path

    return folder


@pytest.mark.parametrize("case", marked(CASES, QUICK))
def test_interrupted_at_every_boundary_is_the_same_run(case, folders, tmp_path):
    config, path = config_of(case), tmp_path / "run"
    drives = 1
    while (run := drive(config, path, should_stop=after_rounds(1))).status != "finished":
        assert run.status == "interrupted"
        drives += 1
    assert drives == len(read_rounds(path)) and run.num_resumes == drives - 1
    assert outcome(path) == outcome(folders(case))


def test_strategies_differ_from_one_another(folders):
    """Were two of them the same computation, half of this table would test nothing."""
    states = {preset: outcome(folders(preset))["state"] for preset in PRESETS}
    twins = states.pop("fedsa_lora_table"), states["fedavg"]
    assert twins[0] == twins[1], "without anything local on a dense model FedSA-LoRA is FedAvg"
    twins = states.pop("darkdistill_table"), states["darkdistill"]
    assert twins[0] == twins[1], "what else is sent up changes bytes; here all clients have equally many windows"
    assert len(set(states.values())) == len(PRESETS) - 2


def test_variations_differ_from_what_they_vary(folders):
    states = {case: outcome(folders(case))["state"] for case in SHORT}
    same = [case for case in SHORT if case not in PRESETS and list(states.values()).count(states[case]) > 1]
    assert same[0] == "fedavg, pairs watched", "watching changes records, not the model"
    twins = [
        ["fedsa_lora, moment", "fedsa_lora_table, moment"],
        ["full_only, moment", "drop_slow, moment"],
        ["darkdistill, moment", "darkdistill_table, moment"],
        ["fedavg, moment", "helora_table, moment"],
    ]
    expected = sorted(case for pair in twins for case in pair)
    assert sorted(same[1:]) == expected, (
        "A alone travels; only the Full client is fast; more bytes; 3/4 of 2 ranks are 2"
    )
    assert all(states[a] == states[b] for a, b in twins) and len({states[a] for a, _ in twins}) == len(twins)
    pairs = [r.pairwise for r in read_rounds(folders(same[0]))]
    assert [bool(p) for p in pairs] == [False, True, False]


@pytest.mark.parametrize("case", ["relief", "local", "v3"])
def test_a_repeated_run_in_a_new_folder_is_the_same_run(case, folders, tmp_path):
    """One case per kind of state: the server's, the clients', random choices."""
    drive(config_of(case), tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(folders(case))


def test_every_run_is_labelled_by_its_preset(folders):
    assert [read_run(folders(case)).strategy for case in SHORT] == [case.partition(",")[0] for case in SHORT]
