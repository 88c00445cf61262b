"""What `cluster check` says of nodes and targets, without a cluster."""

from dataclasses import replace

import pytest

from actors.cluster import start_line
from actors.cluster.survey import (
    NodeAnswer,
    NodeFacts,
    changes,
    data_faults,
    data_notes,
    faults_of,
    head_at,
    unplaced,
    warnings_of,
)
from actors.commands import cluster as cluster_check
from actors.commands.cluster import answer, check, judge, need_of, trains
from actors.grids.places import explain_places
from actors.runtime.placement import Nodes
from actors.runtime.session import MIB
from actors.terminal.exit_codes import Stopped
from relief_ray.support.errors import UserError
from tests.plans import typed

HEAD = {"CPU": 4.0, "memory": 8192.0 * MIB, "server": 1.0}
ANSWER = NodeAnswer(
    name="board-7", python="3.11.7", ray="2.60.0", torch="2.13.0+cpu", version="0.1.0", digest="ab" * 32,
    device="ARMv8 Processor rev 1 (v8l)", datasets=("dsa_mini",), cached=("dsa_mini",),
)  # fmt: skip


def test_auto_is_the_head_that_ray_finds_and_is_asked_as_any_other(monkeypatch):
    from ray._private import services

    def nothing(address):
        raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to")

    asked = []
    monkeypatch.setattr(start_line, "refuse_unlike", asked.append)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address_or_die", lambda address: "10.0.0.1:6379")
    assert head_at("auto") == "10.0.0.1:6379" and asked == ["10.0.0.1:6379"]
    monkeypatch.setattr(services, "canonicalize_bootstrap_address_or_die", nothing)
    with pytest.raises(UserError, match=r"auto: names no head \(Could not find any running Ray instance\); expected"):
        head_at("auto")


def cluster(*offers):
    return Nodes(each=offers, here=offers[0])


ALONE = cluster(HEAD)


def node(letter, count=1, answer=ANSWER, why=""):
    resources = {"CPU": 1.0, "memory": 2048.0 * MIB, f"type_{letter}": float(count)}
    name = replace(answer, name=f"board-{letter}") if answer is not None else None
    return NodeFacts(node=letter * 56, address="10.0.0.7", is_head=False, resources=resources, answer=name, why=why)


def fit_of(target, settings=(), nodes=()):
    return judge(target.split(), typed(*settings), cluster(HEAD, *(n.resources for n in nodes)), "h:1")


def test_a_preset_is_judged_as_if_placed_by_type():
    """`demo` itself packs its clients: what `--placement typed` would make of it is the question."""
    need = need_of(["demo"], [], ALONE)
    assert sorted(tuple(b) for b in need.bundles) == [(t,) for t in ("type_a", "type_b", "type_c") for _ in range(2)]
    assert need.num_cells is None and need.data == {"dsa_mini": "auto"} and not need.impossible
    assert "mode actors, placement typed" in need.title


def test_a_preset_fits_once_the_named_nodes_have_joined():
    fit = fit_of("demo", nodes=[node("a"), node("c", 2)])
    assert not fit.fits
    assert list(fit.changes) == [
        "relief-ray cluster join h:1 --type a",
        "relief-ray cluster join h:1 --type b --count 2",
    ]
    assert fit_of("demo", nodes=[node("a"), node("a"), node("b", 2), node("c", 2)]).fits


def test_settings_choose_another_way_to_place():
    need = need_of(["demo"], typed("runtime.placement=virtual"), ALONE)
    assert not any(name.startswith("type_") for bundle in need.bundles for name in bundle)
    assert fit_of("demo", ["runtime.placement=virtual"]).fits


def test_a_grid_is_judged_by_its_most_demanding_cell():
    need = need_of(["main_cnn"], typed("runtime.mode=actors", "runtime.placement=typed", "datasets=dsa_mini"), ALONE)
    assert need.num_cells and need.num_cells > 1
    assert sum(name.startswith("type_") for bundle in need.bundles for name in bundle) >= 6
    assert not fit_of("main_cnn", ["runtime.mode=actors", "runtime.placement=typed", "datasets=dsa_mini"]).fits


def test_a_name_that_preset_and_grid_share_is_the_presets_unless_grid_is_said():
    assert need_of(["quick"], [], ALONE).num_cells is None and need_of(["run", "quick"], [], ALONE).num_cells is None
    assert need_of(["grid", "smoke"], [], ALONE).num_cells == 12
    with pytest.raises(UserError, match="check resume smoke: expected a preset"):
        need_of(["resume", "smoke"], [], ALONE)


