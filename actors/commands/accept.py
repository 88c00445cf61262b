"""`relief-ray data accept`: tries everything out on a dataset's files and writes a receipt to share."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from relief_ray import __version__
from relief_ray.config.experiment import override, parse
from relief_ray.data import open_dataset
from relief_ray.data.describe import describe, verify
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.records.identity import machine_facts, source_digest
from relief_ray.strategies import PRESETS
from relief_ray.studies.data_description import data_config
from relief_ray.support.errors import UserError
from relief_ray.support.files import write_atomic
from relief_ray.support.process import use_threads
from relief_ray.support.text import table
from relief_ray.training.executor import SerialExecutor

_ROUNDS = 2


def accept(name: str, stride_s: float, settings: Sequence[str], out: Path, as_json: bool) -> None:
    """Verify, cache, describe, and train two rounds of every strategy; write ``accept-NAME.json``.

    Raises:
        UserError: the files are not the dataset.
    """
    use_threads(1)
    verification = verify(name)
    if not verification["ok"]:
        raise UserError(f"{verification['path']}: " + "\n".join(verification["problems"]))
    config = data_config(name, stride_s)
    dataset = open_dataset(config)
    described = describe(dataset, config)
    rows = [_trial(name, label, stride_s, settings, quiet=as_json) for label in PRESETS]
    receipt = {
        "receipt": 1,
        "dataset": name,
        "origin": dataset.origin,
        "digest": dataset.digest,
        "load_s": dataset.load_s,
        "verification": {**verification, "files": len(verification["files"])},
        "windows": described["windows"],
        "coverage": described["coverage"],
        "stride_s": stride_s,
        "settings": list(settings),
        "strategies": rows,
        "code_version": __version__,
        "source_digest": source_digest(),
        "machine": machine_facts().model_dump(mode="json"),
    }
    path = out / f"accept-{name}.json"
    write_atomic(path, (json.dumps(receipt, indent=1) + "\n").encode())
    print(json.dumps(receipt, indent=1) if as_json else text(name, receipt["origin"], rows, path))


def _trial(
    name: str, strategy: str, stride_s: float, settings: Sequence[str], quiet: bool
) -> dict[str, str | float | None]:
    """Run two rounds of one strategy in this process, in a temporary folder; return F1, loss and seconds."""
    values = {
        "name": f"accept-{strategy}",
        "strategy": strategy,
        "data": {"name": name, "stride_s": stride_s},
        "training": {"epochs": 1},
        "rounds": _ROUNDS,
    }
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="relief-ray-accept-") as place:
        setup, folder = create(parse(override(values, settings)), Path(place) / "run")
        with folder:
            Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
            last = folder.rounds()[-1]
    wall_s = time.perf_counter() - began
    if not quiet:
        print(f"  {strategy}: {wall_s:.1f} s", flush=True)
    metrics = last.metrics
    f1 = None if metrics is None else metrics.headline
    return {"strategy": strategy, "f1": f1, "loss": last.loss, "wall_s": wall_s, "model_sha256": last.model_sha256}


def text(name: str, origin: object, rows: list[dict[str, str | float | None]], path: Path) -> str:
    """Short form of the receipt, for a terminal."""
    lines = [
        [str(r["strategy"]), _number(r["f1"], 100.0, 1), _number(r["loss"], 1.0, 3), _number(r["wall_s"], 1.0, 1)]
        for r in rows
    ]
    return "\n".join(
        [
            f"{name} ({origin}): files, cache, windows and {_ROUNDS} rounds of {len(rows)} strategies are fine",
            table(["strategy", f"F1 after {_ROUNDS} rounds, %", "loss", "seconds"], lines),
            f"Receipt: {path}",
        ]
    )


def _number(value: object, factor: float, digits: int) -> str:
    """A figure, or a dash."""
    return f"{factor * value:.{digits}f}" if isinstance(value, int | float) else "-"
