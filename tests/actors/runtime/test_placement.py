import re

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from actors.cluster.survey import changes, unplaced, wished
from actors.runtime.placement import Placement, WorkerSpec, plan_actors, plan_packed, reserve, shortage
from relief_ray.support.errors import UserError
from tests.actors.runtime.federation import TYPES, make_fleet

ENOUGH = {"CPU": 2.0, "type_a": 2.0, "type_b": 2.0, "type_c": 2.0}
SHORT = {"CPU": 2.0, "type_a": 2.0, "type_b": 1.0}


def test_clients_go_to_their_device_type_where_the_cluster_has_it():
    plan = plan_actors(make_fleet(6), TYPES, "auto", [ENOUGH])
    assert plan.mode == "typed"
    assert [dict(h.bundle) for h in plan.workers] == [{f"type_{t}": 1.0} for t in "abcabc"]
    assert [h.client for h in plan.workers] == list(range(6))


def test_auto_falls_back_to_shares_of_the_cores_and_says_why():
    plan = plan_actors(make_fleet(6), TYPES, "auto", [SHORT])
    assert plan.mode == "virtual"
    assert plan.why == "type_b: needed 2, the cluster has 1; type_c: needed 2, the cluster has 0"
    assert sum(h.num_cpus for h in plan.workers) <= 2.0 and all(h.num_cpus > 0.3 for h in plan.workers)


def test_typed_placement_names_what_is_missing():
    with pytest.raises(UserError, match=r"type_c: needed 2, the cluster has 0.*cluster join HEAD --type NAME"):
        plan_actors(make_fleet(6), TYPES, "typed", [SHORT])
    with pytest.raises(UserError, match=r"device types \['A', 'B', 'C'\] name no Ray resource"):
        plan_actors(make_fleet(6), {}, "typed", [ENOUGH])


@pytest.mark.parametrize(("cores", "asked", "number"), [(4.0, None, 4), (4.0, 2, 2), (2.0, 7, 7), (0.5, None, 1)])
def test_packed_hosts_fit_the_cores(cores, asked, number):
    plan = plan_packed(asked, {"CPU": cores})
    assert len(plan.workers) == number
    assert sum(h.num_cpus for h in plan.workers) <= max(1.0, cores) + 1e-9
    assert cores < 1 or not shortage([w.bundle for w in plan.workers], {"CPU": cores})


def test_hundred_actors_share_two_cores():
    plan = plan_actors(make_fleet(100), TYPES, "virtual", [{"CPU": 2.0}])
    assert {h.num_cpus for h in plan.workers} == {0.02} and not shortage([w.bundle for w in plan.workers], {"CPU": 2.0})


def plan_of(number, **resources):
    workers = tuple(WorkerSpec(name=f"h{i}", client=None, num_cpus=0.0, resources=resources) for i in range(number))
    return Placement(workers=workers, mode="typed", why="")


@pytest.mark.ray
def test_what_the_cluster_does_not_have_is_refused_at_once(cluster):
    with pytest.raises(UserError, match="type_z: needed 2, the cluster has 0"):
        reserve(plan_of(2, type_z=1.0), wait_s=60.0)


@pytest.mark.ray
def test_resources_in_use_are_waited_for_up_to_the_time_limit(cluster):
    held = reserve(plan_of(2, type_b=1.0), wait_s=30.0)
    with pytest.raises(UserError, match=r"no place for 2 hosts within 1 s \(type_b: needed 2, the cluster has 1"):
        reserve(plan_of(2, type_b=1.0), wait_s=1.0)
    ray.util.remove_placement_group(held)


@pytest.mark.parametrize(("workers", "gpus", "share"), [(1, 1.0, 1.0), (4, 1.0, 0.25), (3, 2.0, 0.5), (2, 4.0, 1.0)])
def test_hosts_share_gpus_and_none_lies_across_two(workers, gpus, share):
    cluster = {"CPU": 8.0, "GPU": gpus}
    actors = plan_actors(make_fleet(workers), TYPES, "virtual", [cluster], True)
    for plan in (plan_packed(workers, cluster, True), actors):
        assert {h.num_gpus for h in plan.workers} == {share} and not shortage([w.bundle for w in plan.workers], cluster)
        assert workers <= gpus * int(1 / share)
    assert {h.num_gpus for h in plan_packed(workers, cluster).workers} == {0.0}, "where the CPU computes nobody asks"


def types_of(a, b, c):
    return {f"type_{letter}": float(number) for letter, number in zip("abc", (a, b, c), strict=True) if number}


