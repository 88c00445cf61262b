"""Backbone 2's groups and counts, and its function against momentfm and PEFT themselves."""

import json

import cloudpickle
import pytest
import torch
from momentfm import MOMENTPipeline
from peft import PeftModel
from safetensors.torch import load_file, save_file

from relief_ray.additions import Classifier, Connector, Experts
from relief_ray.config import parse
from relief_ray.errors import UserError
from relief_ray.models.adapters import load_adapters, save_adapters
from relief_ray.models.backbone import InputShape
from relief_ray.models.costs import count_costs
from relief_ray.models.extend import extend
from relief_ray.models.moment_lora import MomentConfig
from relief_ray.models.moment_weights import load_frozen, weights_folder
from relief_ray.setup import prepare
from relief_ray.stages import RAW
from tests.models.moment import PAMAP2, SHAPE, TINY, stirred, tiny, windows

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def small(run_cache):
    return MomentConfig().build(PAMAP2, 0)


def plain(weights="random"):
    """momentfm's own pipeline on the same files."""
    folder = weights_folder("tiny", weights, 0)
    pipeline = MOMENTPipeline.from_pretrained(folder, model_kwargs={"task_name": "embedding"})
    pipeline.init()
    return pipeline.eval()


def feature(backbone, modality, x):
    values = {RAW + modality: x}
    for stage in backbone.stages:
        if stage.spec.modality == modality and not stage.spec.id.startswith("fusion"):
            values[stage.spec.id] = stage.module(*(values[i] for i in stage.spec.inputs))
    return values[f"feature.{modality}"].detach()


# Counts ----------------------------------------------------------------------------------------------------------


def test_small_has_the_papers_counts(small):
    layout, facts = small.layout, small.facts
    by_role = {role: [g for g in layout if g.role == role] for role in ("fusion_a", "fusion_b", "encoder", "head")}
    assert {role: len(groups) for role, groups in by_role.items()} == {
        "fusion_a": 4,
        "fusion_b": 1,
        "encoder": 32,
        "head": 2,
    }
    assert len(layout) == 39
    for m in PAMAP2.modalities:
        assert sum(g.numel for g in by_role["encoder"] if g.modality == m) == 311_296
    assert [g.numel for g in by_role["fusion_a"]] == [4096] * 4 and by_role["fusion_b"][0].numel == 4096
    assert [g.numel for g in by_role["head"]] == [131_328, 3_084]
    assert layout.numel - 3_084 == 1_396_992, "Table II's 5457 KB, to the value"
    assert facts["encoder_values"] == 18_887_872
    assert facts["encoder_values"] + facts["token_table_values"] == 35_337_408


@pytest.mark.parametrize(
    ("size", "window", "channels", "micro_batch"),
    [("small", 128, 3, 5), ("small", 128, 15, 1), ("tiny", 128, 3, 182), ("tiny", 128, 15, 36)],
)
def test_windows_of_a_step_stay_within_half_a_gib(size, window, channels, micro_batch, run_cache):
    """Three sensors; `tiny` takes the usual batches of 32 whole, with every channel of DSA too."""
    shape = InputShape(channels=tuple((m, channels) for m in ("acc", "gyro", "mag")), window=window, num_classes=19)
    backbone = MomentConfig(size=size).build(shape, 0)
    assert backbone.micro_batch == micro_batch
    assert extend(backbone, [Classifier(id="exit", after=("fusion.B",))], 0).micro_batch == micro_batch


def test_windows_of_pamap2_go_one_by_one(small):
    assert small.micro_batch == 1 and small.chunk == 7, "passes without gradient keep their size"


def test_no_token_table_is_in_memory(small):
    held = {p.data_ptr(): p for s in small.stages for p in s.module.parameters()}
    assert max(p.numel() for p in held.values()) == 512 * 1024
    frozen = sum(p.numel() for p in held.values() if not p.requires_grad)
    assert frozen == 18_887_872 + 4 * 512 * 512, "one encoder for four modalities, and W_0"