def test_a_gpu_that_no_node_has_is_impossible_and_named(monkeypatch):
    from actors.grids import places

    monkeypatch.setattr(places, "choose_device", lambda device: "cuda")
    fit = fit_of("demo", nodes=[node("a", 2), node("b", 2), node("c", 2)])
    assert not fit.fits and "knows of no GPU" in fit.need.impossible


def test_the_check_of_a_gpu_run_asks_for_the_shares_that_the_run_will(monkeypatch):
    """The head's eight GPUs are of no use to types that other machines have."""
    from actors.grids import places

    monkeypatch.setattr(places, "choose_device", lambda device: "cuda")
    offers = [{**HEAD, "GPU": 8.0}, {**node("b", 2).resources, "type_c": 2.0, "GPU": 1.0}]
    need = need_of(["demo"], [], cluster(*offers))
    assert {name: bundle["GPU"] for bundle in need.bundles for name in bundle if name.startswith("type_")} == {
        "type_a": 0.5, "type_b": 0.25, "type_c": 0.25,
    }  # fmt: skip
    assert changes(unplaced(need.bundles, offers), "h:1") == [
        "relief-ray cluster join h:1 --type a --count 2 --num-gpus 1"
    ]


def test_an_unknown_target_is_refused():
    with pytest.raises(UserError, match=r"did you mean 'demo'"):
        need_of(["demmo"], [], ALONE)


def test_nodes_that_a_run_would_refuse_are_faults():
    other = replace(ANSWER, digest="cd" * 32)
    assert faults_of([node("a"), node("b")]) == []
    (differ,) = faults_of([node("a"), node("b", answer=other), node("c")])
    assert "0.1.0 (abababab) on board-a (type_a) and board-c (type_c); 0.1.0 (cdcdcdcd) on board-b (type_b)" in differ
    (silent,) = faults_of([node("a"), node("b", answer=None, why="no answer within 60 s")])
    assert silent.startswith("10.0.0.7: no answer within 60 s")


BARE = replace(ANSWER, datasets=())
HOLDER = replace(BARE, shards={"dsa": (3,)})


def test_data_that_a_node_lacks_are_sent_unless_they_have_to_lie_there():
    nodes = [node("a"), node("b", answer=BARE)]
    for rules in ({}, {"dsa_mini": "ship"}):
        assert data_notes(nodes, rules) == [] and data_faults(nodes, rules) == []
    assert data_notes(nodes, {"dsa_mini": "auto"}) == [
        "dsa_mini is not on board-b (type_b): rows are sent there; without that: relief-ray data fetch dsa_mini"
    ]
    assert data_faults(nodes, {"dsa_mini": "auto"}) == [] and data_notes(nodes, {"dsa_mini": "node"}) == []
    (fault,) = data_faults(nodes, {"dsa_mini": "node"})
    assert fault.startswith("dsa_mini is not on board-b (type_b), and runtime.data=node ")


def test_a_shard_is_data_and_is_shown():
    nodes = [node("a", answer=HOLDER)]
    assert data_faults(nodes, {"dsa": "node"}) == [] and data_notes(nodes, {"dsa": "auto"}) == []
    assert len(data_faults(nodes, {"mhealth": "node"})) == 1
    assert "data: the shard of client 3 of dsa" in "\n".join(answer("h:1", nodes, None, [], []).text)


def test_of_own_data_is_said_that_the_nodes_look_for_them():
    """No node lists them, and no command fetches them."""
    nodes = [node("a"), node("b", answer=BARE)]
    for rule in ("auto", "node"):
        assert data_faults(nodes, {"my:DATA": rule}) == []
        (note,) = data_notes(nodes, {"my:DATA": rule})
        assert note.startswith("my:DATA is your own: each node looks for its files") and "fetch" not in note


def test_only_nodes_that_may_train_need_data():
    head = replace(node("a", answer=BARE), is_head=True, resources=HEAD)
    need = need_of(["demo"], typed("runtime.physical=true"), ALONE)
    assert need.data == {"dsa_mini": "node"} and "mode actors, placement typed" in need.title
    other = replace(node("c"), resources={"CPU": 8.0})
    assert [n.name for n in trains([head, node("b"), other, node("a")], need)] == ["board-b", "board-a"]
    grid = need_of(["grid", "smoke"], typed("runtime.data=node"), ALONE)
    assert set(grid.data.values()) == {"node"}


