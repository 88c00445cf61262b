"""Peak memory of one training step of Backbone 2, whole and in micro-batches: what ``training.micro_batch`` saves.

``python -m benchmarks.memory [--size small] [--windows 8] [--channels 3] [--samples 128] [--micro 8 4 2 1]`` trains one
batch of noise with three sensors, everything trained, each time in a fresh copy of the process, and prints what the
step added to it at most, and its seconds, as JSON. No data is needed: memory and FLOPs depend on shapes alone.
``--through-ray`` trains, tests and trains again a client of as many windows (a batch) on a Ray host, a new one for each
micro-batch (without ``--micro``: as the backbone declares), and prints the most memory that the host's process held.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import numpy as np

from actors.runtime.session import SessionOptions, ray_session
from benchmarks.engine.machine import Figures, facts
from relief_ray.core.client import ClientProgram
from relief_ray.core.messages import Assignment, ClientInfo, EvalTarget, Fleet, WeightedSum
from relief_ray.core.stages import most_windows
from relief_ray.core.streams import Streams
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, InputShape
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.moment.encoder import Size
from relief_ray.server.aggregation import by_samples, one_bucket
from relief_ray.support.process import peak_mib, use_threads
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import lone_client, noise
from relief_ray.training.job import Job
from relief_ray.training.trainer import Trainer

SENSORS = ("acc", "gyro", "mag")
KIB_PER_MIB = 1024
MICROS = (8, 4, 2, 1)


def resident_mib() -> float:
    """Resident memory of this process now, MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / KIB_PER_MIB


def step(backbone: Backbone, num_windows: int, micro: int, answer: Connection) -> None:
    """Train one batch and tell the peak above the start, and the seconds."""
    trainer = Trainer(
        backbone,
        TrainerConfig(lr=1e-3, batch_size=num_windows, missing="zero_input", engine="reuse", micro_batch=micro),
    )
    inputs = noise(backbone, SENSORS, num_windows)
    context, task = lone_client(backbone, inputs, None, 1, backbone.params())
    before, began = resident_mib(), perf_counter()
    trainer.train(context, task, inputs, ClientProgram())
    seconds = perf_counter() - began
    answer.send((peak_mib() - before, seconds))


def shape_of(channels: int, samples: int) -> InputShape:
    """Three sensors of as many channels, and DSA's 19 classes."""
    return InputShape(channels=tuple((s, channels) for s in SENSORS), window=samples, num_classes=19)


def measure(size: Size, num_windows: int, channels: int, samples: int, micros: Sequence[int]) -> Figures:
    """Added MiB and seconds by micro-batch."""
    use_threads(1)
    backbone = MomentConfig(size=size).build(shape_of(channels, samples), 0)
    fork = multiprocessing.get_context("fork")
    figures: Figures = {}
    for micro in micros:
        mine, theirs = fork.Pipe()
        child = fork.Process(target=step, args=(backbone, num_windows, micro, theirs))
        child.start()
        added_mib, seconds = mine.recv()
        child.join()
        figures |= {f"micro_{micro}_added_mib": added_mib, f"micro_{micro}_s": seconds}
    return {
        **facts(),
        "size": size,
        "windows": num_windows,
        "channels_per_sensor": channels,
        "samples": samples,
        "declared_micro_batch": most_windows(sum(s.step_bytes for s in backbone.stages)) or 0,
        **figures,
    }


def noise_on_disk(folder: Path, num_windows: int, channels: int, samples: int) -> WindowSet:
    """Random windows in a file that a worker process maps."""
    width, path = channels * len(SENSORS), folder / "signal.npy"
    np.save(path, np.random.default_rng(0).normal(size=(num_windows * samples, width)).astype(np.float32))
    return WindowSet(
        signal_path=str(path),
        starts=np.arange(num_windows) * samples,
        labels=np.arange(num_windows) % 19,
        subjects=np.zeros(num_windows, np.int16),
        window=samples,
        columns=tuple((s, i * channels, (i + 1) * channels) for i, s in enumerate(SENSORS)),
        mean=np.zeros(width, np.float32),
        std=np.ones(width, np.float32),
    )


def job_of(size: Size, windows: WindowSet, channels: int) -> Job:
    """One client that trains everything on one batch."""
    info = ClientInfo(id=0, name="client", device="A", modalities=SENSORS, num_windows=len(windows))
    build = partial(MomentConfig(size=size).build, shape_of(channels, windows.window), 0)
    return Job(
        build=build,
        layout=build().layout,
        trainer=TrainerConfig(lr=1e-3, batch_size=len(windows), missing="zero_input", engine="reuse"),
        fleet=Fleet(clients=(info,), modalities=SENSORS),
        clients=(windows,),
        parts={"test": windows},
        program=ClientProgram(),
        reduction=WeightedSum(weight=by_samples, bucket=one_bucket),
        streams=Streams(seed=0),
    )


def host_peak(job: Job) -> float:
    """Peak MiB of the one worker process over training, evaluation and training again."""
    from actors.runtime.executor import open_executor
    from relief_ray.config.runtime import RuntimeConfig

    backbone = job.build()
    every, models = backbone.layout.select(), {"global": backbone.params()}
    tasks = [Assignment(client=0, down=every, train=every, up=every, epochs=1)]
    executor = open_executor(job, RuntimeConfig(num_hosts=1))
    try:
        executor.train(1, models, tasks, {})
        executor.evaluate(models, [EvalTarget(label="global")], {}, "test")
        executor.train(2, models, tasks, {})
        return executor.pool.peak_mib
    finally:
        executor.close()


def through_ray(size: Size, num_windows: int, channels: int, samples: int, micros: Sequence[int | None]) -> Figures:
    """Peak MiB of a fresh host by micro-batch; None: as the backbone declares."""
    with tempfile.TemporaryDirectory() as folder, ray_session(SessionOptions(num_cpus=1)):
        job = job_of(size, noise_on_disk(Path(folder), num_windows, channels, samples), channels)
        jobs = {micro: replace(job, trainer=replace(job.trainer, micro_batch=micro)) for micro in micros}
        figures = {f"micro_{micro or 'declared'}_host_peak_mib": host_peak(job) for micro, job in jobs.items()}
    shape: Figures = {"size": size, "windows": num_windows, "channels_per_sensor": channels, "samples": samples}
    return {**facts(), **shape, **figures}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=["small", "tiny"])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--micro", type=int, nargs="+", default=None)
    parser.add_argument("--through-ray", action="store_true")
    options = parser.parse_args()
    shape = (options.size, options.windows, options.channels, options.samples)
    figures = (
        through_ray(*shape, options.micro or [None])
        if options.through_ray
        else measure(*shape, options.micro or MICROS)
    )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
