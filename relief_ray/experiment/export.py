"""Exports a run's model for use elsewhere: PEFT adapters or plain tensors, frozen parts, and a README with code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor, cat

from relief_ray.core.groups import Params
from relief_ray.experiment.evaluation import evaluation_inputs, open_saved, served
from relief_ray.experiment.setup import Setup, build_backbone, input_shape
from relief_ray.models.backbone import Backbone
from relief_ray.models.moment.adapters import save_adapters
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.moment.weights import FILES, hub_id, is_random, weights_folder
from relief_ray.models.registry import backbone_name
from relief_ray.records.checkpoint import Checkpoint
from relief_ray.records.identity import commit, other_program, source_digest, tensors_sha256
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RunRecord
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, folder_atomic
from relief_ray.support.table import marked
from relief_ray.training.evaluation import calibrate
from relief_ray.training.inputs import prepare

# The README of an exported model: how to use it without this package, with code that runs as it is.

HEAD = """# {name}: round {round}, {strategy} on {dataset}

{lead}

`export.json` says where this comes from and what goes in: run, configuration, program, round, F1; per sensor its
channels with the mean and standard deviation that were taken off, in the units of the dataset; the classes.

```python
{code}
```

Run it in this folder. `windows` maps a sensor to (n, channels, {window}) float32 at {rate_hz} Hz; a sensor that is not
there is left out. The logits (n, {num_classes}) are in the order of `facts["classes"]`.
"""

_INPUTS = '''facts = json.load(open("export.json"))


def standardised(windows, m):
    """What the encoder of sensor m is given; an absent sensor is a window of zeros."""
    n, known = len(next(iter(windows.values()))), facts["inputs"][m]
    if m not in windows:
        return torch.zeros(n, len(known["mean"]), facts["window"])
    return (windows[m] - torch.tensor(known["mean"])[:, None]) / torch.tensor(known["std"])[:, None]


def is_left_out(windows, m):
    return m not in windows and facts["missing"] == "zero_feature"
'''

CNN = f"""import json

import torch
from safetensors.torch import load_file
from torch.nn.functional import adaptive_avg_pool1d, conv1d, linear

{_INPUTS}

theta = load_file("model.safetensors")


@torch.no_grad()
def logits(windows):
    total = theta["fusion.B.bias"]
    for m in facts["inputs"]:
        if is_left_out(windows, m):
            continue
        x = standardised(windows, m)
        for layer in (1, 2):
            kernel, bias = theta[f"encoder.{{m}}.{{layer}}.weight"], theta[f"encoder.{{m}}.{{layer}}.bias"]
            x = torch.relu(conv1d(x, kernel, bias, stride=2, padding=2))
        h = adaptive_avg_pool1d(x, facts["backbone"]["steps"]).flatten(1)
        total = total + linear(h, theta[f"fusion.A.{{m}}.weight"])
    return linear(torch.relu(total), theta["head.1.weight"], theta["head.1.bias"])"""

MOMENT = f"""import json

import torch
from momentfm import MOMENTPipeline
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn.functional import linear, pad

{_INPUTS}

def encoder(m):
    pipeline = MOMENTPipeline.from_pretrained(ENCODER, revision=REVISION, model_kwargs={{"task_name": "embedding"}})
    pipeline.init()
    return PeftModel.from_pretrained(pipeline, f"encoder.{{m}}").eval().base_model.model


def fusion_layer():
    whole = torch.nn.Module()
    w_0 = load_file("fusion_w0.safetensors")["weight"]
    whole.fusion = torch.nn.Linear(w_0.shape[1], w_0.shape[0], bias=False)
    whole.fusion.weight.data = w_0
    return PeftModel.from_pretrained(whole, "fusion").eval().base_model.model.fusion


ENCODER, REVISION = "@ENCODER@", @REVISION@
encoders, fusion, head = {{m: encoder(m) for m in facts["inputs"]}}, fusion_layer(), load_file("head.safetensors")


