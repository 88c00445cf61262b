"""Peak memory of one training step of Backbone 2, whole and in micro-batches: what ``training.micro_batch`` saves.

``python -m benchmarks.memory [--size small] [--windows 8] [--channels 3] [--samples 128] [--micro 8 4 2 1]`` trains one
batch of noise with three sensors, everything trained, each time in a fresh copy of the process, and prints what the
step added to it at most, and its seconds, as JSON. No data is needed: memory and FLOPs depend on shapes alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

from benchmarks.engine.machine import Figures, facts
from relief_ray.federated import ClientContext, ClientProgram
from relief_ray.messages import NO_STATE, Assignment, ClientInfo
from relief_ray.models.backbone import Backbone, InputShape
from relief_ray.models.moment_encoder import Size
from relief_ray.models.moment_lora import MomentConfig
from relief_ray.process import use_threads
from relief_ray.profiling import noise
from relief_ray.streams import Streams
from relief_ray.training.trainer import Trainer, TrainerConfig

SENSORS = ("acc", "gyro", "mag")
KIB_PER_MIB = 1024


def resident_mib() -> float:
    """What this process holds now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / KIB_PER_MIB


def step(backbone: Backbone, num_windows: int, micro: int, answer: Connection) -> None:
    """Trains one batch and tells the peak above the start, and the seconds."""
    trainer = Trainer(
        backbone,
        TrainerConfig(lr=1e-3, batch_size=num_windows, missing="zero_input", engine="reuse", micro_batch=micro),
    )
    info = ClientInfo(id=0, name="client", device="A", modalities=SENSORS, num_windows=num_windows)
    layout, start = backbone.layout, backbone.params()
    context = ClientContext(info=info, round=1, layout=layout, start=start, state=NO_STATE, streams=Streams(seed=0))
    every = layout.select()
    inputs = noise(backbone, SENSORS, num_windows)
    before, began = resident_mib(), perf_counter()
    trainer.train(context, Assignment(client=0, down=every, train=every, up=every, epochs=1), inputs, ClientProgram())
    seconds = perf_counter() - began
    answer.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB - before, seconds))


def measure(size: Size, num_windows: int, channels: int, samples: int, micros: Sequence[int]) -> Figures:
    """Added MiB and seconds by micro-batch."""
    use_threads(1)
    shape = InputShape(channels=tuple((s, channels) for s in SENSORS), window=samples, num_classes=19)
    backbone = MomentConfig(size=size).build(shape, 0)
    fork, found = multiprocessing.get_context("fork"), {}
    for micro in micros:
        mine, theirs = fork.Pipe()
        child = fork.Process(target=step, args=(backbone, num_windows, micro, theirs))
        child.start()
        added_mib, seconds = mine.recv()
        child.join()
        found |= {f"micro_{micro}_added_mib": added_mib, f"micro_{micro}_s": seconds}
    return {
        **facts(),
        "size": size,
        "windows": num_windows,
        "channels_per_sensor": channels,
        "samples": samples,
        "declared_micro_batch": backbone.micro_batch or 0,
        **found,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=["small", "tiny"])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 4, 2, 1])
    given = parser.parse_args()
    print(json.dumps(measure(given.size, given.windows, given.channels, given.samples, given.micro), indent=1))


if __name__ == "__main__":
    main()
