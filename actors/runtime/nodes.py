"""The nodes of the cluster, and the one that the driver runs on: records are written there, work is done anywhere.

The coordinator and every trial's own process write into the run's folder. They are pinned to the driver's node, so that
the folder lies on the disk that the user started the command on, whichever node that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.runtime.placement import Resources, total_of

# Ray gives every node this label, with its id.
_ID_LABEL: Final = "ray.io/node-id"


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The cluster as it is now.

    Attributes:
        each: resources of every node that is alive.
        here: those of the driver's node.
        selector: labels of the driver's node alone; a bundle with this selector is placed there.
    """

    each: tuple[Resources, ...]
    here: Resources
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> Resources:
        """Resources of all nodes together."""
        return total_of(self.each)

    @property
    def number(self) -> int:
        """Nodes that are alive."""
        return len(self.each)

    @property
    def cores(self) -> int:
        """Cores of all nodes together, at least one."""
        return max(1, int(self.total.get("CPU", 1.0)))


def driver_node() -> str:
    """Id of the node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


def look_around() -> Nodes:
    """The nodes that are alive, seen from this process's node."""
    alive: dict[str, Resources] = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    here = driver_node()
    return Nodes(each=tuple(alive.values()), here=alive.get(here, {}), selector={_ID_LABEL: here})


def stay_here() -> NodeAffinitySchedulingStrategy:
    """Ray's option of an actor that has to run on this process's node: it writes files that are read here."""
    return NodeAffinitySchedulingStrategy(node_id=driver_node(), soft=False)
