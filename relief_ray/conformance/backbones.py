"""Rules that every backbone keeps, judged by building, running and training it on noise of a data set's shape.

Two rules run whole rounds of FedAvg and RELIEF on real windows. Where a rule is broken those behind it are not judged.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.conformance.rules import Broken, Check, NotJudged, Rule, Rules, Verdict, judge
from relief_ray.conformance.runner import Bench, Outcome, require_comes_back
from relief_ray.core.client import ClientProgram
from relief_ray.core.codec import decode, encode
from relief_ray.core.groups import GroupId, all_finite
from relief_ray.core.messages import Update
from relief_ray.core.stages import Engine, Missing, descendants, modalities_below
from relief_ray.experiment.setup import input_shape
from relief_ray.kernels.library import why_missing
from relief_ray.models.backbone import Backbone, InputShape, noise_inputs, run_stages
from relief_ray.models.checks import DeclarationError, run_checked
from relief_ray.models.costs import count_costs, forward_flops
from relief_ray.models.module import PlainBackbone
from relief_ray.models.registry import logits_violation
from relief_ray.support.errors import UserError
from relief_ray.support.process import threads
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import lone_client, noise
from relief_ray.training.optimizer import UpdateRule
from relief_ray.training.trainer import Trainer

BACKBONE_RULES: Rules = {
    "configuration": Rule(
        "its fields survive JSON and pickling, and build() returns a Backbone",
        "keep plain numbers, texts and tuples in fields; return relief_ray.models.backbone.Backbone(..)",
    ),
    "groups": Rule(
        "every trained parameter is in exactly one group, and a stage owns each group",
        "declare it in GroupParameters, or freeze it (requires_grad_(False))",
    ),
    "shape": Rule(
        "any number of windows gives finite float32 logits (B, K)",
        "end the last stage with K outputs, one a class; divide by no number that may be 0",
    ),
    "function": Rule(
        "in a test every stage is a function of each window alone: no noise, no counting, no mixed windows",
        "take nn.Dropout and nn.BatchNorm1d, which training alone switches on, or statistics over time",
    ),
    "seed": Rule(
        "its first values depend on the seed alone, and no global generator moves",
        "build modules with relief_ray.models.backbone.seeded(build, seed)",
    ),
    "dependencies": Rule(
        "a stage changes with the sensors and groups that it declares, itself or through inputs, and no other",
        "name what it reads in StageSpec.inputs and whose parameters it computes with in StageSpec.groups",
    ),
    "state": Rule(
        "parameters that went through the codec into another build give the same logits",
        "keep parameters in float32, and no copies of them or of outputs in a module",
    ),
    "absent": Rule(
        "absent sensors leave training finite; under zero_feature their encoders have no gradient",
        "mark the last stage of each encoder as feature=True; add a small number to what is divided by",
    ),
    "costs": Rule(
        "the FLOPs of every stage and group are positive, and grow with the batch at most in proportion",
        "let forward() do the same work for every window",
    ),
    "engines": Rule(
        "the engine that computes once what nobody trains gives the updates of the one that does not",
        "let forward() depend on inputs and parameters alone, not on whether gradients are recorded",
    ),
    "rounds": Rule("rounds of FedAvg and RELIEF run to their end", "mend the line that is named"),
    "resumes": Rule(
        "a run that is interrupted after every round has the bits of one that is not",
        "keep no counter or cache in a module: what build() made is made anew",
    ),
}
_CLOSE = 1e-4
_NUM_WINDOWS, _BATCH_SIZE = 20, 8
_METHODS = ("fedavg", "relief")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench(Bench):
    """The backbone under test; ``shape``: of its data."""

    shape: InputShape

    def build(self, seed: int = 0) -> Backbone:
        return self.config.backbone.build(self.shape, seed)

    def inputs(self, backbone: Backbone, num: int, seed: int = 0) -> dict[str, Tensor]:
        return noise_inputs(backbone, self.shape, num, seed)


def check_backbone(config: ExperimentConfig) -> Iterator[Verdict]:
    """Judge the rules on ``config``'s backbone, for the sensors, windows and classes of its data."""
    shape = input_shape(config.data.spec())
    with threads(config.runtime.num_threads), tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        yield from judge(_CHECKS, _Bench(config=config, shape=shape, root=Path(folder)))


def _refused(bench: _Bench) -> str:
    """Why a plain module cannot be a backbone (rule `shape`) and what to do; empty if it can."""
    try:
        bench.build()
    except UserError as error:
        is_plain = isinstance(bench.config.backbone, PlainBackbone) and not isinstance(error, DeclarationError)
        return str(error) if is_plain else ""
    except Exception:
        return ""
    return ""


