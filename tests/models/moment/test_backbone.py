"""Backbone 2's groups and counts, and its function against momentfm and PEFT themselves."""

import re

import cloudpickle
import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.core.extra_modules import Classifier
from relief_ray.core.stages import RAW, most_windows
from relief_ray.experiment.setup import prepare
from relief_ray.models.backbone import InputShape
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import with_extra_modules
from relief_ray.models.moment.adapters import save_adapters
from relief_ray.models.moment.backbone import MomentConfig, _num_values
from relief_ray.models.moment.weights import load_frozen, local_folder, weights_folder
from relief_ray.support.errors import UserError
from relief_ray.training.forward_plan import plan_forward
from tests.models.tiny_moment import PAMAP2, SHAPE, TINY, stirred, tiny, windows

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture(scope="module")
def small(run_cache):
    return MomentConfig().build(PAMAP2, 0)


def plain(weights="random"):
    """momentfm's own pipeline on the same files."""
    from momentfm import MOMENTPipeline

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


def test_the_count_of_values_before_a_model_is_built_is_the_models(small):
    assert _num_values(MomentConfig(), PAMAP2) == small.layout.numel
    assert _num_values(TINY, SHAPE) == tiny().layout.numel


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
    assert most(backbone, ("acc", "gyro", "mag")) == micro_batch
    assert (
        most(with_extra_modules(backbone, [Classifier(id="exit", after=("fusion.B",))], 0), ("acc", "gyro", "mag"))
        == micro_batch
    )


def most(backbone, present, groups=None):
    plan = plan_forward(backbone, present, groups or backbone.layout.ids, "zero_input", reuse=True)
    return most_windows(plan.step_bytes)


def test_windows_of_pamap2_go_one_by_one_where_all_sensors_are_there(small):
    assert most(small, PAMAP2.modalities) == 1 and small.chunk == 7, "passes without gradient keep their size"
    assert most(small, ["hr"]) == 25 and most(small, PAMAP2.modalities, ["fusion.B"]) is None


def test_no_token_table_is_in_memory(small):
    held = {p.data_ptr(): p for s in small.stages for p in s.module.parameters()}
    assert max(p.numel() for p in held.values()) == 512 * 1024
    frozen = sum(p.numel() for p in held.values() if not p.requires_grad)
    assert frozen == 18_887_872 + 4 * 512 * 512, "one encoder for four modalities, and W_0"


@pytest.mark.ci
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
    assert costs.group_flops("encoder.acc.1") == 3 * adapters, "flop_proportional knows adapters alone"
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
    from peft import PeftModel

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
    from peft import PeftModel

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


def of_window(window):
    return PAMAP2.__class__(channels=SHAPE.channels, window=window, num_classes=4)


@pytest.mark.parametrize(("window", "pad_to"), [(100, None), (28, 32), (28, None), (3, 8)])
def test_windows_must_be_whole_patches(window, pad_to):
    with pytest.raises(UserError, match=rf"windows of {window} samples.*multiple of the patch length 8") as caught:
        tiny(of_window(window), pad_to=pad_to)
    assert "change the dataset or" not in str(caught.value), "padding does not help"
    assert "set data.window_s so that windows have" in str(caught.value)
    named = re.search(r"windows have ([\d or]+) samples", str(caught.value))[1].split(" or ")
    assert {abs(window - int(n)) < 8 for n in named} == {True}
    for possible in named:
        tiny(of_window(int(possible)))


def test_padding_is_whole_patches_and_not_below_the_window():
    with pytest.raises(UserError, match=r"backbone\.pad_to=16 is below the windows' 32 samples.*remove it"):
        tiny(pad_to=16)
    with pytest.raises(ValueError, match="no multiple of the patch length 8; take 504"):
        MomentConfig(pad_to=500)


def test_no_series_is_longer_than_moments_table_of_positions(run_cache):
    table = load_frozen("tiny", "random", 0).pipeline.get_buffer("patch_embedding.position_embedding.pe")
    assert table.shape[1] * 8 == 40_000 == MomentConfig(pad_to=40_000).pad_to
    with pytest.raises(ValueError, match="is above 40000, where MOMENT's table of 5000 positions ends; take at most"):
        MomentConfig(pad_to=48_000)
    with pytest.raises(UserError, match="windows of 40008 samples; expected at most 40000"):
        tiny(of_window(40_008))


def test_a_folder_of_weights_is_the_same_from_everywhere(tmp_path, monkeypatch):
    (tmp_path / "own" / "weights").mkdir(parents=True)
    (tmp_path / "hub").mkdir()
    (tmp_path / "random").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    for typed in ("own/weights", "./own/weights/", "~/weights", str(tmp_path / "own" / "weights")):
        kept = MomentConfig(weights=typed)
        assert kept.weights == str(tmp_path / "own" / "weights")
        assert MomentConfig.model_validate(kept.model_dump(mode="json")) == kept
    for word in ("hub", "random", "AutonLab/MOMENT-1-small", "no/such", "~nobody/there", ""):
        assert MomentConfig(weights=word).weights == word
    assert local_folder("hub") is None is local_folder("random"), "a folder of that name is ./hub"
    assert MomentConfig(weights="./hub").weights == str(tmp_path / "hub")


def test_gemm_engine_is_backbone_1s():
    with pytest.raises(UserError, match="'gemm' is Backbone 1's"):
        TINY.build(SHAPE, 0, "gemm")


@pytest.mark.parametrize("values", [{"rank": 0}, {"alpha": 0}, {"size": "large"}, {"pad_to": 4}])
def test_impossible_values_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        MomentConfig(**values)