@torch.no_grad()
def feature(windows, m):
    x = standardised(windows, m)
    if is_left_out(windows, m):
        return torch.zeros(len(x), fusion.in_features // len(encoders))
    length = facts["backbone"]["pad_to"] or facts["window"]
    mask = pad(torch.ones(len(x), x.shape[2]), (length - x.shape[2], 0))
    return encoders[m].embed(x_enc=pad(x, (length - x.shape[2], 0)), input_mask=mask).embeddings


@torch.no_grad()
def logits(windows):
    fused = fusion(torch.cat([feature(windows, m) for m in encoders], 1))
    hidden = torch.relu(linear(fused, head["head.1.weight"], head["head.1.bias"]))
    return linear(hidden, head["head.2.weight"], head["head.2.bias"])"""

_LEADS = {
    "cnn": "`model.safetensors` holds all parameters; it needs torch and safetensors alone.",
    "moment_lora": (
        "The trained part of frozen MOMENT encoders: LoRA adapters in PEFT's format (`encoder.*`, `fusion`), the\n"
        "dense head (`head.safetensors`; what the method added lies there too) and the frozen fusion matrix W_0. It\n"
        "needs momentfm, peft and the encoder's own files, which {encoder}."
    ),
}

OWN = (
    "`model.safetensors` holds the parameters of all groups, by `group.name`, as the backbone declares them; what is\n"
    "frozen in it is not among them. How they are put together, the backbone's own source says. Where it has\n"
    "BatchNorm, `statistics.safetensors` holds the running statistics with which it was tested, by\n"
    "`statistics:stage.layer.name`."
)


def readme(name: str, facts: Mapping[str, JsonValue], place: str = "", revision: str | None = None) -> str:
    """Return the text for a backbone by its ``name``.

    ``place``, ``revision``: how its loader finds the frozen encoder.
    """
    facts = {**facts, "name": marked(str(facts["name"]))}
    if name not in _LEADS:
        return f"# {facts['name']}: round {facts['round']}, {facts['strategy']} on {facts['dataset']}\n\n{OWN}\n"
    code = (CNN if name == "cnn" else MOMENT).replace("@ENCODER@", place).replace("@REVISION@", repr(revision))
    classes = facts["classes"]
    assert isinstance(classes, list)
    fields = {key: value for key, value in facts.items() if key != "encoder"}
    where = "lie beside this file (`encoder`)" if place == "encoder" else f"are not here: `{place}`"
    lead = _LEADS[name].format(encoder=where)
    return HEAD.format(**fields, lead=lead, code=code, num_classes=len(classes))


FACTS, MODEL, W_0, README, ENCODER = "export.json", "model.safetensors", "fusion_w0.safetensors", "README.md", "encoder"
_STATISTICS = "statistics.safetensors"


def export_model(
    run_folder: Path, out: Path, round_: int | None = None, *, with_encoder: bool = False
) -> dict[str, JsonValue]:
    """Write the run's common model after ``round_`` (None: the last one saved) to ``out``, and return its facts.

    ``with_encoder``: copy the frozen encoder's files too; random weights exist nowhere else and are always copied.
    The folder appears complete or not at all.

    Raises:
        UserError: no run, no such checkpoint, no common model, other data or weights than the run's; ``out`` is not
            empty or cannot be written.
    """
    _refuse_full(out)
    run, setup, point = open_saved(run_folder, round_)
    params = common_model(setup, point, run_folder)
    facts = _provenance(run, setup, params, run_folder, point.round)
    with disk_errors(out, "write the model"):
        with folder_atomic(out) as part:
            write(setup, params, facts, part, with_encoder=with_encoder)
            _refuse_full(out)
    return facts


def _refuse_full(out: Path) -> None:
    """Refuse a place that is not empty.

    Raises:
        UserError: ``out`` is a file, or a folder that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "is not empty" if out.is_dir() else "is a file"
        raise UserError(f"{out}: {what}; name an empty folder, or one that does not exist yet, with --out DIR")


def common_model(setup: Setup, point: Checkpoint, run_folder: Path) -> Params:
    """Return the strategy's canonical model, the one that F1 is of; parts that clients keep are their mean.

    With ``evaluation.average`` it is averaged over rounds, as it was tested.

    Raises:
        UserError: the method has none.
    """
    inputs = evaluation_inputs(setup, point.state, point.clients, point.averages)
    if inputs.plan.canonical is None:
        raise UserError(
            f"{run_folder}: {setup.config.label()} has no common model, only its clients' own; export a run of another "
            "method"
        )
    (model,) = served(replace(inputs, targets=inputs.targets[:1]), setup.layout).values()
    return model


def _provenance(run: RunRecord, setup: Setup, params: Params, run_folder: Path, round_: int) -> dict[str, JsonValue]:
    """Build the content of ``export.json``: origin, inputs, classes and scores of the model."""
    metrics = next((r.metrics for r in read_rounds(run_folder).where(lambda n: n == round_)), None)
    spec, windows = setup.data.spec, setup.data.clients[0]
    inputs: dict[str, JsonValue] = {
        m: {"mean": windows.mean[a:b].tolist(), "std": windows.std[a:b].tolist()} for m, a, b in spec.columns()
    }
    return {
        "run": run.cell,
        "name": run.name,
        "strategy": run.strategy,
        "round": round_,
        "status": run.status,
        "f1": None if metrics is None else metrics.f1,
        "accuracy": None if metrics is None else metrics.accuracy,
        "config_hash": run.config_hash,
        "data_digest": run.data_digest,
        "data_origin": run.data_origin,
        "code_version": run.code_version,
        "source_digest": run.source_digest,
        "commit": commit() if run.source_digest == source_digest() else None,
        "other_program": other_program(run),
        "torch": run.machine.torch,
        "model_sha256": tensors_sha256(params),
        "dataset": spec.name,
        "rate_hz": spec.rate_hz,
        "window": spec.window,
        "classes": list(spec.classes),
        "inputs": inputs,
        "missing": setup.config.training.missing,
        "backbone": setup.config.backbone.model_dump(mode="json"),
        "encoder": dict(run.backbone),
        "warnings": list(run.warnings),
    }


def write(setup: Setup, params: Params, facts: Mapping[str, JsonValue], folder: Path, *, with_encoder: bool) -> None:
    """Write all files of an export."""
    config, place, revision = setup.config.backbone, "", None
    if isinstance(config, MomentConfig):
        save_adapters(config, setup.layout, params, folder)
        backbone = build_backbone(setup.config, input_shape(setup.data.spec), "naive")
        save_file({"weight": _frozen_fusion(backbone)}, folder / W_0)
        place, revision = _encoder(config, setup, folder, with_encoder=with_encoder)
    else:
        save_file(named(setup, params), folder / MODEL)
        if setup.job.calibration is not None:
            save_file(_statistics(setup, params), folder / _STATISTICS)
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / README).write_text(readme(backbone_name(config), facts, place, revision), encoding="utf-8")


