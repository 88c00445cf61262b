"""Whether processes find places on nodes, and the least that must join."""

import pytest

from actors.cluster.survey import changes, in_words, unplaced
from actors.runtime.session import MIB

A, B, C = {"type_a": 1.0}, {"type_b": 1.0}, {"type_c": 1.0}
HEAD = {"CPU": 4.0, "memory": 8192.0 * MIB, "server": 1.0}


def device(letter, count=1, cores=1):
    return {"CPU": float(cores), "memory": 2048.0 * MIB, f"type_{letter}": float(count)}


def test_clients_of_a_type_fit_where_the_nodes_offer_as_many():
    lacking = unplaced([A, A, C], [HEAD, device("a"), device("a"), device("c")])
    assert lacking == () and changes(lacking, "head:6379") == []


def test_the_smallest_change_names_each_missing_type_and_number():
    lacking = unplaced([A, A, A, B, C, C], [HEAD, device("a"), device("c", 2)])
    assert len(lacking) == 3
    assert changes(lacking, "head:6379") == [
        "relief-ray cluster join head:6379 --type a --count 2",
        "relief-ray cluster join head:6379 --type b",
    ]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_after_the_smallest_change_it_fits_and_after_a_smaller_one_it_does_not(count):
    bundles, nodes = [C] * (2 + count), [HEAD, device("c", 2)]
    assert unplaced(bundles, nodes) == (C,) * count
    assert not unplaced(bundles, [*nodes, device("c", count)])
    assert unplaced(bundles, [*nodes, device("c", count - 1)])


def test_a_process_takes_one_node_although_the_sum_would_do():
    """Two nodes of a core each have no place for a process of two: `ray status` would show 2 of 2 free."""
    lacking = unplaced([{"CPU": 2.0}], [{"CPU": 1.0}, {"CPU": 1.0}])
    assert lacking
    assert changes(lacking, "h:1") == ["relief-ray cluster join h:1 --num-cpus 2"]


def test_cores_gpus_and_memory_are_rounded_up_to_what_an_option_takes():
    lacking = unplaced([{"CPU": 0.5, "GPU": 0.25, "memory": 400.5 * MIB}] * 3, [{"CPU": 0.4}])
    assert changes(lacking, "h:1") == ["relief-ray cluster join h:1 --num-cpus 2 --num-gpus 1 --memory-mib 1202"]


def test_the_line_of_a_device_asks_for_the_gpu_that_its_clients_share():
    """The head's GPU is of no use to them, nor is that of a machine that joins without their type."""
    sharing = [{**bundle, "GPU": 0.3333} for bundle in (A, A, A, C)]
    lacking = unplaced([*sharing, {"CPU": 1.0}], [{"GPU": 1.0}])
    assert changes(lacking, "h:1") == [
        "relief-ray cluster join h:1 --type a --count 3 --num-gpus 1",
        "relief-ray cluster join h:1 --type c --num-gpus 1",
        "relief-ray cluster join h:1 --num-cpus 1",
    ]


def test_resources_that_join_has_no_option_for_are_named_and_how_ray_takes_them():
    """Two of a device's own, or one of the user's naming: a bare `join` would never make them fit."""
    lacking = unplaced([{"jetson": 1.0, "GPU": 0.5}] * 2 + [{"type_a": 1.0, "camera": 1.0}, {"robot": 1.0}, C], [HEAD])
    own, both, other, typed = changes(lacking, "h:1")
    assert own == (
        '`cluster join` has no option for camera with type_a: add --resources=\'{"camera": 1, "type_a": 1}\' to the '
        "`ray start` that this prints: relief-ray cluster join h:1 --print"
    )
    assert "--resources='{\"jetson\": 2}'" in both and both.endswith("join h:1 --num-gpus 1 --print")
    assert typed == "relief-ray cluster join h:1 --type c" and "no option for robot:" in other


def test_rare_resources_are_given_first():
    """A process without needs of its own must not take the core that only a device's process can use."""
    both = {"CPU": 1.0, "type_c": 1.0}
    assert not unplaced([{"CPU": 1.0}, both], [device("c"), {"CPU": 1.0}])


def test_resources_in_words():
    assert in_words({"CPU": 1.0, "GPU": 2.0, "type_c": 3.0, "memory": 1500.0 * MIB, "server": 1.0}) == (
        "1 core, 2 GPUs, 3 x type_c, 1,500 MiB, server"
    )
    assert in_words({}) == "nothing"
