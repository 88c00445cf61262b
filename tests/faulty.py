"""Plug-ins at fault: methods, backbones and clocks whose functions raise, exit, or return something wrong.

A method's function that is told the round works in round 1 and goes wrong in round 2, so that a test sees what became
of round 1; any other is wrong from its first call. Once the variable ``WORKS`` is set methods and clocks are sound, but
for those whose ``build`` is at fault. Data sets at fault are in ``tests/loaders.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from actors.terminal.exit_codes import exit_code
from relief_ray.plugins.blame import blamed
from relief_ray.support.errors import UserError

HEAD = """
import os
import sys
from dataclasses import replace
from functools import partial

import torch

from relief_ray.core.client import ClientProgram, send_all, task_loss
from relief_ray.core.federated import Averaging, Insight, Strategy, single_model
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import EvalPlan, EvalTarget, ServerState, WeightedSum
from relief_ray.server.aggregation import one_bucket, uniform
from relief_ray.strategies.common import StrategyConfig, allocate_everything, average


def is_wrong(round_):
    return round_ >= 2 and "WORKS" not in os.environ


def changed(state, change):
    return ServerState(models={"global": {j: change(x) for j, x in state.models["global"].items()}})


def plain(**parts):
    reduction = WeightedSum(weight=parts.pop("weight", uniform), bucket=parts.pop("bucket", one_bucket))
    return Strategy(**{
        "name": "mine", "allocate": allocate_everything, "reduction": reduction,
        "aggregate": partial(average, reduction), **parts,
    })

"""
TAIL = """

