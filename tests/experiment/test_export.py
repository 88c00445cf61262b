"""Exported models: the README's own code, which knows nothing of this package, gives the logits of the run's model."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from relief_ray.core.messages import ServerState
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.export import common_model, export_model, readme
from relief_ray.experiment.lifecycle import create, reopen
from relief_ray.experiment.recording import binding_of
from relief_ray.experiment.setup import build_backbone, input_shape, prepare
from relief_ray.records.checkpoint import Checkpoint, load
from relief_ray.records.metrics import macro_f1
from relief_ray.records.run_folder import read_rounds, read_run
from relief_ray.support.errors import UserError
from relief_ray.training.executor import SerialExecutor
from tests.conformance.cases import config_of
from tests.models.test_backbone_frozen import put_weights
from tests.nets import Net
from tests.sealed import change_run

pytestmark = pytest.mark.usefixtures("run_cache")


def finished(folder, case, **changes):
    """A run of two rounds, tested after each."""
    setup, opened = create(config_of(case, rounds=2, evaluation={"every": 1}, **changes), folder)
    with opened:
        Experiment(setup=setup, folder=opened, executor=SerialExecutor(setup.job)).run()
    return setup


@pytest.fixture(scope="module")
def cnn(run_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cnn") / "run"
    return folder, finished(folder, "relief", training={"epochs": 1, "lr": 0.01, "missing": "zero_feature"})


@pytest.fixture(scope="module")
def moment(run_cache, tmp_path_factory):
    """A personalised method: its common model is put together from what clients keep."""
    folder = tmp_path_factory.mktemp("moment") / "run"
    backbone = {"name": "moment_lora", "size": "tiny", "rank": 2, "alpha": 4, "pad_to": 136}
    return folder, finished(folder, "fedsa_lora, moment", backbone=backbone)


def outside(folder, monkeypatch):
    """The README's code, run where the export lies."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    assert "relief" not in code
    monkeypatch.chdir(folder)
    names = {}
    exec(code, names)
    return names["logits"]


def raw(setup, number=None):
    """Test windows in the dataset's units, and their labels."""
    test = setup.data.test if number is None else setup.data.test.take(np.arange(number))
    plain = replace(test, mean=np.zeros_like(test.mean), std=np.ones_like(test.std))
    return {m: torch.from_numpy(x) for m, x in plain.load().items()}, torch.from_numpy(test.labels)


def inside(setup, folder, present, number):
    """This package's logits of the run's last model, from a model that was built anew."""
    backbone = build_backbone(setup.config, input_shape(setup.data.spec), "naive")
    point = load(folder, binding_of(setup, read_run(folder)))
    backbone.load(common_model(setup, point, folder))
    windows = {m: torch.from_numpy(x) for m, x in setup.data.test.take(np.arange(number)).load().items()}
    with torch.no_grad():
        return backbone.forward({m: x if m in present else torch.zeros_like(x) for m, x in windows.items()})


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["cnn", "moment"])
def test_the_code_in_the_readme_is_the_runs_model(kind, request, tmp_path, monkeypatch):
    folder, setup = request.getfixturevalue(kind)
    facts = export_model(folder, tmp_path / "out")
    logits, (windows, labels) = outside(tmp_path / "out", monkeypatch), raw(setup)
    run, last = read_run(folder), read_rounds(folder)[-1]
    exported = logits(windows)
    assert float((exported.argmax(1) == labels).double().mean()) == pytest.approx(last.metrics.accuracy, abs=1e-9)
    few = {m: x[:7] for m, x in windows.items()}
    assert torch.allclose(exported[:7], inside(setup, folder, few, 7), atol=1e-4)
    kept = json.loads((tmp_path / "out" / "export.json").read_text())
    assert kept == facts and (facts["run"], facts["round"], facts["f1"]) == (run.cell, 2, last.metrics.f1)
    assert facts["config_hash"] == run.config_hash and facts["source_digest"] == run.source_digest
    assert facts["commit"] and facts["encoder"] == run.backbone and facts["other_program"] is None
    if kind == "moment":
        # An absent sensor is a window of zeros; under zero_feature (Backbone 1 above) it is left out of the sum.
        few.pop("gyro")
        assert torch.allclose(logits(few), inside(setup, folder, few, 7), atol=1e-4)
        assert len(kept["encoder"]["weights_sha256"]) == 64
    else:
        assert not torch.equal(logits(few), logits({m: x for m, x in few.items() if m != "gyro"}))


@pytest.mark.ci
def test_what_is_written_for_each_backbone(cnn, moment, tmp_path):
    export_model(moment[0], tmp_path / "moment")
    names = {str(p.relative_to(tmp_path / "moment")) for p in (tmp_path / "moment").rglob("*") if p.is_file()}
    assert names >= {
        "README.md", "export.json", "head.safetensors", "fusion_w0.safetensors", "fusion/adapter_model.safetensors",
        "encoder.acc/adapter_config.json", "encoder.mag/adapter_model.safetensors", "encoder/model.safetensors",
    }  # fmt: skip
    export_model(cnn[0], tmp_path / "empty" / "cnn")
    assert {p.name for p in (tmp_path / "empty" / "cnn").iterdir()} == {"README.md", "export.json", "model.safetensors"}
    assert [p.name for p in (tmp_path / "empty").iterdir()] == ["cnn"], "nothing half-made is left"


