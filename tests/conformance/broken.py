"""Strategies that keep all rules but one: what has to be in the class, and a piece of what is reported of it."""

HEAD = """
import itertools
import os
import random
from dataclasses import replace
from functools import partial

import torch

from relief_ray.core.client import ClientProgram
from relief_ray.core.federated import Strategy
from relief_ray.core.messages import EvalPlan, EvalTarget, ServerState
from relief_ray.strategies.common import StrategyConfig, allocate_everything, average
from relief_ray.strategies.fedavg import FedAvg

SEEN = []
COUNT = itertools.count()


def plain():
    return FedAvg().build()


def change(**more):
    return replace(plain(), **more)


def scaled(state, factor):
    return ServerState(models={m: {j: x * factor for j, x in p.items()} for m, p in state.models.items()})

"""


def module(body: str, build: str) -> str:
    """A file with ``body`` and the strategy ``Mine``, whose ``build`` returns ``build``."""
    return f"{HEAD}{body}\n\nclass Mine(StrategyConfig):\n    factor: float = 0.5\n\n    def build(self):\n{build}\n"


def _build(expression: str) -> str:
    return f"        return {expression}"


def _allocate(edit: str) -> tuple[str, str]:
    return (
        f"def allocate(state, context):\n    tasks = allocate_everything(state, context)\n    return {edit}\n",
        _build("change(allocate=allocate)"),
    )


def _aggregate(lines: str) -> tuple[str, str]:
    text = "\n".join(f"    {line}" for line in lines.splitlines())
    return (
        f"def aggregate(state, reduced, tools):\n    after = plain().aggregate(state, reduced, tools)\n{text}\n",
        _build("change(aggregate=aggregate)"),
    )


def _client(lines: str) -> tuple[str, str]:
    text = "\n".join(f"    {line}" for line in lines.splitlines())
    return f"def after(context, update):\n{text}\n", _build("change(client=ClientProgram(after=after))")


def _program(part: str, arguments: str, lines: str) -> tuple[str, str]:
    text = "\n".join(f"    {line}" for line in lines.splitlines())
    return f"def {part}({arguments}):\n{text}\n", _build(f"change(client=ClientProgram({part}={part}))")


def _evaluate(plan: str) -> tuple[str, str]:
    return f"def evaluate(state, fleet):\n    return {plan}\n", _build("change(evaluate=evaluate)")


FORGETFUL = """
class Counter:
    def __init__(self):
        self.number = 0

    def __call__(self, state, reduced, tools):
        self.number += 1
        return scaled(plain().aggregate(state, reduced, tools), 1 + 0.01 * self.number)
"""

ROUNDED = """        return plain()

    @field_serializer("factor")
    def _rounded(self, value):
        return round(value)
"""