class Mine(StrategyConfig):
    def build(self):
        return {expression}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A plug-in at fault.

    Attributes:
        text: the file.
        function: the function that the message names.
        said: what it says was found, and what was expected.
        code: exit code of the command line.
        round: the round that it fails in; 0: before the first.
    """

    text: str
    function: str
    said: str
    code: int = 7
    round: int = 2


def judge(error: BaseException, fault: Fault, name: str) -> None:
    """The exit code, what is said, and the file, line and function; never a fault of ours."""
    said = str(error if isinstance(error, UserError) else blamed(error) or error)
    assert (exit_code(error), fault.said in said) == (fault.code, True), said
    if fault.code == 7:
        assert re.search(rf"{name}\.py, line \d+, in {fault.function}\b", said) and "mend it there" in said, said
    assert len(said) < 4000


def method(name: str, arguments: str, line: str, said: str, sound: str, code: int = 7) -> Fault:
    """A method whose function ``name`` runs ``line`` where it is wrong, and otherwise returns ``sound``."""
    number = {"context, task": "context.round", "context, update": "context.round", "state, context": "context.round",
              "state, reduced, tools": "tools.round"}.get(arguments, "2")  # fmt: skip
    body = (
        f"def {name}({arguments}):\n    sound = {sound}\n    if is_wrong({number}):\n        {line}\n    return sound\n"
    )
    record = next((record for record, names in RECORDS.items() if name in names), "")
    inside = f"{record.lower().removesuffix('program')}={record}({name}={name})" if record else f"{name}={name}"
    return Fault(text=HEAD + body + TAIL.format(expression=f"plain({inside})"), function=name, said=said, code=code,
                 round=0 if number == "2" and name in FIRST else 1 if number == "2" else 2)  # fmt: skip


RECORDS = {
    "ClientProgram": ("refine", "objective", "observe", "after"),
    "Insight": ("deadline_s", "warnings", "rests", "diagnose", "explain"),
    "Averaging": ("averaged", "identities"),
}
FIRST = ("init", "warnings", "deadline_s", "adapt")


def allocate(line: str, said: str) -> Fault:
    return method("allocate", "state, context", line, said, "allocate_everything(state, context)")


def aggregate(line: str, said: str, code: int = 7) -> Fault:
    sound = "average(plain().reduction, state, reduced, tools)"
    return method("aggregate", "state, reduced, tools", line, said, sound, code)


def evaluate(line: str, said: str) -> Fault:
    return method("evaluate", "state, fleet", line, said, "EvalPlan(canonical=EvalTarget(label='x'))")


def averaged(line: str, said: str) -> Fault:
    return method("averaged", "state, reduced, layout, fleet", line, said, "{}")


def after(line: str, said: str, code: int = 7) -> Fault:
    return method("after", "context, update", line, said, "update", code)


def claims(change: str, said: str) -> Fault:
    return after(f"return replace(update, receipt=replace(update.receipt, {change}))", said)


def objective(line: str, said: str) -> Fault:
    return method("objective", "step", line, said, "task_loss(step)")


def build(expression: str, said: str, function: str = "build", code: int = 7) -> Fault:
    return Fault(text=HEAD + TAIL.format(expression=expression), function=function, said=said, code=code, round=0)


UNCHECKED = "returned a value that cannot be checked"
METHODS: dict[str, Fault] = {
    "build raises": build("1 / 0", "ZeroDivisionError: division by zero"),
    "build raises a ValueError": build("int('x')", "ValueError: invalid literal for int"),
    "build returns nothing": build("None", "returned a NoneType, expected a relief_ray.core.federated.Strategy"),
    "init returns nothing": method("init", "*_", "return None", "init returned None, expected a relief_",
                                   "single_model(*_)"),
    "init forgets groups": method("init", "*_", "return ServerState(models={'global': {}})",
                                  "init: model 'global' has groups [], expected ['fusion.A.acc'", "single_model(*_)"),
    "allocate raises": allocate("raise KeyError('x' * 9)", "KeyError: 'xxxxxxxxx'"),
    "allocate exits": allocate("sys.exit(0)", "allocate ended the process (sys.exit(0)), expected that it returns"),
    "allocate returns nothing": allocate("return None", "allocate returned None, expected a tuple of relief_"),
    "epochs for days": allocate("return tuple(replace(t, epochs=10**18) for t in sound)",
                                "trains 1000000000000000000 epochs, expected at least 1 and at most 100000"),
    "a client twice": allocate("return (*sound, sound[0])", "allocate: client 0 has two assignments"),
    "an unknown client": allocate("return (replace(sound[0], client=99),)", "allocate: client 99 does not take"),
    "a client of another type": allocate("return (replace(sound[0], client='0'),)", "client '0': found a str,"),
    "an unknown group": allocate("return tuple(replace(t, up={'hed.1': WHOLE}) for t in sound)",
                                 "up: groups ['hed.1'] are unknown; there are ['fusion.A.acc'"),
    "an unknown model": allocate("return tuple(replace(t, view='x') for t in sound)",
                                 "client 0 starts from model 'x'; models are ['global']"),
    "no epoch": allocate("return tuple(replace(t, epochs=0) for t in sound)", "client 0 trains 0 epochs, expected at"),
    "a rate of NaN": allocate("return tuple(replace(t, lr_scale={'head.1': float('nan')}) for t in sound)",
                              "lr_scale: found 'head.1': nan, expected finite numbers"),
    "aggregate raises": aggregate("return sound.models['globl']", "KeyError: 'globl'"),
    "aggregate returns a list": aggregate("return list(sound.models)", "aggregate returned a list, expected a"),
    "vectors as lists": aggregate("return changed(sound, list)", "group 'fusion.A.acc': a list, expected float32 ve"),
    "a group is missing": aggregate("return ServerState(models={'global': {}})", "model 'global' has groups [],"),
    "float64": aggregate("return changed(sound, torch.Tensor.double)", "torch.float64 (8,), expected float32"),
    "another shape": aggregate("return changed(sound, lambda x: x[:1])", "torch.float32 (1,), expected float32"),
    "NaN at the server": aggregate("return changed(sound, lambda x: x * float('nan'))",
                                   "model 'global': group 'fusion.A.acc' has NaN or infinity, expected finite"),
    "more memory than there is": aggregate("return torch.empty(10**15)", "can't allocate memory"),
    "facts that are no JSON": aggregate("return replace(sound, facts={'x': {1, 2}})", "aggregate: facts are no JSON ("),
    "a weight of NaN": method("weight", "*_", "return float('nan')", "reduction.weight returned nan for client",
                              "uniform(*_)"),
    "weights of zero": method("weight", "*_", "return 0", "reduction.weight returned 0 for every client that sent "
                              "group 'fusion.A.acc', expected more for one of them", "uniform(*_)"),
    "weights whose sum is infinite": method("weight", "*_", "return 1e308", "reduction.weight returned inf in sum for "
                                            "every client that sent group 'fusion.A.acc', expected a", "uniform(*_)"),
    "weights next to zero": method("weight", "*_", "return 5e-324", "in sum for every client that sent group "
                                   "'fusion.A.acc', expected a sum", "uniform(*_)"),
    "a bucket without a name": method("bucket", "task", "return None", "reduction.bucket returned None, expected",
                                      "one_bucket(task)"),
    "evaluate names another model": evaluate(
        "return EvalPlan(canonical=EvalTarget(label='x', view='y'))", "evaluate: EvalTarget(label='x', view='y'",
    ),
    "evaluate names another group": evaluate(
        "return EvalPlan(canonical=EvalTarget(label='x', keep={'hed.1': WHOLE}))",
        "evaluate: 'x', keep: groups ['hed.1'] are unknown; there are ['fusion.A.acc'",
    ),
    "evaluate keeps nothing": evaluate("return EvalPlan(canonical=EvalTarget(label='x', keep=None))",
                                       "'x', keep: found None, expected groups and their parts"),
    "evaluate tests no clients": evaluate("return EvalPlan(canonical=None, clients=None)",
                                          f"evaluate {UNCHECKED} (TypeError: Value after * must be an iterable"),
    "evaluate names a list": evaluate("return EvalPlan(canonical=EvalTarget(label='x', view=[]))",
                                      f"evaluate {UNCHECKED} (TypeError: unhashable type: 'list'), expected what it is "
                                      "declared as, Callable[[ServerState, Fleet], EvalPlan]"),
    "evaluate without a label": evaluate("return EvalPlan(canonical=EvalTarget(label=1))",
                                         "a target is labelled 1, expected a text"),
    "evaluate weighs by text": evaluate("return EvalPlan(canonical=EvalTarget(label='x', mean_of={0: '1'}))",
                                        "'x', mean_of: found 0: '1', expected finite numbers by client"),
    "a task that starts from a list": allocate("return tuple(replace(t, view=[]) for t in sound)",
                                               f"allocate {UNCHECKED} (TypeError: unhashable type: 'list')"),
    "no tensors": aggregate("return replace(sound, tensors=None)",
                            f"aggregate {UNCHECKED} (TypeError: 'NoneType' object is not iterable), expected what it "
                            "is declared as, Callable[[ServerState, Reduced, ServerTools], ServerState]"),
    "a complex tensor": aggregate("return replace(sound, tensors={'m': torch.zeros(2, dtype=torch.complex64)})",
                                  "tensors['m'] is torch.complex64, expected a dense tensor of torch.int64, "),
    "a sparse tensor": aggregate("return replace(sound, tensors={'m': torch.eye(2).to_sparse()})",
                                 "tensors['m'] is torch.float32, torch.sparse_coo, expected a dense tensor of"),
    "a quantised tensor": aggregate("return replace(sound, tensors={'m': torch.quantize_per_tensor(torch.ones(2), 0.1,"
                                    " 0, torch.qint8)})", "tensors['m'] is torch.qint8, expected a dense tensor of"),
    "a tensor without values": aggregate("return replace(sound, tensors={'m': torch.zeros(2, device='meta')})",
                                         "tensors['m'] is torch.float32, meta, expected a dense tensor of"),
    "a nested tensor": aggregate("return replace(sound, tensors={'m': torch.nested.nested_tensor([torch.ones(1)])})",
                                 "tensors['m'] is torch.float32, nested, expected a dense tensor of"),
    "a view that negates": aggregate("return replace(sound, tensors={'m': torch.tensor([1+2j]).conj().imag})",
                                     "tensors['m'] is a view that negates another tensor, expected values alone"),
    "eight bits of a float": aggregate("return replace(sound, tensors={'m': torch.zeros(2).to(torch.float8_e5m2)})",
                                       "tensors['m'] is torch.float8_e5m2, expected a dense tensor of"),
    "no groups are averaged": averaged("return {'global': None}",
                                       f"averaged {UNCHECKED} (TypeError: 'NoneType' object is not iterable)"),
    "another model is averaged": averaged("return {'x': ['head.1']}",
                                          "averaged: models ['x'] are unknown; there are ['global']"),
    "another group is averaged": averaged("return {'global': ['hed.1']}", "averaged: groups ['hed.1'] are unknown;"),
    "an identity that is no text": method("identities", "state", "return {'global': 1}", "identities returned {'glob"
                                          "al': 1}, expected a text for each of ['global']", "{'global': 'global'}"),
    "a weight beyond a float": method("weight", "*_", "return 10**400", f"reduction.weight {UNCHECKED} (OverflowErr",
                                      "uniform(*_)"),
    "refine takes another client": method("refine", "context, task", "return replace(task, client=task.client + 1)",
                                          "client.refine: found client 1 and", "task"),
    "refine returns nothing": method("refine", "context, task", "return None", "client.refine returned None,",
                                     "task"),
    "no loss": objective("return None", "client.objective returned None, expected a Tensor"),
    "a loss per window": objective("return step.logits.sum(1)", "returned torch.float32 of shape (8,), expected"),
    "a loss of NaN": objective("return sound * float('nan')", "client.objective returned nan for finite logits,"),
    "the received model in place": objective("step.start['fusion.A.acc'].mul_(2)", "client.objective: changed the "
                                             "received model in place, group 'fusion.A.acc'; expected a loss alone"),
    "another default type": objective("torch.set_default_dtype(torch.float64)",
                                      "client.objective left torch's default type at torch.float64, expected that it"),
    "a loss without gradient": objective("return sound.detach()", "the loss does not depend on the model (it has"),
    "a parameter in place": objective("p = step.params['head.1']; sound = sound + (p * p).sum(); p.detach().add_(1)",
                                      "objective returned a loss whose gradient fails (one of the variables needed"),
    "an output in place": objective("sound = sound + (step.logits ** 2).mean(); step.logits.detach().mul_(2)",
                                    "has been modified by an inplace operation"),
    "labels in place": objective("step.labels.add_(99)", "whose gradient fails (one of the vari"),
    "a gradient that is taken already": objective("sound.backward()", "Trying to backward through the graph a second"),
    "observe returns numbers": method("observe", "step", "return {'x': 1.0}", "'x' is a float, expected", "{}"),
    "after raises": after("raise RuntimeError('y' * 10**6)", "RuntimeError: yyyy"),
    "after returns nothing": after("return None", "client.after returned None, expected a relief_"),
    "wrong shape": after("return replace(update, delta={j: d[:1] for j, d in update.delta.items()})",
                         "delta, group 'fusion.A.acc': torch.float32 (1,), expected float32 vectors of 8 values"),
    "wrong dtype": after("return replace(update, delta={j: d.half() for j, d in update.delta.items()})",
                         "torch.float16 (8,), expected float32"),
    "wrong key": after("return replace(update, delta={'x': torch.ones(1)})", "delta has groups ['x'], expected"),
    "NaN at a client": after("return replace(update, delta={j: d * float('nan') for j, d in update.delta.items()})",
                             "client.after: delta['fusion.A.acc'] has NaN or infinity, expected finite"),
    "nothing sent": after(
        "return replace(update, delta={}, receipt=replace(update.receipt, assignment="
        "replace(update.receipt.assignment, up={})))", "client 0 sends no group, expected those of its assignment",
    ),
    "one client as another": claims("assignment=replace(update.receipt.assignment, client=5)",
                                    "the update of client 0 claims client = 5, expected 0;"),
    "more windows than it has": claims("work=replace(update.receipt.work, num_windows=10**6)",
                                       "claims num_windows = 1000000,"),
    "another loss": claims("work=replace(update.receipt.work, loss=0.0)", "claims loss = 0.0, expected"),
    "a loss of two values": claims("work=replace(update.receipt.work, loss=torch.ones(2))",
                                   f"client.after {UNCHECKED} (RuntimeError: Boolean value of Tensor"),
    "bytes below 0": claims("bytes_up=-1",
                            "receipt: bytes_up = -1, expected a whole number of bytes beside the payload"),
    "half a mask": after("return replace(update, kept={'fusion.B': torch.ones(2, dtype=torch.bool)})",
                         "kept has groups ['fusion.B'], expected a mask for each group of delta, ['"),
    "a mask of numbers": after("return replace(update, kept={j: d != 0 if j != 'fusion.B' else d for j, d in "
                               "update.delta.items()})",
                               "kept, group 'fusion.B': found torch.float32 (2,), expected a bool for each value of "),
    "a mask that leaves values out": after("return replace(update, kept={j: d < 0 for j, d in update.delta.items()})",
                                           " values outside are not 0, expected 0 there, since they are not sent"),
    "a state of numbers": after("return replace(update, state={'x': 1})", "state['x'] is a int, expected a tensor"),
    # Values that are finite and far off are refused like any client's, whoever wrote the method.
    "huge": after("return replace(update, delta={j: d + 1e30 for j, d in update.delta.items()}) "
                  "if context.info.id == 3 else update", "norm rule", code=3),
}  # fmt: skip

NET_HEAD = """
import torch
from torch import nn

