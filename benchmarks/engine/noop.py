"""Part 3: rounds in which nothing is trained, memory and bytes: what orchestration costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.engine.machine import Figures
from benchmarks.engine.orchestration import shares
from benchmarks.engine.pairs import Segment, Times, slope, take_turns, timed
from benchmarks.engine.plain_ray import Arithmetic, PlainRay
from benchmarks.engine.product import Product
from benchmarks.engine.scenario import Scenario, setup, start_of, without_training, write

KIB = 2**10
KINDS = ("driver", "coordinator", "hosts", "ray")


def measure(folder: Path, num_turns: int, num_rounds: int, sizes: Sequence[int]) -> Iterator[Figures]:
    """Seconds of a no-op round, size by size, and their growth with the number of clients; inside a Ray session."""
    yield {"noop_turns": num_turns, "noop_rounds": num_rounds}
    seconds: dict[str, list[float]] = {"ours": [], "plain_ray": [], "exact_ray": [], "train": []}
    for number in sizes:
        figures = _size(write(scenario_of(folder / f"noop-{number}", number), peers=False), num_turns, num_rounds)
        yield {f"noop_n{number}_{key}": value for key, value in figures.items()}
        for name, values in seconds.items():
            values.append(float(figures[f"{name}_s"] or 0.0))
    if len(sizes) > 1:
        yield {f"noop_{name}_slope_s_per_client": slope(sizes, values) for name, values in seconds.items()}


def scenario_of(folder: Path, num_clients: int) -> Scenario:
    """PAMAP2's shapes, one batch a client: nothing is trained anyway."""
    return Scenario(dataset="pamap2", num_clients=num_clients, num_windows=32, folder=folder)


def _size(scenario: Scenario, num_turns: int, num_rounds: int) -> Figures:
    prepared = without_training(setup(scenario))
    start, number = start_of(prepared), scenario.num_clients
    least = partial(Arithmetic(len(start)).share, start, -(-number // 2))
    with ExitStack() as stack:
        plain = stack.enter_context(closing(PlainRay(start.numpy(), number)))
        exact = stack.enter_context(closing(PlainRay(start.numpy(), number, exact=True)))
        product = stack.enter_context(closing(Product(prepared, scenario.folder / "run")))
        product.run(3)
        for loop in [plain, exact] * 3:
            loop.step()
        product.records.clear()
        product.train_s.clear()
        busy_before_s = product.busy_s
        harnesses: dict[str, Segment] = {
            "ours": product.segment,
            "plain_ray": timed(plain.step),
            "exact_ray": timed(exact.step),
            "arithmetic": timed(least),
        }
        times = take_turns(harnesses, num_turns, num_rounds)
        host_s = (product.busy_s - busy_before_s) / len(product.train_s) / product.num_hosts
        figures = _seconds(times, median(product.train_s), host_s)
        parts_of_round = {
            name: float(figures[f"{name}_s"] or 0.0) / times.median_s("ours") for name in ("host", "wire", "server")
        }
        record = product.records[-1]
        figures["moved_bytes"] = record.moved_bytes
        figures["unsummed_bytes"] = 4 * prepared.layout.numel + sum(c.bytes_up for c in record.clients)
        return {**figures, **shares(prepared, product, parts_of_round, num_rounds)}


def _seconds(times: Times, train_s: float, host_s: float) -> Figures:
    ours_s = times.median_s("ours")
    figures: Figures = {f"{name}_s": times.median_s(name) for name in times.turns}
    figures |= {f"{name}_spread": times.spread(name) for name in times.turns}
    figures |= {"train_s": train_s, "host_s": host_s, "wire_s": train_s - host_s, "server_s": ours_s - train_s}
    return figures | {f"vs_{name}": times.ratio("ours", name) for name in ("plain_ray", "exact_ray")}


def pss_by_kind(root: int) -> dict[str, int] | None:
    """Proportional set size of a process and its descendants, shared memory included, by kind of process.

    Kinds: the ``driver``, the actors, and ``ray`` itself. None where the system does not have it (Linux only).
    """
    nbytes_by_kind = dict.fromkeys(KINDS, 0)
    for pid in family(root):
        nbytes = _pss(pid)
        if nbytes is None and pid == root:
            return None
        nbytes_by_kind["driver" if pid == root else kind_of(_command(pid))] += nbytes or 0
    return nbytes_by_kind


def kind_of(command: str) -> str:
    """The kind of a process below the driver, by its command line; Ray names its workers after their actors."""
    if "ClientWorker" in command:
        return "hosts"
    return "coordinator" if "Coordinator" in command else "ray"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def family(root: int) -> list[int]:
    """``root`` and its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    pids = [root]
    for pid in pids:
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _pss(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:"))