def _configuration(bench: _Bench) -> None:
    config = bench.config
    require_comes_back(config, "backbone")
    pickle.loads(pickle.dumps(config))
    if _refused(bench):
        return
    try:
        built: object = bench.build()
    except DeclarationError:
        return  # a violation of `groups`
    if not isinstance(built, Backbone):
        raise Broken("configuration", f"build() returned a {type(built).__name__}")


def _groups(bench: _Bench) -> None:
    if _refused(bench):
        raise NotJudged("first mend 'shape'")
    backbone = bench.build()
    declared = sum(p.numel() for parameters in backbone.parameters.values() for p in parameters)
    trained = {id(p): p for s in backbone.stages for p in s.module.parameters() if p.requires_grad}
    if declared != sum(p.numel() for p in trained.values()) or declared != backbone.layout.numel:
        raise Broken(
            "groups", f"groups hold {declared} values, modules train {sum(map(torch.numel, trained.values()))}"
        )


def _seed(bench: _Bench) -> None:
    before = torch.get_rng_state()
    first, same, other = bench.build(1), bench.build(1), bench.build(2)
    if not torch.equal(before, torch.get_rng_state()):
        raise Broken("seed", "build() draws from torch's global generator, which it leaves at another place")
    values = [b.layout.flatten(b.params()) for b in (first, same, other)]
    if not torch.equal(values[0], values[1]):
        raise Broken("seed", "two builds from one seed begin with different values")
    if torch.equal(values[0], values[2]):
        raise Broken("seed", "builds from two seeds begin with the same values")
    inputs = bench.inputs(first, 3)
    if not torch.equal(first.forward(inputs), same.forward(inputs)):
        raise Broken("seed", "two builds from one seed give different logits: something frozen is drawn anew")


def _shape(bench: _Bench) -> None:
    if text := _refused(bench):
        raise Broken("shape", text, has_remedy=True)
    backbone = bench.build()
    for num in (1, 2, 7):
        if violation := logits_violation(backbone, bench.shape, num):
            raise Broken("shape", violation)


@torch.no_grad()
def _function(bench: _Bench) -> None:
    backbone = bench.build()
    run_stages(backbone, bench.inputs(backbone, 2), compute=run_checked)


