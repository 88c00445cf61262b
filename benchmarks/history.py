"""Costs of a long run's past: reading its ledger, going on with it, and the memory of its process.

    python -m benchmarks.history                              # 600 rounds of 100 clients: seconds and MiB, JSON
    python -m benchmarks.history --clients 8 --rounds 5000    # what `compare` of a long run takes
    python -m benchmarks.history --grow                       # the driver's memory over real rounds on Ray

The ledger is written by the run's own writer: three real rounds of RELIEF, one batch a client, the last one repeated.
Each figure comes from a process of its own; memory is its peak above a process that only imports and prepares the run.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

from actors.commands.results import compare_command
from benchmarks.engine.machine import Figures, facts
from benchmarks.engine.scenario import Scenario, setup, write
from relief_ray.config.experiment import EvaluationConfig
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.recording import run_record
from relief_ray.experiment.setup import Setup
from relief_ray.records import checkpoint
from relief_ray.records.cells import look
from relief_ray.records.run_folder import RunFolder, read_rounds
from relief_ray.records.schema import RoundRecord
from relief_ray.training.executor import SerialExecutor

_REAL_ROUNDS = 3
_KIB_PER_MIB = 1024


def scenario_of(folder: Path, num_clients: int) -> Scenario:
    """PAMAP2's shapes and three types of devices, one batch a client."""
    return Scenario(dataset="pamap2", num_clients=num_clients, num_windows=32, folder=folder, mixed=True)


def prepared(scenario: Scenario, num_rounds: int) -> Setup:
    """A run that is tested every round; it has one round more than its ledger will have, so that it can go on."""
    run = setup(scenario, "relief", rounds=num_rounds + 1)
    return replace(run, config=run.config.model_copy(update={"evaluation": EvaluationConfig(every=1)}))


def experiment(run: Setup, folder: RunFolder) -> Experiment:
    """The run in its folder, ready for its next round."""
    return Experiment(setup=run, folder=folder, executor=SerialExecutor(run.job))


def write_past(run: Setup, path: Path, num_rounds: int) -> int:
    """Write a run of so many rounds and its checkpoint; return the ledger's bytes."""
    with RunFolder.create(path, run_record(run)) as folder:
        whole, done = experiment(run, folder), list[RoundRecord]()
        whole.run(done.append, lambda: len(done) == _REAL_ROUNDS)
        for number in range(done[-1].round + 1, num_rounds + 1):
            folder.append(done[-1].model_copy(update={"round": number}))
        whole.next_round = num_rounds + 1
        checkpoint.save(path, whole.checkpoint(), whole.binding)
        folder.update(status="interrupted")
    shutil.copytree(path, path.with_name("finished"))
    with RunFolder.resume(path.with_name("finished")) as folder:
        folder.update(status="done", config={**folder.run.config, "rounds": num_rounds})
    return (path / "rounds.jsonl").stat().st_size


def start(run: Setup, path: Path) -> None:
    """A new run, up to its first round."""
    with RunFolder.create(path.with_name("fresh"), run_record(run)) as folder:
        experiment(run, folder)


def resume(run: Setup, path: Path) -> None:
    """Steps of ``relief-ray resume`` up to the next round: the driver looks twice, then opens it."""
    assert look(path).status == "interrupted" and len(read_rounds(path))
    RunFolder.resume(path).close()
    with RunFolder.resume(path) as folder:
        assert experiment(run, folder).next_round == folder.rounds().numbers[-1] + 1


def read(run: Setup, path: Path) -> None:
    """Every round once, one after the other."""
    assert sum(len(record.clients) for record in read_rounds(path))


def last(run: Setup, path: Path) -> None:
    """The last round."""
    assert read_rounds(path)[-1].clients


def compare(run: Setup, path: Path) -> None:
    """`relief-ray compare` of the run, finished."""
    with redirect_stdout(io.StringIO()):
        list(compare_command([path.with_name("finished")], None, bibtex=False, wide=False, legend=False, setting=None))


PARTS: dict[str, Callable[[Setup, Path], None]] = {
    "start": start,
    "resume": resume,
    "read": read,
    "last": last,
    "compare": compare,
}


def measure(folder: Path, num_clients: int, num_rounds: int) -> Figures:
    """Seconds of each part and its peak above the prepared run, MiB."""
    scenario = write(scenario_of(folder, num_clients), peers=False)
    size = write_past(prepared(scenario, num_rounds), folder / "run", num_rounds)
    figures: Figures = {"clients": num_clients, "rounds": num_rounds, "ledger_mib": size / 2**20}
    figures["bytes_per_client_and_round"] = size / num_clients / num_rounds
    for part in PARTS:
        command = [sys.executable, "-m", "benchmarks.history", "--part", part, "--folder", str(folder)]
        numbers = ["--clients", str(num_clients), "--rounds", str(num_rounds)]
        done = subprocess.run([*command, *numbers], check=True, capture_output=True, text=True)
        figures |= {f"{part}_{name}": value for name, value in json.loads(done.stdout).items()}
    return figures


def one(part: str, folder: Path, num_clients: int, num_rounds: int) -> Figures:
    """One part in this process."""
    run = prepared(scenario_of(folder, num_clients), num_rounds)
    # From here on the peak counts anew: imports have had one of their own.
    Path("/proc/self/clear_refs").write_text("5")
    before, began, began_cpu = peak_mib(), perf_counter(), process_time()
    PARTS[part](run, folder / "run")
    spent_s, spent_cpu_s = perf_counter() - began, process_time() - began_cpu
    return {"s": spent_s, "cpu_s": spent_cpu_s, "added_mib": peak_mib() - before}


def peak_mib() -> float:
    """Most resident memory of this process since its peak was forgotten, MiB."""
    return _mib(Path("/proc/self/status").read_text(), "VmHWM")


def _mib(text: str, name: str) -> float:
    """A figure of a file of ``/proc``, in MiB."""
    return int(text.partition(f"\n{name}:")[2].split()[0]) / _KIB_PER_MIB


def grow(folder: Path, num_clients: int, num_rounds: int) -> Figures:
    """This process's memory after a tenth of the rounds and at the end, MiB, on Ray with two hosts."""
    from actors.runtime.session import SessionOptions, ray_session
    from actors.runtime.single_run import Hooks, run_experiment

    run = prepared(write(scenario_of(folder, num_clients), peers=False), num_rounds)
    RunFolder.create(folder / "run", run_record(run)).close()
    seen: dict[int, float] = {}

    def look() -> bool:
        """Measure at the rounds that are a tenth of them apart, or soon after; the run goes on."""
        last, tenth = max(read_rounds(folder / "run").numbers, default=0), max(1, num_rounds // 10)
        if last // tenth > max(seen, default=0) // tenth:
            seen[last] = _mib(Path("/proc/self/smaps_rollup").read_text(), "Pss")
        return False

    with ray_session(SessionOptions(num_cpus=3)):
        run_experiment(run, folder / "run", Hooks(on_note=print, should_stop=look))
    (first, before), (end, after) = min(seen.items()), max(seen.items())
    shown: Figures = {f"driver_mib_{round_}": value for round_, value in seen.items()}
    return {"clients": num_clients, "rounds": num_rounds, **shown, f"growth_mib_{first}_to_{end}": after - before}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--grow", action="store_true", help="the driver's memory over rounds on Ray")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    numbers = (options.clients, options.rounds)
    if options.part:
        print(json.dumps(one(options.part, options.folder, *numbers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = (grow if options.grow else measure)(Path(folder), *numbers)
    print(json.dumps({**facts(), **figures}, indent=1))


if __name__ == "__main__":
    main()