def typed_plan(nodes, placement="typed"):
    """Eight clients: three of type A, three of B, two of C."""
    return plan_actors(make_fleet(8), TYPES, placement, nodes, needs_gpu=True)


def gpus_by_type(plan):
    return {name: worker.num_gpus for worker in plan.workers for name in worker.resources}


def fits(plan, nodes):
    return not unplaced([worker.bundle for worker in plan.workers], nodes)


@pytest.mark.parametrize(("gpus", "share"), [(1.0, 0.125), (4.0, 0.5), (8.0, 1.0), (16.0, 1.0)])
@pytest.mark.parametrize("placement", ["auto", "typed"])
def test_hosts_of_all_types_on_one_server_leave_none_of_its_gpus_idle(gpus, share, placement):
    server = {"GPU": gpus, **types_of(3, 3, 2)}
    plan = typed_plan([server], placement)
    assert plan.mode == "typed" and fits(plan, [server])
    assert set(gpus_by_type(plan).values()) == {share}


def test_clients_of_a_type_share_the_gpu_of_its_machine_however_many_others_have():
    """The head has a GPU that no client can use: an even share of all four, a half, would fit two of three clients."""
    devices = [{"GPU": 1.0, **types_of(3, 0, 0)}, {"GPU": 1.0, **types_of(0, 3, 0)}, {"GPU": 1.0, **types_of(0, 0, 2)}]
    plan = typed_plan([{"GPU": 1.0}, *devices])
    assert gpus_by_type(plan) == pytest.approx({"type_a": 0.3333, "type_b": 0.3333, "type_c": 0.5})
    assert fits(plan, devices)


def test_boards_with_a_client_each_have_a_gpu_each():
    boards = [{"GPU": 1.0, **types_of(*(int(kind == letter) for kind in "abc"))} for letter in "aaabbbcc"]
    plan = typed_plan(boards)
    assert set(gpus_by_type(plan).values()) == {1.0} and fits(plan, boards)


def joined(command):
    """Resources of the machine that a line of ``changes`` describes."""
    found = re.fullmatch(r"relief-ray cluster join h:1 --type (.)(?: --count (\d+))?(?: --num-gpus (\d+))?", command)
    assert found, command
    letter, count, gpus = found.groups()
    return {f"type_{letter}": float(count or 1), "GPU": float(gpus or 0)}


def followed(nodes):
    """The advice for nodes that lack types, as `cluster check` makes it; once followed, the plan made anew fits."""
    devices = [TYPES[client.device] for client in make_fleet(8).clients]
    plan = typed_plan([*nodes, *wished(devices, nodes)])
    advice = changes(unplaced([worker.bundle for worker in plan.workers], nodes), "h:1")
    grown = [*nodes, *(joined(command) for command in advice)]
    assert fits(typed_plan(grown), grown), grown
    return advice


def test_a_machine_that_joins_as_advised_changes_no_other_machines_share():
    machine = {"GPU": 1.0, **types_of(0, 3, 2)}
    assert followed([{"CPU": 4.0}, machine]) == ["relief-ray cluster join h:1 --type a --count 3 --num-gpus 1"]
    before, after = (typed_plan([machine, {"GPU": gpus, **types_of(3, 0, 0)}]) for gpus in (1.0, 4.0))
    assert gpus_by_type(before) == pytest.approx({"type_a": 0.3333, "type_b": 0.2, "type_c": 0.2})
    assert gpus_by_type(after) == pytest.approx({"type_a": 1.0, "type_b": 0.2, "type_c": 0.2})


machines = st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0, 8.0]), *[st.integers(0, 4)] * 3)


@given(st.lists(machines, max_size=4))
def test_following_the_advice_fits_whatever_the_nodes_were(nodes):
    followed([{"CPU": 4.0, "GPU": 1.0}, *({"GPU": gpus, **types_of(*counts)} for gpus, *counts in nodes)])


@pytest.mark.parametrize(("gpus", "expected"), [(1.0, 1), (2.0, 2)])
def test_clients_that_share_steps_have_a_host_on_every_gpu(gpus, expected):
    cluster = {"CPU": 8.0, "GPU": gpus}
    assert [h.num_gpus for h in plan_packed(None, cluster, True, stack=8).workers] == [1.0] * expected
    assert len(plan_packed(3, cluster, True, stack=8).workers) == 3, "as was asked"
    assert len(plan_packed(None, cluster, stack=8).workers) == 8, "a CPU's cores do not wait for launches"


def test_a_cluster_without_gpu_is_named_before_anything_is_started():
    with pytest.raises(UserError, match=r"Ray knows of no GPU in this cluster.*--num-gpus"):
        plan_packed(2, {"CPU": 2.0}, True)
