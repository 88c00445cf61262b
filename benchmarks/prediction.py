"""Predicted against measured: round times of assignments relative to full training, on this machine.

``python -m benchmarks.prediction [--quick] --json FILE`` profiles this machine for each backbone
(``relief_ray.profiling.profile``), prices a client's rounds with that profile, and trains them. The profile's rounds,
full training and the assignments take turns; a ratio to full training comes from each turn, medians and quartiles are
over the turns. The profile sees other rounds than those that are predicted: seeded noise, fewer windows and epochs, and
only the richest and the poorest set of sensors. Beside it stand two simpler predictions: one speed per phase, and
FLOPs alone. ``--profile FILE``: a file that ``relief-ray device profile`` wrote before; what it predicts stands beside
the rest, with the machine's drift since then in it. ``--device cuda``: profile and rounds on this machine's GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from benchmarks.engine.machine import Figures, facts
from relief_ray.config.experiment import parse
from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.groups import GroupId
from relief_ray.core.messages import NO_STATE, Assignment, ClientInfo, ServerState
from relief_ray.core.streams import Streams
from relief_ray.devices.time import MeasuredClock, Profile
from relief_ray.devices.workload import Workload, footprint, num_steps, shares
from relief_ray.experiment.setup import Setup, context_of, foreign_profile, prepare, run_clocks
from relief_ray.profiling.profile import Profiler
from relief_ray.records.identity import machine_facts
from relief_ray.server.aggregation import to_tensor
from relief_ray.strategies.relief.budget import D_BAR
from relief_ray.support.errors import UserError
from relief_ray.support.process import use_threads
from relief_ray.training.inputs import prepare as prepare_inputs
from relief_ray.training.trainer import Trainer

Values = dict[str, object]
ERRORS = {"predicted_stages": "", "predicted_earlier": "_earlier"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A backbone, data and how long a round is."""

    name: str
    values: Values


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An assignment of a client."""

    client: str
    name: str
    groups: tuple[GroupId, ...]


def cases(device: str = "cpu") -> dict[str, Case]:
    """Backbone 1 and the two sizes of Backbone 2, on the data that ship with the package; ``device`` trains."""
    data: Values = {"name": "dsa_mini", "stride_s": 5.0}
    common: Values = {"strategy": "relief", "runtime": {"mode": "inline"}, "tracking": {"enabled": False}}
    tiny, small = {"name": "moment_lora", "size": "tiny"}, {"name": "moment_lora", "size": "small"}
    brief: Values = {**data, "max_windows_per_client": 10}
    values: dict[str, Values] = {
        "cnn": {"data": data, "backbone": "cnn", "training": {"device": device}},
        "tiny": {"data": data, "backbone": tiny, "training": {"epochs": 3, "device": device}},
        "small": {"data": brief, "backbone": small, "training": {"epochs": 2, "device": device}},
    }
    return {name: Case(name=name, values={**common, **own}) for name, own in values.items()}


def assignments(setup: Setup) -> list[Row]:
    """Full training first, for the first client of each device type; then V0's choice and parts of its own sensors.

    V0 chooses as it does after a bootstrap in which no group had a divergence: ties in layout order.
    """
    layout, rows = setup.layout, []
    state = ServerState(models={"global": setup.start}, tensors={D_BAR: to_tensor({}, layout)})
    tasks = setup.strategy.allocate(state, context_of(setup, 2))
    chosen = {t.client: tuple(t.train) for t in tasks}
    for device in "ABC":
        client = first_client(setup, device)
        sensor_groups = [g for g in layout if g.modality in client.modalities]
        layers = sorted({g.layer or 0 for g in sensor_groups if g.role == "encoder"})
        middle = layers[(len(layers) - 1) // 2]
        named: dict[str, tuple[GroupId, ...]] = {
            "everything": layout.ids,
            "V0": chosen[client.id],
            "fusion blocks": tuple(g.id for g in sensor_groups if g.role == "fusion_a"),
            "head + B": tuple(g.id for g in layout if g.role in ("fusion_b", "head")),
            f"encoder block {layers[-1]}": tuple(
                g.id for g in sensor_groups if (g.role, g.layer) == ("encoder", layers[-1])
            ),
            f"encoder block {middle}": tuple(g.id for g in sensor_groups if (g.role, g.layer) == ("encoder", middle)),
        }
        same: dict[tuple[GroupId, ...], list[str]] = {}
        for name, groups in named.items():
            same.setdefault(tuple(j for j in layout.ids if j in groups), []).append(name)
        rows += [Row(client=device, name=" = ".join(names), groups=groups) for groups, names in same.items()]
    return rows


def first_client(setup: Setup, device: str) -> ClientInfo:
    """The first client with such a device."""
    return next(c for c in setup.fleet.clients if c.device == device)


def load_of(setup: Setup, row: Row) -> Workload:
    """The cost model's workload of a row."""
    client, training = first_client(setup, row.client), setup.config.training
    return footprint(
        setup.accountant.counter.costs,
        client.modalities,
        shares(setup.layout, setup.layout.select(row.groups)),
        setup.engine,
        training.missing,
    ).workload(
        num_windows=client.num_windows,
        epochs=training.epochs,
        num_steps=num_steps(client.num_windows, training.epochs, training.batch_size),
    )