def test_what_a_host_is_sent_holds_no_weights(run_cache):
    """The encoder is mapped where it is used: 75 MB of weights, and a job of 44 kB."""
    values = {
        "data": {"name": "dsa_mini", "stride_s": 20.0, "max_windows_per_client": 6},
        "tracking": {"enabled": False},
    }
    job = prepare(parse({**values, "backbone": {"name": "moment_lora", "size": "small"}})).job
    assert len(cloudpickle.dumps(job)) < 100_000


def test_groups_are_peft_tensors_in_two_parts(small):
    group = small.layout["encoder.gyro.3"]
    shapes = {t.name: t.shape for t in group.tensors}
    assert shapes["layer.0.SelfAttention.q.lora_A"] == (8, 512)
    assert shapes["layer.0.SelfAttention.v.lora_B"] == (384, 8)
    assert shapes["layer.1.DenseReluDense.wi_0.lora_B"] == (1024, 8)
    assert shapes["layer.1.DenseReluDense.wo.lora_A"] == (8, 1024)
    assert {t.kind for t in group.tensors} == {"lora_a", "lora_b"} and len(group.tensors) == 8


def test_frozen_forward_is_counted_apart():
    costs = count_costs(tiny())
    block = costs.flops["encoder.acc.1"]
    rows, rank = 3 * 4, 4  # channels x patches
    adapters = 2 * rows * rank * ((64 + 64) * 2 + (64 + 128) * 2)
    assert block.forward_flops - block.frozen_forward_flops == adapters
    assert block.input_grad_flops - block.frozen_grad_flops == adapters
    assert block.weight_grad_flops["encoder.acc.1"] == adapters
    assert costs.group_flops("encoder.acc.1") == 3 * adapters, "the paper's clock knows adapters alone"
    whole = sum(f.forward_flops for f in costs.flops.values())
    owned = sum(f.forward_flops - f.frozen_forward_flops for s in costs.stages if s.groups for f in [costs.flops[s.id]])
    assert costs.frozen_forward_flops() == whole - owned


# Function --------------------------------------------------------------------------------------------------------


def test_fresh_encoder_is_moments_embedding():
    x, backbone = windows()["acc"], tiny()
    expected = plain().embed(x_enc=x).embeddings
    assert torch.allclose(feature(backbone, "acc", x), expected, atol=1e-5)


def test_padded_encoder_is_moments_embedding_under_its_mask():
    x, backbone = windows()["acc"], tiny(pad_to=64)
    padded, mask = torch.nn.functional.pad(x, (32, 0)), torch.cat([torch.zeros(5, 32), torch.ones(5, 32)], 1)
    expected = plain().embed(x_enc=padded, input_mask=mask).embeddings
    assert torch.allclose(feature(backbone, "acc", x), expected, atol=1e-5)


def test_saved_adapters_load_in_plain_peft(tmp_path):
    backbone, x = tiny(), windows()
    before = feature(backbone, "gyro", x["gyro"])
    moved = stirred(backbone)
    save_adapters(TINY, backbone.layout, moved, tmp_path)
    model = PeftModel.from_pretrained(plain(), tmp_path / "encoder.gyro").eval()
    with torch.no_grad():
        expected = model.base_model.model.embed(x_enc=x["gyro"]).embeddings
    assert torch.allclose(feature(backbone, "gyro", x["gyro"]), expected, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-2), "the adapters do something"


