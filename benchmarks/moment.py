"""One Acc-only client's local round with Backbone 2: everything, RELIEF's V0 assignment naively, V0 with reuse.

``RELIEF_DATA=... python -m benchmarks.moment [--size small] [--windows 16] [--turns 1]`` trains on real dsa windows of
one body unit and prints seconds, ratios with quartiles and the peak memory of this process as JSON. V0's assignment at
the bottleneck is the client's own fusion block alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from time import perf_counter

from benchmarks.engine.machine import Figures, facts
from relief_ray.config.experiment import parse
from relief_ray.core.client import ClientProgram
from relief_ray.core.stages import Engine
from relief_ray.experiment.setup import Setup, prepare
from relief_ray.support.process import peak_mib
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import lone_client
from relief_ray.training.inputs import prepare as prepare_inputs
from relief_ray.training.trainer import Trainer

EPOCHS, PRESENT = 5, ("acc",)
PAPER_FULL_S, PAPER_V0_S = 18.0, 13.5


def open_setup(size: str, num_windows: int) -> Setup:
    """Open the real dsa (torso unit) with ``num_windows`` windows per client."""
    return prepare(
        parse(
            {
                "data": {"name": "dsa", "units": ["T"], "stride_s": 5.0, "max_windows_per_client": num_windows},
                "backbone": {"name": "moment_lora", "size": size},
                "runtime": {"mode": "inline"},
            }
        )
    )


def local_round(setup: Setup, engine: Engine, groups: tuple[str, ...] | None) -> Callable[[], float]:
    """A call trains the round and returns its seconds."""
    backbone = setup.job.build()
    windows = setup.job.clients[0]
    trainer = Trainer(backbone, TrainerConfig(lr=1e-3, batch_size=32, missing="zero_input", engine=engine))
    inputs = prepare_inputs(windows, PRESENT, backbone)
    context, task = lone_client(backbone, inputs, groups, EPOCHS, setup.start)

    def run() -> float:
        began = perf_counter()
        trainer.train(context, task, inputs, ClientProgram())
        return perf_counter() - began

    return run


def measure(size: str, num_windows: int, turns: int) -> Figures:
    """Medians over ``turns``, the variants taking turns; ratios are taken within a turn."""
    setup = open_setup(size, num_windows)
    block = ("fusion.A.acc",)
    variants = {
        "full_naive": local_round(setup, "naive", None),
        "full_reuse": local_round(setup, "reuse", None),
        "v0_naive": local_round(setup, "naive", block),
        "v0_reuse": local_round(setup, "reuse", block),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, run in variants.items():
            seconds[name].append(run())
    s = {name: median(values) for name, values in seconds.items()}
    ratios = {
        f"{above}_over_{below}": paired(seconds[above], seconds[below])
        for above, below in (
            ("full_naive", "v0_naive"),
            ("full_naive", "v0_reuse"),
            ("v0_naive", "v0_reuse"),
            ("full_naive", "full_reuse"),
            ("full_reuse", "v0_reuse"),
        )
    }
    return {
        **facts(),
        "size": size,
        "windows": len(setup.job.clients[0]),
        "epochs": EPOCHS,
        "turns": turns,
        **{f"{name}_s": value for name, value in s.items()},
        **{f"{name}_{part}": value for name, parts in ratios.items() for part, value in parts.items()},
        "paper_jetson_full_over_v0": PAPER_FULL_S / PAPER_V0_S,
        "peak_mib": peak_mib(),
    }


def paired(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the ratios, one from each turn."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {"median": median(ratios), "q1": low, "q3": high}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=["small", "tiny"])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(measure(options.size, options.windows, options.turns), indent=1))


if __name__ == "__main__":
    main()
