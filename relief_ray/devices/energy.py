"""From seconds to joules, and from clients to the round (Section VI-A)."""

from __future__ import annotations

from collections.abc import Mapping

from relief_ray.devices.types import DeviceType
from relief_ray.messages import ClientCost, ClientId, Fleet, RoundCost, StageTimes


def client_energy(device: DeviceType, times: StageTimes, wait_s: float) -> float:
    """Joules: active power while computing, communication power on the link, idle power while waiting."""
    return device.active_power_w * times.compute_s + device.comm_power_w * times.link_s + device.idle_power_w * wait_s


def round_cost(
    times: Mapping[ClientId, StageTimes], fleet: Fleet, types: Mapping[str, DeviceType], server_s: float = 0.0
) -> RoundCost:
    """A synchronous round: it lasts as long as its slowest client; all others wait, those without work the whole time.

    ``round_s = max_n busy_s + server_s``; ``energy_j`` sums over the fleet. Clients stand in fleet order.
    """
    assert all(0 <= n < len(fleet) for n in times), f"times of clients {sorted(times)} in a fleet of {len(fleet)}"
    round_s = max((t.busy_s for t in times.values()), default=0.0) + server_s
    costs = []
    for client in fleet.clients:
        spent = times.get(client.id, StageTimes())
        wait_s = round_s - spent.busy_s
        energy_j = client_energy(types[client.device], spent, wait_s)
        costs.append(ClientCost(client=client.id, times=spent, wait_s=wait_s, energy_j=energy_j))
    return RoundCost(clients=tuple(costs), round_s=round_s, energy_j=sum(c.energy_j for c in costs))
