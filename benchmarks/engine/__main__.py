"""``python -m benchmarks.engine [--quick] --json FILE [--markdown FILE]``: everything, on a quiet machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engine.effort import EFFORTS, Dataset, Effort
from benchmarks.engine.machine import Figures, facts, load

if TYPE_CHECKING:
    from benchmarks.engine.full import Sizes
    from benchmarks.engine.peers import Installed

ALONE = ("waits", "roofline", "local", "predict", "profile", "gpu", "start")
ON_RAY = ("noop", "recording", "fleet", "formats", "full")
PARTS = (*ALONE, *ON_RAY)


def run_parts(
    effort: Effort, parts: tuple[str, ...], peers: Path | None, folder: Path, keep: Callable[[Figures], None]
) -> Figures:
    """Run the chosen parts one after another; print figures as they come, and pass all so far to ``keep``."""
    from actors.runtime.session import SessionOptions, ray_session
    from benchmarks.engine.peers import NICENESS
    from benchmarks.engine.product import use_one_thread

    use_one_thread()
    os.environ[NICENESS] = "0"
    began, figures = time.perf_counter(), facts()
    # Before anything is measured, so that a comparison that is not possible is reported at once.
    ready, notes = installed(effort, peers) if "full" in parts else ({}, {})
    figures |= notes

    def collect(name: str, pieces: Iterable[Figures]) -> None:
        nonlocal figures
        for piece in printed(name, pieces):
            figures |= piece
            keep(figures)

    for name in ALONE:
        if name in parts:
            collect(name, alone(name, effort, folder))
    if set(ON_RAY) & set(parts):
        with ray_session(SessionOptions(num_cpus=8, object_store_mib=400)):
            for name in ON_RAY:
                if name in parts:
                    collect(name, on_ray(name, effort, ready, folder))
    return figures | {"load_after": load(), "seconds": time.perf_counter() - began, "parts": ",".join(parts)}


def installed(effort: Effort, peers: Path | None) -> tuple[Mapping[str, Installed], Figures]:
    """Install the peers; return those that can run, and figures on them: versions, reasons, seconds."""
    from benchmarks.engine.peers import describe, install

    began = time.perf_counter()
    ready, notes = install(peers, effort.peers) if peers else ({}, {"flower": "switched off", "pfl": "switched off"})
    for name, note in notes.items():
        print(f"{name}: {note}", file=sys.stderr, flush=True)
    return ready, {**describe(ready, notes), "peers_install_s": time.perf_counter() - began}


def printed(name: str, pieces: Iterable[Figures]) -> Iterator[Figures]:
    """Print figures as they come."""
    began = time.perf_counter()
    for figures in pieces:
        print(f"\n{name} ({time.perf_counter() - began:.0f} s)", flush=True)
        for key, value in figures.items():
            print(f"  {key:56} {value:.4g}" if isinstance(value, float) else f"  {key:56} {value}", flush=True)
        yield figures


def alone(name: str, effort: Effort, folder: Path) -> Iterator[Figures]:
    """Figures of a part that needs no Ray session."""
    from benchmarks.engine import gpu, local, predict, profile, roofline, start, waits
    from benchmarks.engine.scenario import Scenario

    def scenario(num_windows: int, epochs: int = local.EPOCHS) -> Scenario:
        return Scenario(dataset="pamap2", num_clients=1, num_windows=num_windows, folder=folder / name, epochs=epochs)

    if name == "start":
        yield start.measure(folder, effort.start_turns, all_memory=effort.all_memory)
    elif name == "waits":
        yield waits.measure(folder / name, effort.waits_turns, effort.waits)
    elif name == "roofline":
        yield roofline.measure(scenario(effort.predict_windows, epochs=1), effort.local_turns)
    elif name == "predict":
        yield predict.measure(scenario(effort.predict_windows), effort.predict_turns, effort.predict_profile_turns)
    elif name == "profile":
        yield profile.measure(scenario(effort.local_windows))
    elif name == "gpu":
        yield gpu.measure(scenario(effort.local_windows), effort.local_turns)
    else:
        for dataset in effort.local_datasets:
            local_scenario = replace(
                scenario(effort.local_windows), dataset=dataset, folder=folder / f"local-{dataset}"
            )
            yield local.measure_clients(
                local_scenario, effort.local_turns, "" if dataset == "pamap2" else f"{dataset}_"
            )


def on_ray(name: str, effort: Effort, ready: Mapping[str, Installed], folder: Path) -> Iterator[Figures]:
    """Figures of a part that runs inside the Ray session."""
    from benchmarks.engine import formats, local, noop, recording
    from benchmarks.engine.scenario import Scenario

    if name == "noop":
        yield from noop.measure(folder, effort.noop_turns, effort.noop_rounds, effort.noop_sizes)
    elif name == "recording":
        yield recording.measure(folder, effort.recording_turns, effort.recording_rounds)
    elif name == "fleet":
        windows = effort.fleet_windows
        scenario = Scenario(
            dataset="pamap2", num_clients=8, num_windows=windows, folder=folder / name, epochs=local.EPOCHS, mixed=True
        )
        yield local.measure_fleet(scenario, effort.fleet_turns, 1)
    elif name == "formats":
        yield from formats.measure(_sizes(effort, "pamap2"), folder)
    else:
        yield from all_full(effort, ready, folder)


def all_full(effort: Effort, ready: Mapping[str, Installed], folder: Path) -> Iterator[Figures]:
    """Full training of every case."""
    from benchmarks.engine import full

    datasets: tuple[Dataset, ...] = ("pamap2", "dsa")
    for dataset in datasets:
        yield from full.measure(dataset, _sizes(effort, dataset), ready, folder / dataset)


def _sizes(effort: Effort, dataset: Dataset) -> Sizes:
    from benchmarks.engine.full import Sizes

    return Sizes(
        cases=effort.full if dataset == "pamap2" else effort.full_dsa,
        num_turns=effort.full_turns,
        num_rounds=effort.full_rounds,
        peer_turns=effort.peer_turns if dataset in effort.peer_datasets else 0,
    )


def write(measured: Mapping[str, object], json_file: Path | None, markdown: Path | None) -> None:
    """Write the figures as one flat JSON object (infinite and NaN become null), and the page made from it."""
    from benchmarks.engine.page import render

    known = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in measured.items()}
    if json_file is not None:
        json_file.write_text(json.dumps(known, indent=1, allow_nan=False) + "\n")
    if markdown is not None:
        markdown.write_text(render(known))


def require_place(option: str, file: Path | None) -> None:
    """Exit before anything is measured if ``file`` could not be written afterwards."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a"):
            pass
    except OSError as error:
        sys.exit(f"{option} {file}: cannot be written ({error.strerror}); expected a file's name in a folder of yours")


