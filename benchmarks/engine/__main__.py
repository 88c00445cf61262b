"""``python -m benchmarks.engine [--quick] --json FILE [--markdown FILE]``: everything, on a quiet machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.engine.effort import EFFORTS, Dataset, Effort
from benchmarks.engine.machine import Figures, facts, load

ALONE = ("roofline", "local", "predict", "profile", "gpu", "start")
ON_RAY = ("noop", "recording", "fleet", "full")
PARTS = (*ALONE, *ON_RAY)


def run_parts(
    effort: Effort, parts: tuple[str, ...], peers: Path | None, folder: Path, keep: Callable[[Figures], None]
) -> Figures:
    """The chosen parts, one after the other; each prints when it is done, and ``keep`` gets all figures so far."""
    from actors.session import SessionOptions, ray_session
    from benchmarks.engine.peers import NICENESS
    from benchmarks.engine.product import use_one_thread

    use_one_thread()
    os.environ[NICENESS] = "0"
    found: Figures = facts()
    began = time.perf_counter()
    for name in ALONE:
        if name in parts:
            found |= told(name, partial(alone, name, effort, folder))
            keep(found)
    if set(ON_RAY) & set(parts):
        with ray_session(SessionOptions(num_cpus=8, object_store_mib=400)):
            for name in ON_RAY:
                if name in parts:
                    found |= told(name, partial(on_ray, name, effort, peers, folder))
                    keep(found)
    return found | {"load_after": load(), "seconds": time.perf_counter() - began, "parts": ",".join(parts)}


def told(name: str, part: Callable[[], Figures]) -> Figures:
    """Runs a part and prints its figures."""
    began = time.perf_counter()
    found = part()
    print(f"\n{name} ({time.perf_counter() - began:.0f} s)", flush=True)
    for key, value in found.items():
        print(f"  {key:56} {value:.4g}" if isinstance(value, float) else f"  {key:56} {value}", flush=True)
    return found


def alone(name: str, effort: Effort, folder: Path) -> Figures:
    """Parts that need no Ray of ours."""
    from benchmarks.engine import gpu, local, predict, profile, roofline, start
    from benchmarks.engine.scene import Scene

    if name == "start":
        return start.measure(folder, effort.start_turns, few=effort.few)

    def scene(num_windows: int, epochs: int = local.EPOCHS) -> Scene:
        return Scene(dataset="pamap2", num_clients=1, num_windows=num_windows, folder=folder / name, epochs=epochs)

    if name == "roofline":
        return roofline.measure(scene(effort.predict_windows, epochs=1), effort.local_turns)
    if name == "predict":
        return predict.measure(scene(effort.predict_windows), effort.predict_turns, effort.predict_profile_turns)
    if name == "profile":
        return profile.measure(scene(effort.local_windows))
    if name == "gpu":
        return gpu.measure(scene(effort.local_windows), effort.local_turns)
    found: Figures = {}
    for dataset in effort.local_datasets:
        whole = replace(scene(effort.local_windows), dataset=dataset, folder=folder / f"local-{dataset}")
        found |= local.measure_clients(whole, effort.local_turns, "" if dataset == "pamap2" else f"{dataset}_")
    return found


def on_ray(name: str, effort: Effort, peers: Path | None, folder: Path) -> Figures:
    """Parts inside the session."""
    from benchmarks.engine import full, local, noop, recording
    from benchmarks.engine.peers import describe, install
    from benchmarks.engine.scene import Scene

    if name == "noop":
        return noop.measure(folder, effort.noop_turns, effort.noop_rounds, effort.noop_sizes)
    if name == "recording":
        return recording.measure(folder, effort.recording_turns, effort.recording_rounds)
    if name == "fleet":
        windows = effort.fleet_windows
        scene = Scene(
            dataset="pamap2", num_clients=8, num_windows=windows, folder=folder / name, epochs=local.EPOCHS, mixed=True
        )
        return local.measure_fleet(scene, effort.fleet_turns, 1)
    ready, notes = install(peers, effort.peers) if peers else ({}, {"flower": "switched off", "pfl": "switched off"})
    found: Figures = {**describe(ready, notes)}
    datasets: tuple[Dataset, ...] = ("pamap2", "dsa")
    for dataset in datasets:
        sizes = full.Sizes(
            cases=effort.full if dataset == "pamap2" else effort.full_dsa,
            num_turns=effort.full_turns,
            num_rounds=effort.full_rounds,
            peer_turns=effort.peer_turns if dataset in effort.peer_datasets else 0,
        )
        found |= full.measure(dataset, sizes, ready, folder / dataset)
    return found


def write(found: Mapping[str, object], json_file: Path | None, markdown: Path | None) -> None:
    """The flat JSON object, and the page made from it."""
    from benchmarks.engine.page import render

    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1) + "\n")
    if markdown is not None:
        markdown.write_text(render(found))


def require_place(option: str, file: Path | None) -> None:
    """Leaves, before anything is measured, where ``file`` could not be written afterwards."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a"):
            pass
    except OSError as error:
        sys.exit(f"{option} {file}: cannot be written ({error.strerror}); expected a file's name in a folder of yours")


def read(source: Path) -> Figures:
    """The figures that an earlier ``--json`` wrote."""
    try:
        found: Figures = json.loads(source.read_text())
        if isinstance(found, dict) and "load_before" in found:
            return found
        why = "not the figures of a run"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except ValueError as error:
        why = f"not JSON ({error})"
    sys.exit(f"--from {source}: {why}; expected a file that `python -m benchmarks.engine --json FILE` wrote")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less work, fewer turns: under five minutes on two cores")
    parser.add_argument("--tiny", action="store_true", help="does it run at all? the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one flat object with every figure")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="a page made from the figures")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="only make the page, from this file")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="A,B", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "relief-ray-peers", metavar="DIR")
    parser.add_argument("--no-peers", action="store_true", help="leave Flower and pfl out")
    options = parser.parse_args(arguments)
    parts = tuple(options.parts.split(","))
    if unknown := sorted(set(parts) - set(PARTS)):
        sys.exit(f"--parts {options.parts}: {unknown} unknown; known: {', '.join(PARTS)}")
    for option, file in (("--json", options.json), ("--markdown", options.markdown)):
        require_place(option, file)
    if options.source is not None:
        found = read(options.source)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        mode = "tiny" if options.tiny else "quick" if options.quick else "whole"
        with tempfile.TemporaryDirectory(prefix="rr-bench-") as folder:
            peers = None if options.no_peers else options.peers.resolve()

            def keep(so_far: Figures) -> None:
                """What a failing part leaves behind are the figures of those before it."""
                write({**so_far, "mode": mode}, options.json, None)

            found = {**run_parts(EFFORTS[mode], parts, peers, Path(folder), keep), "mode": mode}
    write(found, options.json, options.markdown)


if __name__ == "__main__":
    main()