def test_an_earlier_round_and_rounds_that_are_gone(cnn, tmp_path):
    facts = export_model(cnn[0], tmp_path / "out", 1)
    assert facts["round"] == 1 and facts["f1"] == read_rounds(cnn[0])[0].metrics.f1
    assert facts["model_sha256"] != export_model(cnn[0], tmp_path / "last")["model_sha256"]
    with pytest.raises(UserError, match=r"no checkpoint of round 0; a run keeps its newest two, here of round 1 and"):
        export_model(cnn[0], tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()


def test_what_cannot_be_exported_is_said_before_anything_is_written(cnn, tmp_path):
    with pytest.raises(UserError, match=r"no run\.json, expected a run folder"):
        export_model(tmp_path, tmp_path / "out")
    create(config_of("relief"), tmp_path / "begun")[1].close()
    with pytest.raises(UserError, match=r"is interrupted and has no checkpoint yet.*relief-ray resume"):
        export_model(tmp_path / "begun", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    for place, said in ((tmp_path / "full", "is not empty"), (tmp_path / "full" / "notes", "is a file")):
        with pytest.raises(UserError, match=f"{said}; name an empty folder"):
            export_model(cnn[0], place)
    assert not (tmp_path / "out").exists()
    setup = prepare(config_of("local"))
    point = Checkpoint(round=1, state=ServerState(models={"global": setup.start}))
    with pytest.raises(UserError, match=r"local has no common model, only its clients' own"):
        common_model(setup, point, tmp_path)


def test_a_random_encoder_is_marked_in_the_export(moment, run_cache, tmp_path):
    drawn = [json.loads(path.read_text()) for path in run_cache.glob("moment/tiny-random-0-*/config.json")]
    export_model(moment[0], tmp_path / "model")
    exported = json.loads((tmp_path / "model/encoder/config.json").read_text())
    assert exported in drawn and exported["relief_ray_random_seed"] == 0


def test_an_encoder_that_has_changed_is_refused_and_one_of_a_folder_is_named(moment, tmp_path, monkeypatch):
    put_weights(tmp_path / "weights", 0)
    shutil.copytree(moment[0], tmp_path / "run")
    known = read_run(tmp_path / "run").backbone
    change_run(tmp_path / "run", backbone=known | {"weights_sha256": f"0{known['weights_sha256']}"})
    with pytest.raises(UserError, match="was computed on the frozen encoder"):
        export_model(tmp_path / "run", tmp_path / "out")
    facts = read_facts(moment[0], tmp_path)
    shown = readme("moment_lora", facts, "owner/name", "v1")
    assert "ENCODER, REVISION = \"owner/name\", 'v1'" in shown and "are not here: `owner/name`" in shown
    assert "the backbone's own source says" in readme("my:Own", facts)


def read_facts(folder, tmp_path):
    return export_model(folder, tmp_path / "facts")


def test_a_run_goes_on_after_an_export(cnn, tmp_path):
    shutil.copytree(cnn[0], tmp_path / "run")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    export_model(tmp_path / "run", tmp_path / "out")
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before, "only looked at"
    reopen(tmp_path / "run")[1].close()


def test_a_plain_module_with_batch_norm_has_the_run_s_score_outside(run_cache, tmp_path):
    """Parameters and running statistics go into the user's own class, which knows nothing of stages and groups."""
    setup = finished(tmp_path / "run", "relief, batch norm and dropout")
    export_model(tmp_path / "run", tmp_path / "out")
    theta = load_file(tmp_path / "out" / "model.safetensors")
    statistics = load_file(tmp_path / "out" / "statistics.safetensors")
    shape = input_shape(setup.data.spec)
    net, values = Net(shape.channels, shape.num_classes).eval(), {}
    for m in shape.modalities:
        # The place in the encoder of each group's convolution; its norm is behind it.
        for group, place in ((f"encoder.{m}.1", 0), (f"encoder.{m}.2", 4)):
            for i, name in [(i, n) for i in (0, 1) for n in ("weight", "bias")]:
                values[f"encoders.{m}.{place + i}.{name}"] = theta[f"{group}.{i}.{name}"]
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                values[f"encoders.{m}.{place + 1}.{name}"] = statistics[f"statistics:{group}.1.{name}"]
    values["fusion.0.weight"] = torch.cat([theta[f"fusion.A.{m}.weight"] for m in shape.modalities], 1)
    values["fusion.0.bias"] = theta["fusion.B.bias"]
    values |= {f"head.{name}": theta[f"head.1.{name}"] for name in ("weight", "bias")}
    net.load_state_dict(values)
    test = setup.data.test
    with torch.no_grad():
        predicted = net({m: torch.from_numpy(x) for m, x in test.load().items()}).argmax(1)
    matrix = torch.bincount(torch.from_numpy(test.labels) * shape.num_classes + predicted, minlength=64).view(8, 8)
    assert macro_f1(matrix) == pytest.approx(read_rounds(tmp_path / "run")[-1].metrics.f1, abs=1e-9)
