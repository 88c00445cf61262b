"""A run's model for use elsewhere: PEFT adapters or plain tensors, what is frozen beside them, where it comes from."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import save_file
from torch import Tensor, cat

from relief_ray.config import parse
from relief_ray.errors import UserError
from relief_ray.experiment.evaluation import tested
from relief_ray.experiment.export_readme import readme
from relief_ray.experiment.lifecycle import as_begun
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import Setup, build_backbone, input_shape
from relief_ray.files import disk_errors
from relief_ray.groups import Params
from relief_ray.models.backbone import Backbone
from relief_ray.models.moment.adapters import save_adapters
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.moment.weights import FILES, hub_id, is_random, mark_random, weights_folder
from relief_ray.models.registry import backbone_name
from relief_ray.records.checkpoint import Checkpoint, generations, load, round_of
from relief_ray.records.identity import commit, other_program, params_sha256, source_digest
from relief_ray.records.run_folder import RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import RunRecord
from relief_ray.server.aggregation import mean_personal

FACTS, MODEL, W_0, README, ENCODER = "export.json", "model.safetensors", "fusion_w0.safetensors", "README.md", "encoder"


def export_model(
    run_folder: Path, out: Path, round_: int | None = None, *, with_encoder: bool = False
) -> dict[str, JsonValue]:
    """Writes the run's common model after ``round_`` (None: the last one saved) to ``out``, and gives its facts.

    ``with_encoder``: a copy of the frozen encoder's files too; random weights lie nowhere else and always come along.
    The folder appears whole or not at all.

    Raises:
        UserError: no run, no such checkpoint, no common model, other data or weights than the run's; ``out`` is not
            empty or cannot be written.
    """
    run = read_run(run_folder)
    refuse_full(out)
    saved = saved_round(run_folder, run, round_)
    setup = as_begun(run, run_folder, parse(run.config, str(run_folder / RUN_FILE)))
    point = load(run_folder, binding_of(setup), saved)
    assert point is not None
    params = common_model(setup, point, run_folder)
    facts = provenance(run, setup, params, run_folder, point.round)
    with disk_errors(out, "write the model"):
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        try:
            write(setup, params, facts, beside, with_encoder=with_encoder)
            beside.chmod(0o755)
            if out.exists():
                out.rmdir()
            beside.rename(out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return facts


def refuse_full(out: Path) -> None:
    """An export does not mix with what is there.

    Raises:
        UserError: ``out`` is a file, or a folder that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "is not empty" if out.is_dir() else "is a file"
        raise UserError(f"{out}: {what}; name an empty folder, or one that does not exist yet, with --out DIR")


def saved_round(run_folder: Path, run: RunRecord, asked: int | None) -> int:
    """The round of the checkpoint to take: the newest, or the one that was asked for.

    Raises:
        UserError: there is none.
    """
    kept = [round_of(path) for path in generations(run_folder)]
    if not kept:
        raise UserError(
            f"{run_folder}: the run is {run.status} and has no checkpoint yet, so there is no model to export; go on "
            f"with: relief-ray resume {run_folder}"
        )
    if asked is not None and asked not in kept:
        raise UserError(
            f"{run_folder}: no checkpoint of round {asked}; a run keeps its newest two, here of "
            f"{' and '.join(f'round {r}' for r in sorted(kept))}; name one of them with --round"
        )
    return kept[0] if asked is None else asked


def common_model(setup: Setup, point: Checkpoint, run_folder: Path) -> Params:
    """The strategy's canonical model, the one that F1 is of; what clients keep for themselves is their mean.

    Raises:
        UserError: the method has none.
    """
    what = tested(setup, point.state, point.clients)
    if what.plan.canonical is None:
        raise UserError(
            f"{run_folder}: {setup.config.label()} has no common model, only its clients' own; export a run of another "
            "method"
        )
    target = what.targets[0]
    own = {c: state for c, state in what.states.items() if c == target.client}
    return mean_personal(what.models[target.view], own, target.keep, setup.layout)


def provenance(run: RunRecord, setup: Setup, params: Params, run_folder: Path, round_: int) -> dict[str, JsonValue]:
    """What ``export.json`` says."""
    metrics = next((r.metrics for r in read_rounds(run_folder) if r.round == round_), None)
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
        "model_sha256": params_sha256(params),
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
    """All files of an export."""
    config, place, revision = setup.config.backbone, "", None
    if isinstance(config, MomentConfig):
        save_adapters(config, setup.layout, params, folder)
        backbone = build_backbone(setup.config, input_shape(setup.data), "naive")
        save_file({"weight": frozen_fusion(backbone)}, folder / W_0)
        place, revision = _encoder(config, setup, folder, with_encoder=with_encoder)
    else:
        save_file(named(setup, params), folder / MODEL)
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / README).write_text(readme(backbone_name(config), facts, place, revision), encoding="utf-8")


def _encoder(config: MomentConfig, setup: Setup, folder: Path, *, with_encoder: bool) -> tuple[str, str | None]:
    """Where MOMENT finds the frozen encoder, and which version of it."""
    if with_encoder or is_random(config.weights):
        source = weights_folder(config.size, config.weights, config.weights_seed, config.revision)
        (folder / ENCODER).mkdir()
        for name in FILES:
            shutil.copyfile(source / name, folder / ENCODER / name)
        if is_random(config.weights):
            mark_random(folder / ENCODER, config.weights_seed)  # an older cache has none
        return ENCODER, None
    found = setup.frozen.get("weights_revision")
    return (config.weights, None) if found is None else (hub_id(config.weights), str(found))


def named(setup: Setup, params: Params) -> dict[str, Tensor]:
    """All parameters by ``group.name``."""
    layout = setup.layout
    return {
        f"{group.id}.{name}": tensor.contiguous().clone()
        for group in layout
        for name, tensor in layout.unflatten(group.id, params[group.id]).items()
    }


def frozen_fusion(backbone: Backbone) -> Tensor:
    """``W_0`` (D, M D), its blocks side by side in canonical order."""
    blocks = {stage.spec.id: stage.module for stage in backbone.stages}
    return cat([blocks[f"fusion.W0.{m}"].get_parameter("weight").detach() for m in backbone.shape.modalities], 1)