def require_no_less(file: Path, parts: Collection[str]) -> None:
    """Exit if ``file`` has figures of parts that are not among the ``parts`` to be measured."""
    try:
        held = set(json.loads(file.read_text())["parts"].split(","))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if lost := sorted(held - set(parts)):
        sys.exit(f"--json {file}: holds figures of {', '.join(lost)}, which would be lost; name another file")


def read(source: Path) -> Figures:
    """The figures that an earlier ``--json`` wrote."""
    try:
        figures: Figures = json.loads(source.read_text())
        if isinstance(figures, dict) and "load_before" in figures:
            return figures
        why = "not the figures of a run"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except ValueError as error:
        why = f"not JSON ({error})"
    sys.exit(f"--from {source}: {why}; expected a file that `python -m benchmarks.engine --json FILE` wrote")


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    how = options.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="less work, fewer turns: under five minutes on two cores")
    how.add_argument("--tiny", action="store_true", help="does it run at all? the figures mean nothing")
    how.add_argument("--from", dest="source", type=Path, metavar="JSON", help="only make the page, from this file")
    options.add_argument("--json", type=Path, metavar="FILE", help="one flat object with every figure")
    options.add_argument("--markdown", type=Path, metavar="FILE", help="a page made from the figures")
    options.add_argument("--parts", metavar="A,B", help=f"some of {','.join(PARTS)}; by default all")
    options.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "relief-ray-peers", metavar="DIR")
    options.add_argument("--no-peers", action="store_true", help="leave Flower and pfl out")
    return options


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    options = parser().parse_args(arguments)
    parts = PARTS if options.parts is None else tuple(options.parts.split(","))
    if unknown := sorted(set(parts) - set(PARTS)):
        sys.exit(f"--parts {options.parts}: {unknown} unknown; known: {', '.join(PARTS)}")
    if options.source is not None and (options.markdown is None or options.json or options.parts):
        sys.exit(f"--from {options.source}: measures nothing; expected --markdown FILE beside it, no --json or --parts")
    require_place("--markdown", options.markdown)
    if options.source is not None:
        write(read(options.source), None, options.markdown)
        return
    require_place("--json", options.json)
    if options.json is not None:
        require_no_less(options.json, parts)
    os.environ["OMP_NUM_THREADS"] = "1"
    mode = "tiny" if options.tiny else "quick" if options.quick else "whole"
    with tempfile.TemporaryDirectory(prefix="rr-bench-") as folder:
        peers = None if options.no_peers else options.peers.resolve()

        def keep(so_far: Figures) -> None:
            """Write the figures so far, so that a failing part loses none of them."""
            write({**so_far, "mode": mode}, options.json, None)

        figures = {**run_parts(EFFORTS[mode], parts, peers, Path(folder), keep), "mode": mode}
    write(figures, options.json, options.markdown)


if __name__ == "__main__":
    main()