from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.module import PlainBackbone


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.encoders = nn.ModuleDict({
            m: nn.Sequential(nn.Conv1d(c, 2, 9, stride=8), nn.AdaptiveAvgPool1d(2), nn.Flatten())
            for m, c in shape.channels
        })
        self.fusion = nn.Sequential(nn.Linear(4 * len(shape.channels), 3), nn.ReLU())
        self.head = nn.Linear(3, classes)

"""


def net(body: str, function: str, said: str, code: int = 7) -> Fault:
    """A backbone with this body of its class."""
    text = f"{NET_HEAD}\nclass Mine(PlainBackbone):\n    def module(self, shape):\n        {body}\n"
    return Fault(text=text, function=function, said=said, code=code, round=0)


BACKBONES: dict[str, Fault] = {
    "module raises": net("return Net(shape, shape.classes)", "module", "AttributeError: 'InputShape' object has"),
    "module returns nothing": net("return None", "module", "module returned None, expected a torch.nn"),
    "too few logits": net("return Net(shape, 2)", "module", "head gives (B, 2), expected (B, 8), one logit a class"),
    "weights of NaN": net(
        "net = Net(shape, shape.num_classes)\n        nn.init.constant_(net.head.weight, float('nan'))\n"
        "        return net", "module", "group 'head.1' has NaN or infinity, expected finite initial values",
    ),
    "logits of NaN": net(
        "net = Net(shape, shape.num_classes)\n        net.head.register_forward_hook(lambda *o: o[-1] / 0)\n"
        "        return net", "module", "2 windows of noise give logits that are not finite, expected finite ones",
    ),
    "logits in double precision": net(
        "net = Net(shape, shape.num_classes)\n        net.head.register_forward_hook(lambda *o: o[-1].double())\n"
        "        return net", "module", "2 windows of noise give torch.float64 (2, 8), expected float32 (2, 8)",
    ),
    "a parameter of no dimension": net(
        "net = Net(shape, shape.num_classes)\n        net.head.scale = nn.Parameter(torch.tensor(1.0))\n"
        "        return net", "module", "parameter 'scale' of group 'head.1' has no dimension, expected one at least",
    ),
    "a model beyond memory": net("return nn.Linear(10**9, 10**9)", "module", "can't allocate memory"),
    "build returns a number": Fault(
        text=f"{NET_HEAD}\nclass Mine(BackboneConfig):\n    def build(self, shape, seed, engine=0):\n        return 1",
        function="build", said="build returned a int, expected a relief_ray.models.backbone.Backbone", round=0,
    ),
}  # fmt: skip

CLOCK_HEAD = """
import os
import sys

