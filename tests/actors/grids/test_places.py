"""Where a grid's cells are computed: what a trial reserves on one node and on several, and what is too small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.commands.run import placed
from actors.grids.places import bundles_of, explain_places, num_at_once, refuse_shortage, settled
from actors.runtime.placement import Nodes
from relief_ray.config.experiment import parse
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.records.schema import comparable
from relief_ray.studies.plan import Plan
from relief_ray.studies.spec import as_typed
from relief_ray.support.errors import UserError
from tests.actors.grids.tiny_plans import tiny_plan
from tests.actors.trials import run_alone
from tests.plans import typed

HERE = {"CPU": 2.0, "memory": 8e9}
ONE = Nodes(each=({**HERE, "type_a": 3.0, "type_b": 3.0, "type_c": 2.0},), here=HERE)
FOUR = Nodes(each=(HERE,) * 4, here=HERE)


def config_of(**runtime):
    return parse({"data": {"name": "dsa_mini"}, "runtime": runtime})


def test_on_one_node_a_cell_is_one_process_and_on_several_it_has_a_host_anywhere():
    assert bundles_of(config_of(), ONE) == ({"CPU": 1.0, "memory": 2.0**30},)
    process, *hosts = bundles_of(config_of(), FOUR)
    assert hosts == [{"CPU": 1.0}] and "CPU" not in process
    assert num_at_once((process, *hosts), FOUR) == 8, "as many as the cluster has cores"
    assert bundles_of(config_of(num_hosts=3), FOUR)[1:] == ({"CPU": 1.0},) * 3


def test_what_the_user_says_stays():
    assert bundles_of(config_of(mode="inline"), FOUR) == bundles_of(config_of(), ONE)
    process, *hosts = bundles_of(config_of(mode="packed"), ONE)
    assert hosts == [{"CPU": 1.0}] * 2 and "CPU" not in process
    kinds = ["type_a"] * 3 + ["type_b"] * 3 + ["type_c"] * 2
    for chosen in (config_of(mode="actors"), config_of(placement="typed")):
        process, *hosts = bundles_of(chosen, ONE)
        assert hosts == [{kind: 1.0} for kind in kinds] and num_at_once((process, *hosts), ONE) == 1
    _, *hosts = bundles_of(config_of(mode="actors"), Nodes(each=(HERE,), here=HERE))
    assert hosts == [{"CPU": 0.25}] * 8


def test_cells_at_a_time_have_whole_places_and_write_on_this_node():
    head, board = {"CPU": 4.0, "memory": 8e9}, {"CPU": 1.0, "memory": 2e9}
    nodes = Nodes(each=(head, board), here=head)
    assert num_at_once([{"memory": 4e8}, {"CPU": 1.0}], nodes) == 5
    assert num_at_once([{"memory": 4e8}, {"CPU": 1.0}], nodes, most=3) == 3
    assert num_at_once([{"memory": 3e9}, {"CPU": 1.0}], nodes) == 2, "processes that write have this node's memory"
    assert num_at_once([{"memory": 4e8}, {"CPU": 2.5}], nodes) == 1, "no host takes cores of two nodes"


def test_processes_of_trials_are_as_many_as_this_node_has_memory_for():
    small = Nodes(each=({"CPU": 2.0, "memory": 2e9},) * 32, here={"CPU": 2.0, "memory": 2e9})
    bundles = bundles_of(config_of(), small)
    assert num_at_once(bundles, small) == int(2e9 / bundles[0]["memory"]) == 5


@pytest.mark.parametrize(
    ("runtime", "hosts", "expected"),
    [
        ({}, 0, ("inline", None)),
        ({}, 1, ("packed", 1)),
        ({"mode": "packed"}, 5, ("packed", 5)),
        ({"mode": "inline"}, 0, ("inline", None)),
        ({"mode": "actors"}, 8, ("actors", None)),
        ({"placement": "typed"}, 8, ("auto", None)),
    ],
)
def test_a_trial_takes_as_many_hosts_as_were_reserved_for_it(runtime, hosts, expected):
    """The cluster may have more cores by now: a host without a place would be waited for for ever."""
    config = settled(RuntimeConfig(**runtime), hosts)
    assert (config.mode, config.num_hosts) == expected


@pytest.mark.parametrize(
    ("settings", "added"),
    [([], ["runtime.mode=inline"]), (["runtime.address=h:6379"], ["runtime.mode=auto"]), (["runtime.mode=actors"], [])],
)
def test_runs_side_by_side_on_a_cluster_go_to_all_nodes_too(monkeypatch, settings, added):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = typed(*settings)
    assert as_typed(placed(given, jobs=2)) == [*added, *settings]
    is_named = settings == ["runtime.address=h:6379"]
    assert as_typed(placed(given, jobs=1)) == [*(added if is_named else []), *settings]
    file = {"runtime": {"placement": "typed"}}
    assert as_typed(placed([], jobs=2, study=file)) == ["runtime.mode=actors"]
    monkeypatch.setenv("RAY_ADDRESS", "h:6379")
    assert as_typed(placed([], jobs=2)) == ["runtime.mode=auto"], "as in a Ray job"


def test_the_choice_is_said_with_its_reason():
    chosen, inline = bundles_of(config_of(), FOUR), bundles_of(config_of(mode="inline"), FOUR)
    assert explain_places([chosen], FOUR) == (
        "4 nodes, 8 cores: a cell's clients are computed on any node, its records are written on this one; "
        "8 cells at a time"
    )
    assert explain_places([inline], FOUR).startswith("4 nodes, 8 cores, runtime.mode=inline: all cells run on this")
    assert "2 cells at a time; cells with runtime.mode=inline stay on this" in explain_places([chosen, inline], FOUR)
    assert explain_places([inline], ONE) == "one node: a process for each cell"


def test_what_the_cluster_lacks_is_refused_at_once():
    with pytest.raises(UserError, match=r"a: the cluster is too small for one trial: CPU: needed 3, the cluster has 2"):
        refuse_shortage({"a": ({"memory": 1.0}, {"CPU": 3.0})}, ONE)
    headless = Nodes(each=({"memory": 4e9}, {"CPU": 8.0, "memory": 4e9}), here={"memory": 4e9})
    with pytest.raises(UserError, match=r"CPU: needed 1, this node has 0; .*or use --set runtime.mode=packed"):
        refuse_shortage({"a": bundles_of(config_of(mode="inline"), headless)}, headless)
    refuse_shortage({"a": bundles_of(config_of(), headless)}, headless)


@pytest.fixture(scope="module")
def seen(run_cache, tmp_path_factory):
    """What ``nodes_program`` saw, and its folder."""
    out = tmp_path_factory.mktemp("nodes") / "grid"
    words = [sys.executable, str(Path(__file__).with_name("nodes_program.py")), "grid", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-3000:]
    return out, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_joins_during_a_grid_gets_cells_and_no_bit_changes(seen, tmp_path):
    out, facts = seen
    odd, *places = sorted(facts["notes"], key=lambda note: not note.startswith("WARNING: data "))
    assert "no training window of" in odd, "six windows a client are too few for each activity"
    assert [note.partition(":")[0] for note in places] == ["one node", "2 nodes, 2 cores"]
    assert set(facts["busy"]) == {facts["head"], *facts["joined"]} and len(facts["joined"]) == 1
    entries = Plan.read(out, kind="grid").look()
    assert [e.status for e in entries] == ["done"] * 8 and not any(why for _, why in facts["ended"])
    modes = [read_run(e.folder).runtime["mode"] for e in entries]
    assert set(modes) == {"inline", "packed"}, "before and after it joined"
    alone = tiny_plan(tmp_path / "alone", seeds=(0, 1, 2, 3)).write()
    for here, there in zip(alone.look(), entries, strict=True):
        assert here.cell.name == there.cell.name and here.cell.hash == there.cell.hash
        assert run_alone(here) == "done"
        assert [comparable(r) for r in read_rounds(here.folder)] == [comparable(r) for r in read_rounds(there.folder)]
        assert read_run(here.folder).cell == read_run(there.folder).cell


@pytest.mark.slow
@pytest.mark.ray
def test_the_coordinator_runs_on_the_drivers_node_wherever_that_is(seen):
    out, facts = seen
    assert facts["driver"] == facts["joined"][0] == facts["coordinator"] and facts["run"] == "done"
    assert [r.round for r in read_rounds(out / "run")] == [1]