@pytest.mark.parametrize(("settings", "code"), [([], None), (["runtime.data=node"], 2), (["runtime.physical=true"], 2)])
def test_a_run_that_the_data_rule_will_refuse_does_not_fit(monkeypatch, capsys, settings, code):
    import contextlib

    nodes = [node("a", 2), node("b", 2), node("c", 2, answer=BARE)]
    monkeypatch.setattr(cluster_check.nodes_of, "head_at", lambda address: "10.0.0.1:6379")
    monkeypatch.setattr(cluster_check.nodes_of, "survey_at", lambda place: nodes)
    with contextlib.ExitStack() as stack:
        stopped = None if code is None else stack.enter_context(pytest.raises(Stopped))
        for result in check(["demo"], typed(*settings), "auto"):
            result.show(as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert (stopped.value.code if stopped else None) == code
    assert ("FAULT: dsa_mini is not on board-c (type_c)" if code else "NOTE: dsa_mini is not on board-c") in shown


def test_other_versions_of_torch_are_said():
    older = replace(ANSWER, torch="2.5.0+cu124")
    assert warnings_of([node("a"), node("b")]) == []
    (note,) = warnings_of([node("a"), node("b", answer=older)])
    assert "2.13.0 and 2.5.0" in note
    builds = [node("a"), node("b", answer=replace(ANSWER, torch="2.13.0+cu130"))]
    assert warnings_of(builds) == [], "builds of one version agree but for the last bits"


def test_a_clock_that_is_off_is_said_and_one_that_did_not_answer_is_not():
    nodes = [node("a"), replace(node("b"), clock_off_s=-7200.4), replace(node("c"), clock_off_s=0.9)]
    assert warnings_of(nodes) == [
        "the clock of board-b (type_b) is -7,200 s from this machine's, and so are dates in its logs; "
        "there: timedatectl set-ntp true"
    ]


def test_text_has_80_columns_and_json_the_same_facts():
    nodes = [node("a"), node("c", 2), node("b", answer=None, why="no answer within 60 s")]
    fit = fit_of("demo", nodes=nodes[:2])
    lines = answer("10.0.0.1:6379", nodes, fit, faults_of(nodes), ["a note " * 20]).text
    commands = [line for line in lines if line.startswith("    relief-ray")]
    assert all(len(line) <= 80 for line in lines if line not in commands)
    assert [line.strip() for line in commands] == list(fit.changes)
    text = "\n".join(lines)
    assert "board-a (10.0.0.7): 1 core, 1 x type_a, 2,048 MiB" in text
    assert "  Python 3.11.7, Ray 2.60.0, torch 2.13.0+cpu, RELIEF-Ray 0.1.0 (abababab)" in text
    assert "does not answer: no answer within 60 s" in text and "FAULT: 10.0.0.7" in text
    facts = answer("10.0.0.1:6379", nodes, fit, ["f"], []).facts
    assert [n["name"] for n in facts["nodes"]] == ["board-a", "board-c", "10.0.0.7"]
    assert facts["target"]["changes"] == list(fit.changes) and facts["target"]["fits"] is False


def test_what_join_has_no_option_for_is_a_sentence_of_80_columns():
    short = unplaced([{"jetson": 1.0}] * 2, [HEAD])
    fit = replace(fit_of("demo"), unplaced=short, changes=tuple(changes(short, "10.0.0.1:6379")))
    lines = answer("10.0.0.1:6379", [node("a")], fit, [], []).text
    assert all(len(line) <= 80 for line in lines)
    assert "has no option for jetson: add --resources='{\"jetson\": 2}' to the" in " ".join(" ".join(lines).split())
    assert "  or without types: --set runtime.placement=virtual" in lines


def test_as_many_cells_at_a_time_as_the_grid_will_say():
    offers = (HEAD, node("a").resources, node("b").resources)
    fit = judge(["grid", "smoke"], [], cluster(*offers), "h:1")
    said = explain_places([fit.need.bundles], cluster(*offers))
    assert fit.at_once == 6 and "; 6 cells at a time" in said
    small = {**HEAD, "memory": 700.0 * MIB}
    assert judge(["grid", "smoke"], [], cluster(small, *offers[1:]), "h:1").at_once == 2, "the head writes all records"