def local_round(setup: Setup, trainer: Trainer, row: Row) -> Callable[[], float]:
    """A call trains the row's round and returns its seconds."""
    client = first_client(setup, row.client)
    inputs = prepare_inputs(setup.job.clients[client.id], client.modalities, trainer.backbone)
    context = ClientContext(
        info=client, round=1, layout=setup.layout, start=setup.start, state=NO_STATE, streams=Streams(seed=0)
    )
    chosen = setup.layout.select(row.groups)
    task = Assignment(
        client=client.id, down=setup.layout.select(), train=chosen, up=chosen, epochs=setup.config.training.epochs
    )

    def run() -> float:
        began = perf_counter()
        trainer.train(context, task, inputs, ClientProgram())
        return perf_counter() - began

    return run


def observe(setup: Setup, rows: Sequence[Row], turns: int) -> tuple[Profile, list[list[float]]]:
    """The profile, and seconds of every row turn by turn; a turn of the profile goes before each, the first is lost."""
    profiler, trainer = Profiler(setup.config), Trainer(setup.job.build(), setup.job.trainer)
    runs, taken = [local_round(setup, trainer, row) for row in rows], []
    for turn in range(turns + 1):
        if turn:
            profiler.turn()
        taken.append([run() for run in runs])
    return profiler.profile(("A",)), [list(column) for column in zip(*taken[1:], strict=True)]


