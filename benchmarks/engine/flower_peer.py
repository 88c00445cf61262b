"""FedAvg in Flower's simulation, in Flower's own environment: ``FOLDER ROUNDS SECONDS.json FIRST.npy LAST.npy``.

Settings as Flower's guide recommends: one core per client app, so two at a time on two cores; no evaluation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.engine.eager import EagerCnn, read_task
from benchmarks.engine.flower_app import client_app

FOLDER, NUM_ROUNDS = Path(sys.argv[1]), int(sys.argv[2])
OUT, FIRST, LAST = (Path(name) for name in sys.argv[3:])
server_app = ServerApp()


class Timed(FedAvg):
    """FedAvg that notes when each round's model is there; a client that failed ends the comparison."""

    def __init__(self, num_clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=num_clients, min_available_nodes=num_clients)
        self._num_clients, self.ends = num_clients, [perf_counter()]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Flower's own aggregation."""
        answers = list(replies)
        failed = [str(a.error) for a in answers if a.has_error()]
        if failed or len(answers) != self._num_clients:
            raise RuntimeError(f"round {server_round}: {len(answers)} answers, {len(failed)} failed: {failed[:1]}")
        aggregated = super().aggregate_train(server_round, answers)
        if server_round == 1:  # which is not counted
            save(aggregated[0], FIRST)
        self.ends.append(perf_counter())
        return aggregated


def save(arrays: ArrayRecord | None, place: Path) -> None:
    """The model as one vector in our order."""
    assert arrays is not None
    model = EagerCnn(read_task(FOLDER))
    model.load_state_dict(arrays.to_torch_state_dict())
    np.save(place, model.flat().numpy())


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; writes the seconds of each and the last model."""
    task, model = read_task(FOLDER), EagerCnn(read_task(FOLDER))
    model.load_flat(torch.from_numpy(np.load(FOLDER / "start.npy")))
    strategy, start = Timed(task.num_clients), ArrayRecord(model.state_dict())
    config = ConfigRecord({"folder": str(FOLDER.resolve())})
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=NUM_ROUNDS, train_config=config)
    save(result.arrays, LAST)
    OUT.write_text(json.dumps([b - a for a, b in pairwise(strategy.ends)]))


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=read_task(FOLDER).num_clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
