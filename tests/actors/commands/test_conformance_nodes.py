"""`conformance --address`: a verdict for each node of a cluster."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from actors.cli.main import app
from actors.commands.conformance import NodeResult, answer, results_of_nodes
from relief_ray.conformance.runner import Agreement, ReferenceNumbers, reference_numbers
from relief_ray.records.identity import machine_facts

HERE = ReferenceNumbers(machine=machine_facts(), sha256="ab" * 32, values={})
BOARD = replace(HERE, machine=HERE.machine.model_copy(update={"cpu": "Cortex-A78AE"}))


def result(numbers, **compared):
    return NodeResult(node="board", address="10.0.0.2", numbers=numbers, compared=Agreement(**compared))


def test_each_node_is_told_with_its_numbers():
    good = result(BOARD, is_same=False, needs_bits=False, difference=2e-6)
    bad = replace(result(BOARD, is_same=False, needs_bits=False, difference=0.25), node="other")
    silent = NodeResult(node="third", address="10.0.0.4", why="no answer in time")
    bits = result(HERE, is_same=False, needs_bits=True, difference=1e-7)
    text = answer(HERE, [good, bad, silent, bits]).text
    assert "kept    board 10.0.0.2, Cortex-A78AE" in text[1] and "difference 2e-06 (allowed 0.0001)" in text[1]
    assert "BROKEN  other" in text[2] and "0.25" in text[2] and "BROKEN  third: no answer" in text[3]
    assert "expected the same bits" in text[4] and text[5] == "4 results: broken on other, third, board"
    data = answer(HERE, [good, silent]).facts
    assert data["keeps"] is False and [n["kept"] for n in data["nodes"]] == [True, False]


@pytest.mark.parametrize(("arguments", "found"), [((), "neither TARGET nor"), (("fedavg", "--address", "h:1"), "both")])
def test_a_target_or_an_address_but_not_both(arguments, found):
    shown = CliRunner().invoke(app, ["conformance", *arguments])
    assert shown.exit_code == 2 and found in shown.output


@pytest.mark.slow
@pytest.mark.ray
def test_the_nodes_of_a_cluster_reproduce_this_machines_bits(cluster):
    reference = reference_numbers()
    (node,) = results_of_nodes(reference)
    assert node.is_kept and node.compared.is_same and node.numbers.machine.num_threads == 1
    wrong = replace(reference, sha256="0" * 64)
    assert not results_of_nodes(wrong)[0].is_kept
