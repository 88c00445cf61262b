"""Datasets: from raw files to every client's windows.

The way through the room: `source` finds the raw files, a loader (`pamap2`, `mhealth`, `dsa`, `partial`) parses them,
`cache` keeps the result, `windows` and `splits` cut it, `partition` and `plan` deal it, `federated_data` hands it over.
"""

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset, load_dataset, open_dataset
from relief_ray.data.federated_data import FederatedData, federate, num_clients
from relief_ray.data.source import find_source
from relief_ray.data.spec import DATASETS, DatasetSpec, get_spec
from relief_ray.data.window_set import WindowSet, pool

__all__ = [
    "DATASETS",
    "DataConfig",
    "Dataset",
    "DatasetSpec",
    "FederatedData",
    "WindowSet",
    "federate",
    "find_source",
    "get_spec",
    "load_dataset",
    "num_clients",
    "open_dataset",
    "pool",
]
