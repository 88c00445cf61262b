"""A short run of its own process, for start-up time and memory: ``FOLDER CLIENTS WINDOWS OUT.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import time

from actors.runtime.single_run import run_experiment
from benchmarks.engine.scenario import Scenario, setup, write
from relief_ray.experiment.recording import run_record
from relief_ray.records.run_folder import RunFolder, read_rounds

ROUNDS = 2


def main(folder: Path, num_clients: int, num_windows: int, out: Path) -> None:
    """Full training, every client once over its windows."""
    imported = time()
    scenario = write(
        Scenario(dataset="pamap2", num_clients=num_clients, num_windows=num_windows, folder=folder / "start"),
        peers=False,
    )
    experiment = setup(scenario, rounds=ROUNDS)
    path = scenario.folder / "run"
    RunFolder.create(path, run_record(experiment)).close()
    prepared = time()
    run_experiment(experiment, path)
    first, last = read_rounds(path)
    committed = first.ended_unix_s
    seen = {
        "imported": imported,
        "prepared": prepared,
        "round_1": committed - first.wall_s,
        "committed": committed,
    }
    out.write_text(json.dumps({f"{name}_unix_s": at for name, at in seen.items()} | {"last_round_s": last.wall_s}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
