"""Datasets: from raw files to every client's windows.

Order of use: `registry` names the datasets (one file each in `formats`), `source` finds the raw files, the dataset's
`Loader` parses them, `dataset` keeps the result, `partition` cuts it into windows and assigns them to clients,
`federated_data` standardises them and puts everything together.
"""

from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset, load_dataset, open_dataset
from relief_ray.data.federated_data import FederatedData, federate, num_clients
from relief_ray.data.loader import DatasetSpec, Loader, Recording
from relief_ray.data.registry import DATASETS, get_spec
from relief_ray.data.source import find_source
from relief_ray.data.window_set import WindowSet, pool

__all__ = [
    "DATASETS",
    "DataConfig",
    "Dataset",
    "DatasetSpec",
    "FederatedData",
    "Loader",
    "Recording",
    "WindowSet",
    "federate",
    "find_source",
    "get_spec",
    "load_dataset",
    "num_clients",
    "open_dataset",
    "pool",
]
