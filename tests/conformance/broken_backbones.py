"""Backbones that keep all rules but one: what has to be in the module, and a piece of what is reported of it."""

HEAD = """
import torch
from torch import nn
from dataclasses import replace

from relief_ray.models.backbone import Backbone
from relief_ray.models.module import PlainBackbone, from_module

STASH = {}


class Encoder(nn.Module):
    def __init__(self, modality, channels, window):
        super().__init__()
        self.modality, self.linear = modality, nn.Linear(channels * window, 8)

    def forward(self, x):
        return torch.relu(self.linear(x.flatten(1)))


class Head(nn.Module):
    def __init__(self, num_classes, width=6):
        super().__init__()
        self.linear, self.steps = nn.Linear(width, num_classes), 0

    def forward(self, x):
        return self.linear(x)


class Good(PlainBackbone):
    width: int = 6

    def module(self, shape):
        net = nn.Module()
        net.encoders = nn.ModuleDict({m: self.encoder(m, c, shape.window) for m, c in shape.channels})
        net.fusion = nn.Sequential(nn.Linear(8 * len(shape.channels), self.width), nn.ReLU())
        net.head = self.head(shape.num_classes)
        return net

    def encoder(self, modality, channels, window):
        return Encoder(modality, channels, window)

    def head(self, num_classes):
        return Head(num_classes, self.width)

"""

GOOD = "class Mine(Good):\n    pass\n"


def module(body: str) -> str:
    """A file with the backbone ``Mine``."""
    return HEAD + body


def _build(lines: str) -> str:
    text = "\n".join(f"        {line}" for line in lines.splitlines())
    return f"class Mine(Good):\n    def build(self, shape, seed, engine='naive'):\n{text}\n"


def _part(part: str, arguments: str, forward: str) -> str:
    """``Mine`` with another encoder or head, whose forward pass is ``forward``."""
    text = "\n".join(f"        {line}" for line in forward.splitlines())
    base = part.capitalize()
    return (
        f"class Other({base}):\n    def forward(self, x):\n{text}\n\n\n"
        f"class Mine(Good):\n    def {part}(self, {arguments}):\n        return Other({arguments})\n"
    )


def _encoder(forward: str) -> str:
    return _part("encoder", "modality, channels, window", forward)


def _head(forward: str) -> str:
    return _part("head", "num_classes", forward)


# name -> (rule, module, what is found)
BROKEN: dict[str, tuple[str, str, str]] = {
    "builds something else": ("configuration", _build("return 'cnn'"), "build() returned a str"),
    "too many classes": (
        "shape",
        "class Mine(Good):\n    def head(self, num_classes):\n        return Head(num_classes + 1)\n",
        "head gives (B, 9), expected (B, 8), one logit a class",
    ),
    "a parameter outside": (
        "groups",
        "class Mine(Good):\n    def module(self, shape):\n        net = super().module(shape)\n"
        "        net.scale = nn.Parameter(torch.ones(1))\n        return net\n",
        "parameters ['scale'] are in none of them",
    ),
    "a group less": (
        "groups",
        _build("whole = super().build(shape, seed)\nreturn Backbone(shape, whole.stages, whole.declared[:-1])"),
        "stage 'head.1' owns unknown groups ['head.1']",
    ),
    "divides by zero": ("shape", _head("return self.linear(x) / (x * 0).sum(1, keepdim=True)"), "are not finite"),
    "dropout in tests too": (
        "function", _encoder("return nn.functional.dropout(super().forward(x), 0.5)"), "draws random numbers",
    ),
    "a batch's mean": ("function", _head("return self.linear(x - x.mean(0))"), "mixes the windows of a batch"),
    "no seed": (
        "seed", _build("return from_module(self.module(shape), shape)"), "draws from torch's global generator",
    ),
    "one seed": ("seed", _build("return super().build(shape, 0)"), "two seeds begin with the same values"),
    "another sensor's output": (
        "dependencies",
        _encoder(
            "h = super().forward(x)\nif self.modality == 'acc':\n    STASH['h'] = h.detach()[0].mean()\n"
            "return h if self.modality == 'acc' else h + STASH['h']"
        ),
        "the windows of 'acc' changes stages ['encoder.gyro.1', 'encoder.mag.1', 'fusion.A.gyro'",
    ),
    "another group's parameter": (
        "dependencies",
        _encoder(
            "h = super().forward(x)\nif self.modality == 'acc':\n    STASH['w'] = self.linear.bias\n"
            "return h * (1 + STASH['w'].sum())"
        ),
        "group 'encoder.acc.1' changes stages ['encoder.gyro.1'",
    ),
    "a cached weight": (
        "dependencies",
        _head(
            "if not self.steps:\n    self.steps, self.cache = 1, self.linear.weight.detach().clone()\n"
            "return nn.functional.linear(x, self.cache)"
        ),
        "group 'head.1' changes no stage",
    ),
    "double precision": (
        "state",
        "class Double(Head):\n    def __init__(self, num_classes):\n        super().__init__(num_classes)\n"
        "        self.double()\n\n    def forward(self, x):\n        return self.linear(x.double()).float()\n\n\n"
        "class Mine(Good):\n    def head(self, num_classes):\n        return Double(num_classes)\n",
        "groups ['head.1'] do not come back from the codec",
    ),
    "a window's own scale": (
        "absent",
        _encoder("return super().forward(x / x.flatten(1).std(1).view(-1, 1, 1))"),
        "(zero_input): updates of",
    ),
    "no features": (
        "absent",
        _build(
            "whole = super().build(shape, seed)\n"
            "stages = [replace(s, spec=replace(s.spec, feature=False)) for s in whole.stages]\n"
            "return Backbone(shape, stages, whole.declared)"
        ),
        "(zero_feature): groups ['encoder.",
    ),
    "more work for one window": (
        "costs",
        _head("if len(x) == 1:\n    x @ torch.ones(6, 5000)\nreturn self.linear(x)"),
        "stage 'head.1' takes FLOPs out of proportion",
    ),
    "another function without gradient": (
        "engines",
        _encoder("h = super().forward(x)\nreturn h if torch.is_grad_enabled() else 2 * h"),
        "where ['head.1'] is trained, 'reuse' and 'naive' differ by",
    ),
    "no large batches": (
        "rounds",
        _encoder(
            "if torch.is_grad_enabled() and len(x) > 8:\n    raise ValueError('too large')\nreturn super().forward(x)"
        ),
        "ValueError: too large (/",
    ),
    "a counter": (
        "resumes",
        _head("self.steps += torch.is_grad_enabled()\nreturn self.linear(x) * (1 + 0.1 * self.steps)"),
        "fedavg: interrupted after every round, its records or last state differ",
    ),
}  # fmt: skip
