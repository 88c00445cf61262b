"""Energy, and the composition of a round: the paper's own board measurements put through the measured model."""

import pytest

from relief_ray.core.messages import ClientInfo, Fleet, StageTimes
from relief_ray.devices.accounting import round_cost
from relief_ray.devices.fleet import PRESETS, DeviceType
from relief_ray.devices.time import MeasuredClock, Profile, throughput
from relief_ray.devices.workload import Workload

LINK = 1e6


def pair(*devices):
    clients = tuple(
        ClientInfo(id=i, name=d, device=d, modalities=("acc",), num_windows=1) for i, d in enumerate(devices)
    )
    return Fleet(clients=clients, modalities=("acc",))


def load(forward_s, backward_s, link_s):
    """Work that takes so long on a device of 1 GFLOP/s behind a link of 1 MB/s."""
    return Workload(
        forward_flops=forward_s * 1e9,
        backward_flops=backward_s * 1e9,
        optimizer_flops=0.0,
        group_flops=0.0,
        bytes_up=0,
        bytes_down=round(link_s * LINK),
    )


def board_round(loads):
    """Round cost of clients on a board that was profiled with FedAvg's own Type-C round."""
    seen = load(12.0, 6.0, 0.0)
    row = throughput(seen, StageTimes(forward_s=12.0, backward_s=6.0)).model_copy(
        update={"downlink_mbit_s": LINK / 125_000, "latency_s": 0.0}
    )
    types = {name: PRESETS["testbed"][name].model_copy(update={"latency_s": 0.0}) for name in loads}
    model = MeasuredClock(
        profile=Profile(origin="figures of Section VII", backbone="any", devices=dict.fromkeys(loads, row))
    )
    fleet = pair(*loads)
    return round_cost({c.id: model.times(types[c.device], loads[c.device]) for c in fleet.clients}, fleet, types)


def test_energy_by_hand():
    device = DeviceType(name="x", tops=1, active_power_w=10, comm_power_fraction=0.6, idle_fraction=0.2)
    times = StageTimes(forward_s=1, backward_s=2, optimizer_s=0.5, up_s=0.25, down_s=0.75)
    assert device.power.energy_j(times, 4.0) == pytest.approx(10 * 3.5 + 6 * 1 + 2 * 4)


def test_slowest_client_sets_the_round_and_everyone_else_waits():
    fleet, types = pair("A", "B", "C"), PRESETS["paper"]
    cost = round_cost({0: StageTimes(forward_s=1.0), 2: StageTimes(backward_s=3.0, up_s=1.0)}, fleet, types)
    assert cost.round_s == 4.0
    assert [c.wait_s for c in cost.clients] == [3.0, 4.0, 0.0]
    # Client 1 got no work and pays idle power for the whole round.
    assert [c.energy_j for c in cost.clients] == pytest.approx([60 * 1 + 12 * 3, 6 * 4, 5 * 3 + 3 * 1])
    assert cost.energy_j == pytest.approx(96 + 24 + 18)


def test_round_without_any_work_takes_no_time():
    cost = round_cost({}, pair("A", "C"), PRESETS["paper"])
    assert (cost.round_s, cost.energy_j, len(cost.clients)) == (0.0, 0.0, 2)


def test_times_for_an_unknown_client_are_a_programming_error():
    with pytest.raises(AssertionError, match="fleet of 2"):
        round_cost({2: StageTimes()}, pair("A", "C"), PRESETS["paper"])


def test_backbone_2_on_the_boards():
    """Section VII: fixed 12 s forward, backward 6 s against 1.5 s, links 1.02 and 0.18 s: 19.02 to 13.68 s, 1.39x."""
    fedavg = board_round({"A": load(3.0, 1.5, 1.02), "C": load(12.0, 6.0, 1.02)})
    relief = board_round({"A": load(3.0, 1.5, 1.02), "C": load(12.0, 1.5, 0.18)})
    assert fedavg.round_s == pytest.approx(19.02, abs=1e-6)
    assert relief.round_s == pytest.approx(13.68, abs=1e-6)
    assert fedavg.round_s / relief.round_s == pytest.approx(1.39, abs=0.005)
    assert relief.clients[1].wait_s == 0.0


def test_backbone_1_on_the_boards_moves_the_bottleneck():
    """8.2 s against 3.4 s of Type-C compute, 0.85 s of link, Type A's 3.85 s inferred: 9.05 to 4.70 s, 1.93x."""
    fedavg = board_round({"A": load(2.0, 1.85, 0.85), "C": load(4.1, 4.1, 0.85)})
    relief = board_round({"A": load(2.0, 1.85, 0.85), "C": load(1.7, 1.7, 0.85)})
    assert fedavg.round_s == pytest.approx(9.05, abs=1e-6)
    assert relief.round_s == pytest.approx(4.70, abs=1e-6)
    assert fedavg.round_s / relief.round_s == pytest.approx(1.93, abs=0.005)
    assert (fedavg.clients[1].wait_s, relief.clients[0].wait_s) == (0.0, 0.0)
    assert relief.clients[1].wait_s == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("compute_s", "link_s", "wait_s", "measured_j"),
    [(8.2, 0.85, 0.0, 118), (3.4, 0.85, 0.45, 48), (18.0, 1.02, 0.0, 259), (13.5, 0.18, 0.0, 180)],
)
def test_energy_formula_against_four_measured_type_c_rounds(compute_s, link_s, wait_s, measured_j):
    """The traces' 13, 8 and 3 W over the phases give the paper's measured joules to within a tenth."""
    board = DeviceType(name="C", tops=5, active_power_w=13, comm_power_fraction=8 / 13, idle_fraction=3 / 13)
    energy_j = board.power.energy_j(StageTimes(forward_s=compute_s, down_s=link_s), wait_s)
    assert energy_j == pytest.approx(measured_j, rel=0.1)