from relief_ray.devices.time import TimeModel
from relief_ray.core.messages import StageTimes


class Mine(TimeModel):
"""


def clock(line: str, said: str) -> Fault:
    """A clock whose ``times`` runs this line, and otherwise says one second."""
    body = f"        if 'WORKS' not in os.environ:\n            {line}\n        return StageTimes(forward_s=1.0)\n"
    text = f"{CLOCK_HEAD}    def times(self, device, load):\n{body}"
    return Fault(text=text, function="times", said=said, round=0)


CLOCKS: dict[str, Fault] = {
    "times raises": clock("load.nowhere", "AttributeError: 'Workload' object has no attribute 'nowhere'"),
    "times exits": clock("sys.exit(0)", "Mine.times ended the process (sys.exit(0)), expected that it returns"),
    "times returns nothing": clock("return None", "Mine.times returned None, expected a relief_ray.core.messages.St"),
    "times returns seconds": clock("return 1.0", "Mine.times returned a float, expected a relief_ray.core.messages.St"),
    "NaN": clock("return StageTimes(up_s=float('nan'))", "Mine.times: up_s = nan, expected a finite number of seconds"),
    "infinity": clock("return StageTimes(down_s=float('inf'))", "down_s = inf, expected a finite number of seconds"),
    "below zero": clock("return StageTimes(optimizer_s=-1.0)", "optimizer_s = -1.0, expected a finite number of seco"),
    "a text": clock("return StageTimes(backward_s='1')", "backward_s = '1', expected a finite number of seconds"),
    "beyond a float": clock("return StageTimes(forward_s=10**400)", "Mine.times returned a value that cannot be check"),
    "build returns nothing": Fault(
        text=f"{CLOCK_HEAD}    @classmethod\n    def build(cls, context):\n        return None\n\n"
        "    def times(self, device, load):\n        return StageTimes()\n",
        function="build", said="Mine.build returned None, expected a relief_ray.devices.time.TimeModel", round=0,
    ),
}  # fmt: skip
