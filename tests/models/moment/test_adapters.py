"""Adapters in PEFT's files: what comes back, and everything that would be another function is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from relief_ray.core.extra_modules import Classifier, Connector, Experts
from relief_ray.models.extra import with_extra_modules
from relief_ray.models.moment.adapters import load_adapters, save_adapters
from relief_ray.support.errors import UserError
from tests.models.tiny_moment import TINY, stirred, tiny

pytestmark = pytest.mark.usefixtures("run_cache")


def test_adapters_come_back_to_the_bit(tmp_path):
    backbone = tiny()
    moved = stirred(backbone)
    save_adapters(TINY, backbone.layout, moved, tmp_path)
    again = load_adapters(TINY, backbone.layout, tmp_path)
    assert all(torch.equal(again[j], theta) for j, theta in moved.items()) and again.keys() == moved.keys()
    with pytest.raises(UserError, match=r"fusion.*2 of 2 tensors.*another shape"):
        load_adapters(TINY, tiny(rank=2).layout, tmp_path)
    (tmp_path / "head.safetensors").unlink()
    with pytest.raises(UserError, match=r"head\.safetensors: cannot be read"):
        load_adapters(TINY, backbone.layout, tmp_path)


ADDED = {
    "exit": [Classifier(id="exit.acc", after=("encoder.acc.1",), modality="acc")],
    "experts": [Experts(id="mix", of=("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "fusion.B"), most=3)],
    "connector": [Connector(id="link", num_tasks=2, bottleneck=4)],
}


@pytest.mark.parametrize("additions", ADDED.values(), ids=ADDED)
def test_what_a_method_adds_comes_back_too(additions, tmp_path):
    backbone = with_extra_modules(tiny(), additions, 0)
    moved = stirred(backbone)
    save_adapters(TINY, backbone.layout, moved, tmp_path)
    again = load_adapters(TINY, backbone.layout, tmp_path)
    assert len(again) > len(tiny().layout) and again.keys() == moved.keys()
    assert all(torch.equal(again[j], theta) for j, theta in moved.items())
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    with pytest.raises(UserError, match=r"head\.safetensors: \d+ of \d+ tensors are missing.*and method"):
        load_adapters(TINY, backbone.layout, tmp_path)
    save_adapters(TINY, backbone.layout, moved, tmp_path)
    with pytest.raises(UserError, match=r"head\.safetensors: \d+ tensors that nothing here reads.*this method alone"):
        load_adapters(TINY, tiny().layout, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lora_alpha", 64, "lora_alpha 64 instead of 16; set backbone.rank and backbone.alpha"),
        ("r", 8, "r 8 instead of 4"),
        ("target_modules", ["q", "v"], r"target_modules \['q', 'v'\] instead of \['q', 'v', 'wi_0', 'wo'\]"),
        ("use_rslora", True, r"other kinds \['use_rslora'\]"),
        ("use_dora", True, r"other kinds \['use_dora'\]"),
        ("lora_bias", True, r"other kinds \['lora_bias'\]"),
        ("bias", "lora_only", r"other kinds \['bias'\]"),
        ("modules_to_save", ["head"], r"other kinds \['modules_to_save'\]"),
        ("alpha_pattern", {"q": 3}, r"other kinds \['alpha_pattern'\]"),
        ("init_lora_weights", "pissa", r"other kinds \['init_lora_weights'\]"),
        ("peft_type", "LOHA", r"other kinds \['peft_type'\]"),
        ("use_tomorrows_kind", True, r"other kinds \['use_tomorrows_kind'\]"),
        ("target_modules", 3, "target_modules 3 instead of"),
    ],
)
def test_adapters_of_another_configuration_are_refused(key, value, said, tmp_path):
    layout = tiny().layout
    save_adapters(TINY, layout, tiny().params(), tmp_path)
    path = tmp_path / "encoder.gyro" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=rf"encoder\.gyro.adapter_config\.json: {said}"):
        load_adapters(TINY, layout, tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match=r"adapter_config\.json: cannot be read \(TypeError"):
        load_adapters(TINY, layout, tmp_path)


def test_what_changes_nothing_in_an_adapters_configuration_is_passed_over(tmp_path):
    moved = stirred(tiny())
    save_adapters(TINY, tiny().layout, moved, tmp_path)
    path = tmp_path / "encoder.gyro" / "adapter_config.json"
    known = json.loads(path.read_text())
    other = {"base_model_name_or_path": "owner/name", "lora_dropout": 0.1, "peft_version": "0.9", "use_later": None}
    for config in (known | other | {"init_lora_weights": "gaussian"}, {k: known[k] for k in REQUIRED}):
        path.write_text(json.dumps(config))
        again = load_adapters(TINY, tiny().layout, tmp_path)
        assert all(torch.equal(again[j], theta) for j, theta in moved.items())


REQUIRED = ("peft_type", "r", "lora_alpha", "target_modules")


@pytest.mark.parametrize("file", ["encoder.acc/adapter_model", "fusion/adapter_model", "head"])
def test_tensors_that_nothing_reads_are_refused(file, tmp_path):
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    path = tmp_path / f"{file}.safetensors"
    tensors = load_file(path)
    more = f"{next(iter(tensors)).rpartition('.')[0]}.bias2"
    save_file(tensors | {more: torch.ones(3)}, path)
    with pytest.raises(UserError, match=rf"{file}\.safetensors: 1 tensors that nothing here reads \({more}\)"):
        load_adapters(TINY, tiny().layout, tmp_path)


@pytest.mark.parametrize("value", [torch.full((4, 64), torch.inf), torch.ones(4, 64, dtype=torch.int8)])
def test_adapters_that_are_no_finite_numbers_are_refused(value, tmp_path):
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    path = tmp_path / "encoder.hr" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(k for k, t in tensors.items() if t.shape == value.shape)
    save_file(tensors | {name: value}, path)
    with pytest.raises(UserError, match=r"1 of 16 tensors .*not finite numbers"):
        load_adapters(TINY, tiny().layout, tmp_path)