def _statistics(setup: Setup, params: Params) -> dict[str, Tensor]:
    """BatchNorm's running statistics with which the common model was tested."""
    backbone, windows = setup.job.build(), setup.job.calibration
    assert windows is not None
    backbone.load(params)
    calibrate(backbone, prepare(windows, setup.fleet.modalities, backbone).inputs)
    return backbone.statistics.state()


def _encoder(config: MomentConfig, setup: Setup, folder: Path, *, with_encoder: bool) -> tuple[str, str | None]:
    """Return the place and the revision by which MOMENT loads the frozen encoder; copy it where needed."""
    if with_encoder or is_random(config.weights):
        source = weights_folder(config.size, config.weights, config.weights_seed, config.revision)
        (folder / ENCODER).mkdir()
        for name in FILES:
            shutil.copyfile(source / name, folder / ENCODER / name)
        return ENCODER, None
    revision = setup.job.frozen.get("weights_revision")
    return (config.weights, None) if revision is None else (hub_id(config.weights), str(revision))


def named(setup: Setup, params: Params) -> dict[str, Tensor]:
    """Return copies of all parameters by ``group.name``."""
    layout = setup.layout
    return {
        f"{group.id}.{name}": tensor.contiguous().clone()
        for group in layout
        for name, tensor in layout.unflatten(group.id, params[group.id]).items()
    }


def _frozen_fusion(backbone: Backbone) -> Tensor:
    """Return ``W_0`` (D, M D), its blocks side by side in canonical order."""
    blocks = {stage.spec.id: stage.module for stage in backbone.stages}
    return cat([blocks[f"fusion.W0.{m}"].get_parameter("weight").detach() for m in backbone.shape.modalities], 1)
