"""Part 5: what formats on the wire cost: full rounds in float32 and with int8 up and float16 down, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from benchmarks.engine.full import Sizes
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import take_turns
from benchmarks.engine.product import Product
from benchmarks.engine.scenario import Scenario, setup, write
from relief_ray.config.experiment import TransferConfig

SHORT = TransferConfig(up="int8", down="float16")


def measure(sizes: Sizes, folder: Path) -> Iterator[Figures]:
    """Seconds of a round in both formats and their ratio, case by case; inside a Ray session."""
    for num_clients, num_windows in sizes.cases:
        place = folder / f"formats-{num_clients}"
        scenario = Scenario(dataset="pamap2", num_clients=num_clients, num_windows=num_windows, folder=place)
        usual = write(scenario, peers=False)
        with ExitStack() as stack:
            plain, short = (
                stack.enter_context(closing(Product(setup(each), place / name)))
                for name, each in (("float32", usual), ("int8", replace(usual, transfer=SHORT)))
            )
            for product in (plain, short):
                product.run(1)
            turns = {"float32": plain.segment, "int8": short.segment}
            times = take_turns(turns, sizes.num_turns, sizes.num_rounds)
        figures: Figures = {f"{name}_round_s": times.median_s(name) for name in turns}
        figures |= {"cost": times.ratio("int8", "float32"), "spread": times.spread("int8")}
        yield {f"formats_n{num_clients}_{key}": value for key, value in figures.items()}
