"""FedAvg in pfl, in pfl's own environment, two processes: ``FOLDER ROUNDS SECONDS.json FIRST.npy LAST.npy``.

Every user in every round. pfl does not shuffle by itself: a user's batches are drawn as in every other harness.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.engine.eager import EagerCnn, load_client, read_task
from relief_ray.core.streams import Streams

NEVER = 10**9


class Module(EagerCnn):
    """The model with the two methods that pfl asks for."""

    def loss(self, *data: Tensor) -> Tensor:
        """Mean cross-entropy; the labels come last."""
        *windows, labels = data
        return nn.functional.cross_entropy(self(*windows), labels)

    def metrics(self, *data: Tensor) -> dict[str, Any]:
        """Return no metrics."""
        return {}


class Watch(TrainingProcessCallback):
    """Notes when each round is over, and calls ``after_first`` when the first one is, which is not counted."""

    def __init__(self, after_first: Callable[[], None]) -> None:
        self.ends, self._after_first = [perf_counter()], after_first

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:
        """Never stops."""
        if len(self.ends) == 1:
            self._after_first()
        self.ends.append(perf_counter())
        return False, Metrics()


class Shuffled(Dataset):
    """A user's windows in one round; every epoch draws its batches anew."""

    def __init__(self, raw_data: list[Tensor], order: torch.Generator) -> None:
        super().__init__(raw_data=raw_data)
        self._order = order

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        """One epoch. All windows at once: pfl also evaluates so, which must not use up a draw."""
        number = len(self.raw_data[-1])
        if batch_size is None or batch_size >= number:
            yield list(self.raw_data)
            return
        for index in torch.split(torch.randperm(number, generator=self._order), batch_size):
            yield [x[index] for x in self.raw_data]


def federation(folder: Path, watch: Watch) -> FederatedDataset:
    """All clients as users."""
    task = read_task(folder)

    def user(client: int) -> Shuffled:
        windows, labels = load_client(folder, client)
        return Shuffled([*windows, labels], Streams(seed=task.seed).torch("batches", len(watch.ends), client))

    return FederatedDataset(user, MinimizeReuseUserSampler(list(range(task.num_clients))))


def main(folder: Path, num_rounds: int, out: Path, first: Path, last: Path) -> None:
    """All rounds."""
    torch.set_num_threads(1)
    task = read_task(folder)
    module = Module(task)
    module.load_flat(torch.from_numpy(np.load(folder / "start.npy")))
    is_first = os.environ.get("RANK", "0") == "0"

    def save(place: Path) -> None:
        if is_first:
            np.save(place, module.flat().numpy())

    watch = Watch(partial(save, first))
    data = federation(folder, watch)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=num_rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=task.num_clients,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[]),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.Adam,
            central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=task.epochs, local_learning_rate=task.lr, local_batch_size=task.batch_size
        ),
        model_eval_params=None,
        callbacks=[watch],
    )
    save(last)
    if is_first:
        out.write_text(json.dumps([b - a for a, b in pairwise(watch.ends)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:]))
