"""Shares of a round's wall time by activity, with training and without, to explain a missed target.

Hosts, wire and driver are measured in the rounds themselves. What hosts and driver do in their time is a profile's
split: the driver's of some more rounds, a host's of the same call made in this process.
"""

from __future__ import annotations

import pstats
from collections.abc import Callable
from cProfile import Profile
from functools import partial
from typing import Any

from actors.runtime import serialization
from actors.runtime.executor import Gather, RayExecutor, add_answer
from actors.runtime.worker import ClientWorker, TrainAnswer, TrainRequest, identify
from actors.runtime.worker_data import JobBox
from benchmarks.engine.machine import Figures
from benchmarks.engine.product import Product, Stopwatch
from relief_ray.core.messages import Models, StageTimes
from relief_ray.devices.accounting import CostAccountant
from relief_ray.experiment.recording import round_record
from relief_ray.experiment.setup import Setup, context_of
from relief_ray.records.checkpoint import Saver
from relief_ray.records.identity import state_sha256
from relief_ray.records.run_folder import RunFolder
from relief_ray.server.aggregation import check_update
from relief_ray.server.reduction import Accumulator, blocks, measured
from relief_ray.training.optimizer import LocalOptimizer
from relief_ray.training.trainer import Trainer, load_model

Split = dict[str, float]
HOST_CALLS = 4


def shares(prepared: Setup, product: Product, parts_of_round: Split, num_rounds: int) -> Figures:
    """Shares of a round by activity; they sum to ``parts_of_round``, the shares of hosts, wire and server."""
    parts = {
        **{f"host_{k}": v * parts_of_round["host"] for k, v in host(prepared, product.num_hosts).items()},
        **driver(product, num_rounds, parts_of_round),
    }
    return {f"{name}_share": value for name, value in parts.items()}


def driver(product: Product, num_rounds: int, parts_of_round: Split) -> Split:
    """The driver's shares of a round: waiting beyond the hosts' seconds (``wire``), and otherwise (``server``)."""
    seen, busy_s = len(product.records), product.busy_s
    calls = Calls(partial(product.run, num_rounds))
    busy_s = (product.busy_s - busy_s) / product.num_hosts
    parts = {"wire": _wire(calls, busy_s), "server": _server(calls, product, seen)}
    return {f"{part}_{k}": v * parts_of_round[part] for part, split in parts.items() for k, v in split.items()}


def _wire(calls: Calls, busy_s: float) -> Split:
    """Shares of the driver's wait beyond the hosts' own seconds."""
    parts_s = {
        "put": calls.seconds(RayExecutor._put),
        "add": calls.seconds(add_answer, Gather.finish),
    }
    return _with_rest(parts_s, calls.seconds(Stopwatch.train) - busy_s)


def _server(calls: Calls, product: Product, seen: int) -> Split:
    """Shares of the driver's own seconds: everything but the wait for its hosts."""
    hash_s, append_s = calls.seconds(state_sha256), calls.seconds(RunFolder.append)
    parts_s = {
        "aggregation": sum(record.server_s for record in product.records[seen:]),
        "hash": hash_s,
        "record": calls.seconds(round_record) - hash_s + append_s,
        "bill": calls.seconds(CostAccountant.cost),
        "checkpoint": calls.seconds(Saver.save),
    }
    return _with_rest(parts_s, calls.total_s - calls.seconds(Stopwatch.train))


def host(prepared: Setup, num_hosts: int) -> Split:
    """Shares of a host's seconds in a call: its part of the clients, each loaded, "trained", measured and added."""
    calls, _ = _host_calls(prepared, num_hosts)
    load_s = calls.seconds(load_model)
    parts_s = {"load": load_s, "delta": calls.seconds(Trainer.train_run) - load_s, **_after(calls)}
    return _with_rest(parts_s, calls.total_s)


def training_shares(prepared: Setup, num_hosts: int, hosts: float) -> Figures:
    """``hosts``, their share of a round in which everything is trained, by what they do, client by client."""
    calls, stages = _host_calls(prepared, num_hosts)
    load_s, epochs_s = (calls.seconds(f) for f in (load_model, Trainer._epochs))
    clear_s = calls.seconds(LocalOptimizer.clear, LocalOptimizer._zero_moments)
    training = {
        "forward": sum(s.forward_s for s in stages),
        "backward": sum(s.backward_s for s in stages),
        "adam": sum(s.optimizer_s for s in stages) - clear_s,
        "clear": clear_s,
    }
    parts_s = {
        **training,
        "around": epochs_s - sum(training.values()),
        "load": load_s,
        "delta": calls.seconds(Trainer.train_run) - load_s - epochs_s,
        **_after(calls),
    }
    return {f"host_{name}_share": hosts * share for name, share in _with_rest(parts_s, calls.total_s).items()}


def _after(calls: Calls) -> Split:
    """Seconds of what a host does with its clients' updates."""
    return {
        "measure": calls.seconds(measured, check_update),
        "sum": calls.seconds(Accumulator.add),
        "pack": calls.seconds(serialization.pack, serialization.unpack),
    }


def _host_calls(prepared: Setup, num_hosts: int) -> tuple[Calls, list[StageTimes]]:
    """A host's call of the first round under a profile, some times over, and its clients' own clocks."""
    state = prepared.strategy.init(prepared.layout, prepared.fleet, prepared.streams, prepared.start)
    cut = blocks(prepared.strategy.allocate(state, context_of(prepared, 1)))
    size = -(-len(cut) // num_hosts)
    parts = tuple(cut[:size])
    request = TrainRequest(round=1, parts=parts, states={}, whole_blocks=(tuple(range(len(parts))), len(cut)))
    sent: Models = {name: dict(params) for name, params in state.models.items()}
    models = serialization.pack(sent)
    box = JobBox(job=serialization.put(prepared.job, prepared.job.modules), data="auto", home=identify().node)
    host, packed = ClientWorker(), serialization.pack(request)

    def call() -> TrainAnswer:
        answer = host.train(box, models, packed, {})
        assert isinstance(answer, TrainAnswer)
        return answer

    call()
    answers: list[TrainAnswer] = []
    calls = Calls(lambda: answers.extend(call() for _ in range(HOST_CALLS)))
    done = [receipt for answer in answers for part in serialization.unpack(answer.rest) for receipt in part.receipts]
    return calls, [receipt.work.measured for receipt in done]


def _with_rest(parts_s: Split, total_s: float) -> Split:
    """Shares, and what none of the parts accounts for as ``other``."""
    shares_of = {name: seconds / total_s for name, seconds in parts_s.items()}
    return shares_of | {"other": 1.0 - sum(shares_of.values())}


class Calls:
    """Seconds of each Python function during one action, called functions included."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Run the action under a profile."""
        profile = Profile()
        profile.runcall(action)
        stats: Any = pstats.Stats(profile)
        self._seconds: dict[tuple[str, int, str], float] = {key: row[3] for key, row in stats.stats.items()}
        self.total_s: float = stats.total_tt

    def seconds(self, *functions: Callable[..., Any]) -> float:
        """Total seconds of ``functions``, 0 for one that was not called; none may call another of them."""
        return sum(self._seconds.get(_key(f), 0.0) for f in functions)


def _key(function: Callable[..., Any]) -> tuple[str, int, str]:
    code = function.__code__
    return code.co_filename, code.co_firstlineno, code.co_name
