"""Part 2: one client's local round with naive freezing and with reuse; and rounds of a mixed fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.engine.eager import EagerCnn, Task, train_client
from benchmarks.engine.machine import Figures
from benchmarks.engine.pairs import Times, take_turns, timed
from benchmarks.engine.product import Product, deviation, straggler_s
from benchmarks.engine.scenario import OURS, Scenario, federated, setup, window_sets, write
from relief_ray.core.client import ClientProgram
from relief_ray.core.messages import Update
from relief_ray.core.stages import Engine
from relief_ray.experiment.setup import input_shape
from relief_ray.models.backbone import Backbone
from relief_ray.models.cnn import CnnConfig
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import ClientInputs, lone_client
from relief_ray.training.trainer import Trainer

TYPES: Mapping[str, tuple[str, ...]] = {"c": ("acc",), "b": ("acc", "gyro")}
EPOCHS = 5
PLAIN = ClientProgram()
Windows = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """One client with its raw windows, and how it trains."""

    task: Task
    present: tuple[str, ...]
    windows: Windows
    labels: Tensor
    start: Tensor


class Local:
    """One engine with one client's prepared windows."""

    def __init__(self, client: Client, backbone: Backbone, engine: Engine) -> None:
        config = TrainerConfig(
            lr=client.task.lr, batch_size=client.task.batch_size, missing="zero_input", engine=engine
        )
        self.client, self.backbone, self.trainer = client, backbone, Trainer(backbone, config)
        began = perf_counter()
        inputs = {m: backbone.prepare(m, client.windows[m]) for m in client.present}
        self.prepare_s = perf_counter() - began
        self.inputs = ClientInputs(inputs=inputs, labels=client.labels)

    def train(self, groups: tuple[str, ...] | None, program: ClientProgram = PLAIN) -> Update:
        """One local round of ``groups`` (None: everything)."""
        start = self.backbone.layout.views(self.client.start)
        context, task = lone_client(self.backbone, self.inputs, groups, self.client.task.epochs, start)
        return self.trainer.train(context, task, self.inputs, program)


def make_client(scenario: Scenario, present: tuple[str, ...]) -> Client:
    """The first client of the scenario with these sensors only."""
    raw = {m: torch.from_numpy(x) for m, x in window_sets(scenario)[0].load().items()}
    backbone = make_backbone(scenario, "naive")
    return Client(
        task=scenario.task,
        present=present,
        windows={m: x if m in present else torch.zeros_like(x) for m, x in raw.items()},
        labels=torch.from_numpy(window_sets(scenario)[0].labels),
        start=backbone.layout.flatten(backbone.params()),
    )


def make_backbone(scenario: Scenario, engine: Engine) -> Backbone:
    """Backbone 1 for the scenario; the same initial values for every engine."""
    return CnnConfig().build(input_shape(federated(scenario).spec), 0, engine=engine)


def eager_round(client: Client) -> Callable[[], Tensor]:
    """Everything, bare eager PyTorch: absent sensors are zero windows like any other."""
    model = EagerCnn(client.task)
    windows = [client.windows[m] for m, _ in client.task.channels]

    def run() -> Tensor:
        model.load_flat(client.start)
        train_client(model, client.task, 1, 0, windows, client.labels)
        return model.flat()

    return run


def measure_clients(scenario: Scenario, num_turns: int, prefix: str) -> Figures:
    """Types C and B: seconds of every variant and the ratios."""
    write(scenario, peers=False)
    figures: Figures = {f"{prefix}local_windows": scenario.num_windows, f"{prefix}local_epochs": scenario.epochs}
    figures[f"{prefix}local_turns"] = num_turns
    for name, present in TYPES.items():
        key = f"{prefix}type_{name}"
        figures |= {f"{key}_{k}": v for k, v in _client_figures(scenario, present, num_turns).items()}
    return figures