def predict(setup: Setup, profile: Profile, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Seconds of every row: stage by stage, with one speed per phase, and in proportion to all FLOPs."""
    row_of, loads = profile.devices["A"], [load_of(setup, row) for row in rows]
    phases = row_of.model_copy(update={"stagewise": None})
    return {
        "stages": [sum(row_of.compute_s(load)) for load in loads],
        "phases": [sum(phases.compute_s(load)) for load in loads],
        "flops": [load.forward_flops + load.backward_flops + load.optimizer_flops for load in loads],
    }


def foretold(setup: Setup, profile: Profile, rows: Sequence[Row]) -> list[float]:
    """Seconds of every row, predicted by an earlier profile."""
    return [sum(profile.devices[row.client].compute_s(load_of(setup, row))) for row in rows]


def _row(
    rows: Sequence[Row], i: int, whole: int, seen: Sequence[Sequence[float]], predicted: Mapping[str, Sequence[float]]
) -> dict[str, object]:
    """Assignment ``i`` against ``whole``, the same client's full training: measured in the same turns, predicted."""
    row, ratios = rows[i], [part / all_of_it for part, all_of_it in zip(seen[i], seen[whole], strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    guesses = {f"predicted_{k}": v[i] / v[whole] for k, v in predicted.items()}
    return {
        "client": row.client,
        "assignment": row.name,
        "num_groups": len(row.groups),
        "measured_s": median(seen[i]),
        "predicted_s": predicted["stages"][i],
        "measured": median(ratios),
        "measured_q1": low,
        "measured_q3": high,
        **guesses,
        **{f"error{e}": guesses[k] / median(ratios) - 1 for k, e in ERRORS.items() if k in guesses},
    }


def compare(case: Case, turns: int, path: Path | None = None) -> dict[str, object]:
    """One case: its profile's conditions, and every assignment's ratio to full training of the same client.

    ``path``: an earlier profile.
    """
    setup = prepare(parse(case.values))
    before = None if path is None else earlier_profile(path, setup)
    rows = assignments(setup)
    profile, seen = observe(setup, rows, turns)
    predicted = predict(setup, profile, rows)
    if before is not None:
        predicted["earlier"] = foretold(setup, before, rows)
    full = {row.client: i for i, row in reversed(list(enumerate(rows))) if row.name.startswith("everything")}
    predicted_rows = [_row(rows, i, full[row.client], seen, predicted) for i, row in enumerate(rows)]
    assert profile.measured is not None
    windows = {c.device: c.num_windows for c in setup.fleet.clients}
    return {
        "case": case.name,
        "engine": setup.engine,
        "epochs": setup.config.training.epochs,
        "num_windows": windows,
        "turns": turns,
        "profile": profile.measured.model_dump(mode="json"),
        **({} if before is None or before.measured is None else {"earlier": before.measured.model_dump(mode="json")}),
        "rows": predicted_rows,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Backbone 1 and `tiny` alone, two turns.")
    parser.add_argument("--cases", default="cnn,tiny,small", help="Which of cnn, tiny, small.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="What trains.")
    parser.add_argument("--json", type=Path, required=True, help="The file to write.")
    parser.add_argument("--profile", type=Path, help="A file of `relief-ray device profile`, for the one case asked.")
    options = parser.parse_args()
    if unknown := sorted(set(options.cases.split(",")) - set(cases())):
        parser.error(f"--cases {','.join(unknown)}: expected some of {', '.join(cases())}")
    use_threads(1)
    machine: Figures = facts()
    names = [n for n in options.cases.split(",") if not (options.quick and n == "small")]
    if options.profile is not None and len(names) != 1:
        parser.error(f"--profile {options.profile}: is of one backbone; ask for its case alone with --cases")
    turns = 2 if options.quick else options.turns
    results = []
    for name in names:
        try:
            results.append(compare(cases(options.device)[name], turns, options.profile))
        except UserError as error:
            parser.error(str(error))
        print(f"\n{name}\n\n{table(results[-1])}", flush=True)
        options.json.write_text(json.dumps({"machine": machine, "cases": results}, indent=1) + "\n", encoding="utf-8")


def table(case: dict[str, object]) -> str:
    """A case as Markdown; an earlier profile's prediction has two columns more, and its conditions below."""
    before, rows = case.get("earlier"), case["rows"]
    assert isinstance(rows, list)
    head = ["client", "assignment", "measured (quartiles)", "by stages", "error", "by phases", "by FLOPs"]
    head += [] if before is None else ["by stages, earlier", "error"]
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *(cells(r) for r in rows if r["measured"] != 1.0)))
    lines = [first, "|---" * len(head) + "|", *others]
    return "\n".join([*lines, *(["", conditions(before)] if isinstance(before, dict) else [])])


def cells(r: dict[str, object]) -> list[str]:
    """The cells of one row."""
    shown = [f"{r['measured']:.3f} ({r['measured_q1']:.3f} to {r['measured_q3']:.3f})", f"{r['predicted_stages']:.3f}"]
    shown += [f"{percent(r['error'])}", f"{r['predicted_phases']:.3f}", f"{r['predicted_flops']:.3f}"]
    if "predicted_earlier" in r:
        shown += [f"{r['predicted_earlier']:.3f}", percent(r["error_earlier"])]
    return [str(r["client"]), str(r["assignment"]), *shown]


def percent(share: object) -> str:
    """A share in per cent with its sign."""
    assert isinstance(share, float)
    return f"{100 * share:+.0f} %"


def conditions(before: dict[str, object]) -> str:
    """The source of the last two columns: the earlier profile's date, commit and turns."""
    return (
        f"earlier: a file of `relief-ray device profile`, {before['date']}, commit {before['commit']}, "
        f"{before['turns']} turns, spread {before['spread']:.3f}"
    )


def earlier_profile(path: Path, setup: Setup) -> Profile:
    """Read an earlier profile and check that it was measured on this machine, for this backbone and data shape.

    Raises:
        UserError: no such file; not of this machine, thread count, backbone or shape; a device type is missing.
    """
    config = setup.config.model_copy(update={"costs": setup.config.costs.model_copy(update={"profile": str(path)})})
    clocks = run_clocks(config, setup.engine)
    model = clocks["measured"]
    assert isinstance(model, MeasuredClock)
    profile, here = model.profile, machine_facts()
    if profile.measured is None:
        raise UserError(f"{path}: does not say how it was measured; take what `relief-ray device profile` wrote")
    if foreign := foreign_profile(config, setup.job.build().shape, clocks):
        raise UserError(foreign[0])
    there = profile.measured
    if (there.cpu, there.num_threads) != (here.cpu, here.num_threads):
        raise UserError(
            f"{path}: measured on {there.cpu}, threads: {there.num_threads}; this is {here.cpu}, threads: "
            f"{here.num_threads}; profile this machine"
        )
    if missing := sorted({c.device for c in setup.fleet.clients} - profile.devices.keys()):
        raise UserError(f"{path}: has no row for device types {', '.join(missing)}; profile with --types A,B,C")
    return profile


if __name__ == "__main__":
    main()
