"""The study on the real ``dsa`` data: every method, held-out subjects (4 folds) and within subjects, two seeds.

``python -m benchmarks.study run OUT`` runs what is missing (kill it at any time, run it again), seed and fold major, so
that any interruption leaves a paired comparison. ``collect OUT FILE.jsonl.gz`` writes the small result file that is
committed; ``report FILE PAGE.md`` turns it into the page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

METHODS = (
    "fedavg", "relief", "v1", "v2", "v3", "v2_mandatory", "fedprox", "v3_mandatory", "mandatory_only",
    "full_only", "drop_slow", "local", "central",
)  # fmt: skip
SPLITS = (
    ("held_out_subject", 0),
    ("within_subject", 0),
    ("held_out_subject", 1),
    ("held_out_subject", 2),
    ("held_out_subject", 3),
)
SEEDS = (0, 1)


def cells(rounds: int, stride_s: float, epochs: int) -> Iterator[tuple[str, dict[str, object]]]:
    """(folder name, configuration) of every cell, in the order of computation."""
    for seed in SEEDS:
        for split, fold in SPLITS:
            for method in METHODS:
                yield (
                    f"{split}-f{fold}-s{seed}/{method}",
                    {
                        "name": "study",
                        "strategy": method,
                        "data": {"name": "dsa", "split": split, "fold": fold, "stride_s": stride_s},
                        "training": {"epochs": epochs},
                        "evaluation": {"every": 5},
                        "record": {"checkpoint_every": 5, "pairwise_every": 5},
                        "rounds": rounds,
                        "seed": seed,
                        "runtime": {"mode": "inline", "cache_mib": 1536},
                        "tracking": {"enabled": False},
                    },
                )


def run_cell(out: str, name: str, values: dict[str, object]) -> tuple[str, float, float | None]:
    """Runs or resumes one cell on one thread; returns its seconds and last F1."""
    from relief_ray.config import parse
    from relief_ray.process import use_threads
    from relief_ray.records.reading import read_run
    from relief_ray.simulation import Experiment, create, reopen
    from relief_ray.training.serial import SerialExecutor

    use_threads(1)
    began = time.perf_counter()
    path = Path(out) / name
    if (path / "run.json").exists() and read_run(path).status == "finished":
        return name, 0.0, None
    setup, folder = reopen(path) if (path / "run.json").exists() else create(parse(values, name), path)
    with folder:
        Experiment(setup=setup, folder=folder, executor=SerialExecutor(setup.job)).run()
        metrics = folder.rounds()[-1].metrics
    f1 = None if metrics is None else metrics.headline
    return name, time.perf_counter() - began, f1


def run(options: argparse.Namespace) -> None:
    """All cells, two at a time."""
    plan = list(cells(options.rounds, options.stride_s, options.epochs))
    setting = f"{options.rounds} rounds, E={options.epochs}, stride {options.stride_s} s, seeds {SEEDS}"
    print(f"{len(plan)} cells: {setting}", flush=True)
    began = time.perf_counter()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(run_cell, options.source, name, values) for name, values in plan]
        for done, job in enumerate(as_completed(jobs), start=1):
            name, seconds, f1 = job.result()
            shown = "" if f1 is None else f" F1 {100 * f1:.1f} %"
            elapsed = time.perf_counter() - began
            print(f"[{done}/{len(plan)}] {name} {seconds:.0f} s{shown} (elapsed {elapsed:.0f} s)", flush=True)


def collect(out: Path, file: Path) -> None:
    """All records as one gzipped JSON line per cell, without what no table or figure reads."""
    lines = []
    for path in sorted(out.glob("*/*/run.json")):
        rounds = [slim(json.loads(line)) for line in (path.parent / "rounds.jsonl").read_text().splitlines()]
        cell = {"cell": str(path.parent.relative_to(out)), "run": json.loads(path.read_text()), "rounds": rounds}
        lines.append(json.dumps(cell, separators=(",", ":")))
    file.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    print(f"{len(lines)} cells, {file.stat().st_size / 2**20:.1f} MiB")


def slim(record: dict[str, Any]) -> dict[str, Any]:
    """A round with details per client where it was evaluated only; measured seconds and cosines are rounded."""
    looked_at = record["metrics"] is not None
    for name, cost in record["costs"].items():
        if name != "split_naive" or not looked_at:
            cost["clients"] = []
    for client in record["clients"]:
        client["measured_stages"] = {k: round(v, 4) for k, v in client["measured_stages"].items()}
        client["sq_norm"] = {k: float(f"{v:.5g}") for k, v in client["sq_norm"].items()} if looked_at else {}
    for group, rows in record["pairwise"].items():
        record["pairwise"][group] = [(a, b, round(cosine, 4)) for a, b, cosine in rows]
    return record


def report(file: Path, page: Path) -> None:
    """The results page, a function of the committed file alone."""
    from relief_ray.report import study_markdown

    page.write_text(study_markdown([file]))
    print(f"wrote {page}")


def main() -> None:
    """Parses the command line."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run", "collect", "report"])
    parser.add_argument("source", help="run, collect: the folder of runs; report: the collected file")
    parser.add_argument("target", nargs="?", help="collect, report: the file to write")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stride-s", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.command == "run":
        run(options)
    elif options.target is None:
        sys.exit(f"{options.command} needs a file to write")
    else:
        {"collect": collect, "report": report}[options.command](Path(options.source), Path(options.target))


if __name__ == "__main__":
    main()