def test_mdlora_is_one_peft_lora_on_the_concatenated_features(tmp_path):
    backbone, x = tiny(), windows()
    save_adapters(TINY, backbone.layout, stirred(backbone), tmp_path)
    modules = {s.spec.id: s.module for s in backbone.stages}
    whole = torch.nn.Module()
    whole.fusion = torch.nn.Linear(3 * 64, 64, bias=False)
    whole.fusion.weight.data = torch.cat([modules[f"fusion.W0.{m}"].weight for m in SHAPE.modalities], 1)
    peft = PeftModel.from_pretrained(whole, tmp_path / "fusion")
    h = [feature(backbone, m, x[m]) for m in SHAPE.modalities]
    pairs = list(zip(SHAPE.modalities, h, strict=True))
    blocks = [modules[f"fusion.{kind}.{m}"](v) for kind in ("W0", "A") for m, v in pairs]
    expected = peft.base_model.model.fusion(torch.cat(h, 1))
    assert torch.allclose(modules["fusion"](*blocks), expected, atol=1e-5)


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
    backbone = extend(tiny(), additions, 0)
    moved = stirred(backbone)
    save_adapters(TINY, backbone.layout, moved, tmp_path)
    again = load_adapters(TINY, backbone.layout, tmp_path)
    assert len(again) > len(tiny().layout) and again.keys() == moved.keys()
    assert all(torch.equal(again[j], theta) for j, theta in moved.items())
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    with pytest.raises(UserError, match=r"head\.safetensors: \d+ of \d+ tensors are missing.*and method"):
        load_adapters(TINY, backbone.layout, tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lora_alpha", 64, "lora_alpha 64 instead of 16; set backbone.rank and backbone.alpha"),
        ("r", 8, "r 8 instead of 4"),
        ("target_modules", ["q", "v"], r"target_modules \['q', 'v'\] instead of \['q', 'v', 'wi_0', 'wo'\]"),
        ("use_rslora", True, r"other kinds \['use_rslora'\]"),
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


@pytest.mark.parametrize("value", [torch.full((4, 64), torch.inf), torch.ones(4, 64, dtype=torch.int8)])
def test_adapters_that_are_no_finite_numbers_are_refused(value, tmp_path):
    save_adapters(TINY, tiny().layout, tiny().params(), tmp_path)
    path = tmp_path / "encoder.hr" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(k for k, t in tensors.items() if t.shape == value.shape)
    save_file(tensors | {name: value}, path)
    with pytest.raises(UserError, match=r"1 of 16 tensors .*not finite numbers"):
        load_adapters(TINY, tiny().layout, tmp_path)


def test_modalities_share_what_is_frozen_and_nothing_else():
    backbone = tiny()
    of = {
        m: {id(p) for s in backbone.stages if s.spec.modality == m and s.frozen for p in s.module.parameters()}
        for m in SHAPE.modalities
    }
    trained = {id(p) for ps in backbone.parameters.values() for p in ps}
    assert of["acc"] - trained == of["gyro"] - trained and not of["acc"] & of["gyro"] & trained
    other = tiny(seed=1)
    assert load_frozen("tiny", "random", 0).pipeline.training is False
    frozen = {id(p) for s in other.stages if s.frozen for p in s.frozen.parameters()}
    assert frozen == of["acc"] - trained, "and the next virtual client's backbone shares it too"


def test_seeds_and_ranks():
    one, again, other = tiny(seed=1).params(), tiny(seed=1).params(), tiny(seed=2).params()
    assert all(torch.equal(one[j], again[j]) for j in one)
    assert not torch.equal(one["fusion.A.acc"], other["fusion.A.acc"])
    assert not torch.equal(one["encoder.acc.1"], one["encoder.gyro.1"][: len(one["encoder.acc.1"])])
    assert tiny(rank=1).layout["fusion.A.acc"].numel == 64


# Bad input -------------------------------------------------------------------------------------------------------


def test_windows_must_be_whole_patches():
    odd = PAMAP2.__class__(channels=SHAPE.channels, window=100, num_classes=4)
    with pytest.raises(UserError, match=r"windows of 100 samples.*multiple of the patch length 8"):
        TINY.build(odd, 0)
    with pytest.raises(UserError, match=r"backbone\.pad_to=16"):
        tiny(pad_to=16)
    with pytest.raises(ValueError, match="no multiple of the patch length 8; take 504"):
        MomentConfig(pad_to=500)


def test_gemm_engine_is_backbone_1s():
    with pytest.raises(UserError, match="'gemm' is Backbone 1's"):
        TINY.build(SHAPE, 0, fast=True)


@pytest.mark.parametrize("values", [{"rank": 0}, {"alpha": 0}, {"size": "large"}, {"pad_to": 4}])
def test_impossible_values_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        MomentConfig(**values)