@torch.no_grad()
def _outputs(backbone: Backbone, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Output of every stage on prepared ``inputs``."""
    values = run_stages(backbone, inputs)
    return {s.spec.id: values[s.spec.id] for s in backbone.stages}


def _dependencies(bench: _Bench) -> None:
    backbone = bench.build()
    inputs, others = bench.inputs(backbone, 4), bench.inputs(backbone, 4, seed=1)
    below, before = modalities_below(backbone.specs), _outputs(backbone, inputs)
    for m in bench.shape.modalities:
        after = _outputs(backbone, {**inputs, m: others[m]})
        allowed = {s for s, sensors in below.items() if m in sensors}
        _check_change(f"the windows of {m!r}", before, after, allowed)
    for j, parameters in backbone.parameters.items():
        kept = [p.detach().clone() for p in parameters]
        for p in parameters:
            p.data.add_(0.1)
        after = _outputs(backbone, inputs)
        for p, value in zip(parameters, kept, strict=True):
            p.data.copy_(value)
        if all(torch.equal(x, after[s]) for s, x in before.items()):
            raise Broken("dependencies", f"group {j!r} changes no stage: nothing computes with its parameters")
        _check_change(f"group {j!r}", before, after, descendants(backbone.specs, {j}))


def _check_change(
    what: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor], allowed: Collection[str]
) -> None:
    if wrong := [s for s, x in before.items() if s not in allowed and not torch.equal(x, after[s])]:
        raise Broken("dependencies", f"{what} changes stages {wrong}, which do not say that they depend on it")


@torch.no_grad()
def _state(bench: _Bench) -> None:
    backbone, other = bench.build(), bench.build()
    inputs, layout = bench.inputs(backbone, 4), backbone.layout
    backbone.forward(inputs)  # whatever is remembered of the first values is remembered now
    noise = torch.Generator().manual_seed(0)
    params = {j: x + 0.1 * torch.randn(x.shape, generator=noise) for j, x in backbone.params().items()}
    _, received = decode(layout, encode(layout, layout.select(), params))
    backbone.load(received)
    other.load(received)
    if wrong := [j for j, x in other.params().items() if not torch.equal(x, params[j])]:
        raise Broken("state", f"groups {wrong} do not come back from the codec with the same bits")
    if not torch.equal(backbone.forward(inputs), other.forward(inputs)):
        raise Broken("state", "two builds with the same parameters give different logits, after one has run before")


def _train(
    bench: _Bench,
    present: Sequence[str],
    trained: Sequence[GroupId] | None = None,
    engine: Engine = "reuse",
    missing: Missing = "zero_input",
) -> Update:
    """Two epochs of SGD on noise by a client with the sensors ``present``."""
    backbone = bench.config.backbone.build(bench.shape, 0, engine)
    config = TrainerConfig(lr=0.05, batch_size=_BATCH_SIZE, missing=missing, engine=engine, rule=UpdateRule(name="sgd"))
    data = noise(backbone, present, _NUM_WINDOWS)
    context, task = lone_client(backbone, data, trained, 2, backbone.params())
    return Trainer(backbone, config).train(context, task, data, ClientProgram())


def _absent(bench: _Bench) -> None:
    sensors = bench.shape.modalities
    subsets = {(m,) for m in sensors} | {tuple(k for k in sensors if k != m) for m in sensors if len(sensors) > 1}
    for present in sorted(subsets):
        lacking = [m for m in sensors if m not in present]
        modes: tuple[Missing, ...] = ("zero_input", "zero_feature")
        for missing in modes:
            update = _train(bench, present, missing=missing)
            if wrong := [j for j, d in update.delta.items() if not all_finite(d)]:
                raise Broken("absent", f"without {lacking} ({missing}): updates of {wrong} are not finite")
        owners = {g.id for g in bench.build().layout if g.role == "encoder" and g.modality in lacking}
        if wrong := [j for j in sorted(owners) if bool(update.delta[j].any())]:
            raise Broken("absent", f"without {lacking} (zero_feature): groups {wrong} are trained all the same")


def _costs(bench: _Bench) -> None:
    backbone = bench.build()
    costs = count_costs(backbone)
    for stage, flops in costs.flops.items():
        if not (isfinite(flops.forward_flops) and flops.forward_flops > 0.0):
            raise Broken("costs", f"stage {stage!r} takes {flops.forward_flops} FLOPs a window")
    for j in backbone.layout.ids:
        if not (isfinite(costs.group_flops(j)) and costs.group_flops(j) > 0.0):
            raise Broken("costs", f"group {j!r} takes {costs.group_flops(j)} FLOPs a window")
    with torch.no_grad():
        values = run_stages(backbone, bench.inputs(backbone, 4))
    for s in backbone.stages:
        one, two, four = (forward_flops(s.module, [values[i][:n] for i in s.spec.inputs]) for n in (1, 2, 4))
        if not (one <= two <= four and two <= 2.0 * one and four <= 4.0 * one):
            counts = f"{one:.0f} for one window, {two:.0f} for two, {four:.0f} for four"
            raise Broken("costs", f"stage {s.spec.id!r} takes FLOPs out of proportion: {counts}")


def _engines(bench: _Bench) -> None:
    layout = bench.build().layout
    last = [g.id for g in layout if g.role == "head"][-1:] or [layout.ids[-1]]
    present = bench.shape.modalities[:-1] or bench.shape.modalities
    able = [engine for engine in bench.config.backbone.engines if engine != "fused" or not why_missing()]
    engines: tuple[Engine, ...] = ("reuse", *able)
    for trained in (None, last):
        expected = _train(bench, present, trained, "naive")
        for engine in engines:
            update = _train(bench, present, trained, engine)
            gap = max(float((update.delta[j] - d).abs().max()) for j, d in expected.delta.items())
            scale = max(float(d.abs().max()) for d in expected.delta.values())
            if not gap <= _CLOSE * max(scale, 1e-6):
                what = "everything is" if trained is None else f"{trained} is"
                raise Broken(
                    "engines", f"where {what} trained, {engine!r} and 'naive' differ by {gap:.2g} of {scale:.2g}"
                )


def _run(bench: _Bench, method: str, num_rounds: int | None = None) -> Outcome:
    config = parse({**bench.config.model_dump(mode="json"), "strategy": method})
    return bench.run(f"{method}-{num_rounds}", config, num_rounds=num_rounds)


def _rounds(bench: _Bench) -> None:
    for method in _METHODS:
        bench.done[method] = _run(bench, method)


def _resumes(bench: _Bench) -> None:
    for method in _METHODS:
        if _run(bench, method, num_rounds=1) != bench.done[method]:
            raise Broken("resumes", f"{method}: interrupted after every round, its records or last state differ")


# In the order of the rules; each needs those before it.
_RUNS: tuple[Callable[[_Bench], None], ...] = (
    _configuration,
    _groups,
    _shape,
    _function,
    _seed,
    _dependencies,
    _state,
    _absent,
    _costs,
    _engines,
    _rounds,
    _resumes,
)
_CHECKS = [
    Check(rules=(rule,), run=run, needs=tuple(BACKBONE_RULES)[:place])
    for place, (rule, run) in enumerate(zip(BACKBONE_RULES, _RUNS, strict=True))
]