def _client_figures(scenario: Scenario, present: tuple[str, ...], num_turns: int) -> Figures:
    client = make_client(scenario, present)
    naive, fast = (Local(client, make_backbone(scenario, e), e) for e in ("naive", OURS))
    whole = make_client(scenario, scenario.spec.names)
    everyone, gemm = (Local(whole, make_backbone(scenario, e), e) for e in (OURS, "gemm"))
    blocks = tuple(f"fusion.A.{m}" for m in present)
    shared = (*blocks, "fusion.B", "head.1")
    eager = eager_round(client)
    actions: dict[str, Callable[[], object]] = {
        "eager_full": eager,
        "own_full": lambda: fast.train(None),
        "own_full_all_sensors": lambda: everyone.train(None),
        "gemm_full_all_sensors": lambda: gemm.train(None),
        "blocks_naive": lambda: naive.train(blocks),
        "blocks_reuse": lambda: fast.train(blocks),
        "shared_naive": lambda: naive.train(shared),
        "reuse": lambda: fast.train(shared),
    }
    for action in actions.values():
        action()
    times = take_turns({name: timed(action) for name, action in actions.items()}, num_turns, 1)
    figures = _ratios(times) | {"prepare_s": fast.prepare_s}
    flatten = fast.backbone.layout.flatten
    gap = deviation(_flat(naive.train(shared)), _flat(fast.train(shared)), torch.zeros(1))
    full = flatten(fast.trainer.theta) if fast.train(None) else client.start
    return figures | {"reuse_deviation": gap, "full_deviation": deviation(full, eager(), client.start)}


def _flat(update: Update) -> Tensor:
    return torch.cat(list(update.delta.values()))


def _ratios(times: Times) -> Figures:
    figures: Figures = {f"{name}_s": times.median_s(name) for name in times.turns}
    figures |= {f"{name}_spread": times.spread(name) for name in times.turns}
    figures |= {
        f"{name}_vs_eager_full": times.ratio("eager_full", name) for name in times.turns if name != "eager_full"
    }
    for fast in ("reuse", "blocks_reuse"):
        figures[f"{fast}_vs_own_full"] = times.ratio("own_full", fast)
    figures["own_full_all_sensors_vs_gemm"] = times.ratio("gemm_full_all_sensors", "own_full_all_sensors")
    return figures | {"reuse_vs_own_full_all_sensors": times.ratio("own_full_all_sensors", "reuse")}


def measure_fleet(scenario: Scenario, num_turns: int, num_rounds: int) -> Figures:
    """A mixed fleet's round in measured wall time: RELIEF against FedAvg, and FedAvg with the naive engine."""
    write(scenario, peers=False)
    chosen: Mapping[str, tuple[str, Engine]] = {
        "relief": ("relief", OURS),
        "fedavg": ("fedavg", OURS),
        "fedavg_naive": ("fedavg", "naive"),
    }
    with ExitStack() as stack:
        runs = {
            name: stack.enter_context(closing(Product(setup(scenario, strategy, engine), _path(scenario.folder, name))))
            for name, (strategy, engine) in chosen.items()
        }
        for run in runs.values():
            run.run(2)  # RELIEF's first round trains everything to see who diverges
            run.records.clear()
        times = take_turns({name: run.segment for name, run in runs.items()}, num_turns, num_rounds)
        figures: Figures = {f"fleet_{name}_round_s": times.median_s(name) for name in runs}
        slowest = {name: tuple(straggler_s(record) for record in run.records) for name, run in runs.items()}
    slow = Times(turns=slowest)  # records stand in the order of the turns: equally many of each run in every turn
    return figures | {
        "fleet_windows": scenario.num_windows,
        "fleet_clients": scenario.num_clients,
        "fleet_turns": num_turns,
        "fleet_relief_vs_fedavg": times.ratio("fedavg", "relief"),
        "fleet_relief_vs_fedavg_naive": times.ratio("fedavg_naive", "relief"),
        "fleet_straggler_relief_vs_fedavg": slow.ratio("fedavg", "relief"),
        "fleet_straggler_relief_vs_fedavg_naive": slow.ratio("fedavg_naive", "relief"),
    }


def _path(folder: Path, name: str) -> Path:
    return folder / f"run-{name}"