# name -> (rule, (body, build), what is found)
BROKEN: dict[str, tuple[str, tuple[str, str], str]] = {
    "is written as another": ("configuration", ("from pydantic import field_serializer\n", ROUNDED), "comes back as"),
    "a lambda": ("travels", ("", _build("change(evaluate=lambda s, f: plain().evaluate(s, f))")), "cannot be pickled"),
    "raises": ("finishes", _aggregate("return 1 / 0"), "ZeroDivisionError: division by zero (/"),
    "not finite": ("finishes", _aggregate("return scaled(after, float('nan'))"), "NaN or infinity, expected finite"),
    "an unknown group": (
        "allocation",
        _allocate("tuple(replace(t, train={**t.train, 'hed.1': t.train['head.1']}) for t in tasks)"),
        "train: groups ['hed.1'] are unknown; there are",
    ),
    "a client that rests": (
        "allocation",
        _allocate("tuple(replace(tasks[0], client=c.id) for c in context.fleet.clients)"),
        "does not take part in this round; participants are [",
    ),
    "a client twice": ("allocation", _allocate("(*tasks, tasks[0])"), "has two assignments"),
    "an unknown model": (
        "allocation",
        _allocate("tuple(replace(t, view='best') for t in tasks)"),
        "starts from model 'best'; models are ['global']",
    ),
    "up without train": (
        "allocation",
        _allocate("tuple(replace(t, train={'head.1': t.train['head.1']}) for t in tasks)"),
        "sends up what it does not train: fusion.A.acc",
    ),
    "train without down": (
        "allocation",
        _allocate("tuple(replace(t, down={}) for t in tasks)"),
        "trains what it neither receives (down) nor keeps: fusion.A.acc",
    ),
    "no epoch": ("allocation", _allocate("tuple(replace(t, epochs=0) for t in tasks)"), "trains 0 epochs"),
    "in place": (
        "purity",
        _aggregate("state.models['global']['head.1'].mul_(0.5)\nreturn after"),
        "aggregate changed the state that it was given",
    ),
    "in place, at a client": (
        "purity",
        _client("context.start['head.1'].mul_(0.5)\nreturn update"),
        "client.after changed the model or the client's state",
    ),
    "in place, in what a client keeps": (
        "purity",
        _client(
            "for x in context.state.values():\n    x.add_(1)\nreturn replace(update, state={'n': torch.ones(1)})"
        ),
        "client.after changed the model or the client's state",
    ),
    "in place, before training": (
        "purity", _program("refine", "context, task", "context.start['head.1'].mul_(0.5)\nreturn task"),
        "client.refine changed",
    ),
    "in place, in the loss": (
        "purity",
        _program("objective", "step", "step.start['head.1'].mul_(0.5)\nreturn (step.logits ** 2).mean()"),
        "client.objective changed",
    ),
    "in place, while it observes": (
        "purity", _program("observe", "step", "step.start['head.1'].mul_(0.5)\nreturn {}"), "client.observe changed",
    ),
    "smuggles statistics": (
        "bytes",
        _client(
            "stats = {'all': torch.cat([x for x in update.delta.values()])}\n"
            "return replace(update, receipt=replace(update.receipt, stats=stats))"
        ),
        "bytes up beside its payload, its statistics have at least",
    ),
    "says that it keeps": (
        "received",
        (
            "def allocate(state, context):\n"
            "    tasks = allocate_everything(state, context)\n"
            "    return tuple(replace(t, down={}, keep=t.down) for t in tasks)\n\n"
            "def after(context, update):\n    return replace(update, state={})\n",
            _build("change(allocate=allocate, client=ClientProgram(after=after))"),
        ),
        "neither received nor kept, of groups fusion.A.acc",
    ),
    "reads networks that it did not receive": (
        "received",
        (
            "def allocate(state, context):\n"
            "    def reached(t):\n"
            "        own = context.layout.select(context.layout.accessible(context.fleet[t.client].modalities))\n"
            "        return replace(t, down=own, train=own, up=own)\n\n"
            "    return tuple(map(reached, allocate_everything(state, context)))\n",
            _build("change(allocate=allocate)"),
        ),
        "neither received nor kept, of groups ",
    ),
    "a half model": (
        "state",
        _aggregate("return ServerState(models={'global': {'head.1': after.models['global']['head.1']}})"),
        "aggregate: model 'global' has groups ['head.1'], expected [",
    ),
    "float64": (
        "state",
        _aggregate("return ServerState(models={'global': {j: x.double() for j, x in after.models['global'].items()}})"),
        "torch.float64",
    ),
    "a tensor in facts": ("state", _aggregate("return replace(after, facts={'x': torch.ones(1)})"), "facts are no"),
    "a tuple in facts": ("state", _aggregate("return replace(after, facts={'x': (1, 2)})"), "come back from JSON as"),
    "a number in tensors": (
        "state", _aggregate("return replace(after, tensors={'x': 1.0})"), "is a float, expected a tensor",
    ),
    "evaluates what is not": (
        "evaluation", _evaluate("EvalPlan(canonical=EvalTarget(label='x', view='best'))"), "unknown model",
    ),
    "evaluates under one name": (
        "evaluation",
        _evaluate("EvalPlan(canonical=EvalTarget(label='x'), clients=(EvalTarget(label='x', client=0),))"),
        "two targets are labelled 'x'",
    ),
    "evaluates under the name of sensors": (
        "evaluation",
        _evaluate("EvalPlan(canonical=EvalTarget(label='x'), clients=(EvalTarget(label='x|acc', client=0),))"),
        "labelled 'x|acc', as the canonical model is with some of the sensors",
    ),
    "draws at the server": (
        "randomness", _aggregate("random.random()\nreturn after"), "aggregate drew from random",
    ),
    "draws at a client": (
        "randomness", _client("torch.rand(1)\nreturn update"), "client.after drew from torch's default generator",
    ),
    "a list of the module's": ("globals", _aggregate("SEEN.append(tools.round)\nreturn after"), ".SEEN: changed"),
    "a variable of the class": (
        "globals", _aggregate("Mine.last = tools.round\nreturn after"), ".Mine.last: changed",
    ),
    "a patched loss": (
        "globals",
        (
            "import torch.nn.functional as F\nCROSS = F.cross_entropy\n\n"
            "def ours(*a, **k):\n    return CROSS(*a, **k)\n\nF.cross_entropy = ours\n",
            _build("plain()"),
        ),
        "torch.nn.functional.cross_entropy: replaced by",
    ),
    "a patched class, later": (
        "globals",
        _aggregate(
            "before = torch.nn.Module.extra_repr\n"
            "torch.nn.Module.extra_repr = lambda self: before(self)\nreturn after"
        ),
        "torch.nn.modules.module.Module.extra_repr",
    ),
    "changed labels": (
        "purity",
        (
            "from torch.nn.functional import cross_entropy\n\n"
            "def objective(step):\n    loss = cross_entropy(step.logits, step.labels.clone())\n"
            "    step.labels.zero_()\n    return loss\n",
            _build("change(client=ClientProgram(objective=objective))"),
        ),
        "client.objective changed the model or the client's state, or the labels",
    ),
    "counts updates that are not kept": (
        "finishes",
        _aggregate("for update in reduced.updates:\n    pass\nreturn after"),
        "NotCollected: reduced.updates is not kept: the reduction of this method is a WeightedSum",
    ),
    "reads sums that are not made": (
        "finishes",
        (
            "from relief_ray.core.messages import Collect\n"
            "def aggregate(state, reduced, tools):\n    return plain().aggregate(state, reduced, tools)\n",
            _build("change(aggregate=aggregate, reduction=Collect())"),
        ),
        "NotCollected: reduced.sums is not made: the reduction of this method is Collect()",
    ),
    "throws the step away": (
        "moves", _aggregate("return state"), "after 3 rounds its values differ by 0 at most; training loss ",
    ),
    "moves by rounding alone": ("moves", _aggregate(
        "models = {m: {j: x + 1e-7 for j, x in p.items()} for m, p in state.models.items()}\n"
        "return ServerState(models=models)"), "after 3 rounds its values differ by 3.1e-07 at most",
    ),
    "an address": (
        "repeats",
        _aggregate("return scaled(after, 1 + int.from_bytes(os.urandom(2), 'little') * 1e-6)"),
        "two runs in one process: records differ from line 1",
    ),
    "state in what build made": (
        "resumes", (FORGETFUL, _build("change(aggregate=Counter())")), "interrupted after every round: records differ",
    ),
    "two or none": (
        "participation",
        _aggregate("first, second = reduced.receipts[:2]\nreturn after"),
        "ValueError: not enough values to unpack (expected 2, got 1) (/",
    ),
    "all groups of all": (
        "missing",
        _client(
            "still = [j for j, d in update.delta.items() if not bool(d.any())]\n"
            "return replace(update, delta={j: d * float('nan') if still else d for j, d in update.delta.items()})"
        ),
        "has NaN or infinity, expected finite values as it was given",
    ),
    "the process": (
        "executors", _client(
            "factor = 1 + os.getpid() % 1000 * 1e-3\n"
            "return replace(update, delta={j: d * factor for j, d in update.delta.items()})"
        ), "packed on Ray: records differ from line 1",
    ),
}  # fmt: skip
