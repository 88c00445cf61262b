"""Sixty methods that meddle with their process or depend on it: what each does, where, and what is to be said of it.

``LEAKS`` change something global and repeat themselves all the same, each at four places of a method; ``DEPENDS`` are
methods whose result depends on process, time or order of clients.
"""

from __future__ import annotations

HEAD = """
import gc, hashlib, os, random, signal, sys, threading, time, uuid
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

import relief_ray as rr

cross_entropy, average, calls = F.cross_entropy, rr.average, []


def meddle():
    {leak}


{imported}


def objective(step):
    calls.append(0)
    loss = cross_entropy(step.logits, step.labels)
    {objective}
    return loss


def allocate(state, context):
    {allocate}
    return rr.allocate_everything(state, context)


def refine(context, task):
    {refine}
    return task


def aggregate(reduction, state, reduced, tools):
    {aggregate}
    return average(reduction, state, reduced, tools)


class Mine(rr.StrategyConfig):
    def build(self):
        reduction = self.reduction()
        return rr.Strategy(
            name="mine",
            allocate=allocate,
            client=rr.ClientProgram(objective=objective, refine=refine),
            reduction=reduction,
            aggregate=partial(aggregate, reduction),
        )
"""
PLACES = ("imported", "objective", "allocate", "aggregate")
LEAKS = {
    "a patched loss": "F.cross_entropy = lambda *a, **k: 3.0 * cross_entropy(*a, **k)",
    "a patched manual_seed": "torch.manual_seed = torch.random.manual_seed = lambda seed: torch.default_generator",
    "a patched Tensor.add_": "torch.Tensor.sub_ = torch.Tensor.add_",
    "a patched average": "sys.modules['relief_ray.strategies.fedavg'].aggregate = lambda *a: a[1]",
    "a patched optimizer": "sys.modules['relief_ray.server.aggregation'].mean_step = None",
    "the environment": "os.environ.update(OMP_NUM_THREADS='7', RELIEF_DATA='/nowhere', PYTHONPATH='/nowhere')",
    # A worker of Ray runs it in a thread, where Python refuses it.
    "signal handlers": "threading.current_thread() is threading.main_thread() and "
    "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGUSR1, signal.SIGCHLD)]",
    "precision": "torch.set_flush_denormal(True); torch.set_float32_matmul_precision('medium')",
    "numpy's errors": "np.seterr(all='raise')",
    "global seeds": "np.random.seed(0); random.seed(0); torch.default_generator.manual_seed(1)",
    "the garbage collector": "gc.disable(); sys.setrecursionlimit(5000)",
}
DEPENDS = {
    "a counter": ("objective", "loss = loss * (1.0 + 0.01 * len(calls))"),
    # Odd or even, a host's count can be the one that it has in the fresh process, by chance.
    "a counter of clients": ("refine", "calls.append(0); task = rr_replace(task, epochs=1 + len(calls) % 7)"),
    "the first client": ("objective", "loss = loss * globals().setdefault('first', 1.0 + float(loss))"),
    "an unseeded generator": ("objective", "loss = loss * np.random.default_rng().random()"),
    "numpy's global generator": ("objective", "loss = loss * np.random.rand()"),
    "Python's global generator": ("objective", "loss = loss * random.random()"),
    "torch's global generator": ("objective", "loss = loss * torch.rand(())"),
    "random identifiers": ("objective", "loss = loss * (uuid.uuid4().int % 1009)"),
    "the time": ("objective", "loss = loss * (1.0 + time.time() % 1.0)"),
    "a stop watch": ("objective", "loss = loss * (1.0 + time.perf_counter() % 1.0)"),
    "the process": ("objective", "loss = loss * (1.0 + 0.001 * os.getpid())"),
    "an address": ("objective", "loss = loss * (1.0 + id(cross_entropy) % 1009)"),
    "a hash": ("objective", "loss = loss * (1.0 + hash('a') % 1009)"),
    "changed weights": ("refine", "[theta.mul_(0.9) for theta in context.start.values()]"),
    "a state of the server": ("aggregate", "reduced = globals().setdefault('seen', reduced)"),
    "a file": ("objective", "open('n', 'a').write('x'); loss = loss * os.path.getsize('n')"),
}


def text_of(leak: str = "pass", **places: str) -> str:
    """A method's file; ``places``: the statement at each."""
    lines = dict.fromkeys((*PLACES, "refine"), "pass") | places
    return HEAD.format(leak=leak, **lines).replace("rr_replace", "__import__('dataclasses').replace")


FREE = {f"{what}, {place}": text_of(leak, **{place: "meddle()"}) for what, leak in LEAKS.items() for place in PLACES}
BOUND = {f"depends on {what}": text_of(**{place: line}) for what, (place, line) in DEPENDS.items()}
