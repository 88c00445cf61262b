"""Where the frozen encoder comes from: hub, folder or seed; and every way in which that goes wrong."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from relief_ray.models.moment import encoder
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.moment.encoder import SIZES, enough_memory, plain_config
from relief_ray.models.moment.weights import digest, load_frozen, map_tensors, weights_folder
from relief_ray.support.errors import UserError
from tests.models.tiny_moment import stirred, tiny, windows

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture
def saved(tmp_path):
    """A folder as momentfm itself writes one, with token table and reconstruction head."""
    from momentfm import MOMENTPipeline

    config = plain_config(SIZES["tiny"])
    config["t5_config"] |= {"vocab_size": 50}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        pipeline = MOMENTPipeline(config, model_kwargs={})
    pipeline.save_pretrained(tmp_path / "weights")
    return tmp_path / "weights", pipeline.eval()


def test_a_folder_of_momentfm_gives_momentfms_embedding(saved):
    folder, pipeline = saved
    frozen, x = load_frozen("tiny", str(folder), 0), windows()["acc"]
    expected = pipeline.embed(x_enc=x).embeddings
    assert torch.allclose(frozen.pipeline.embed(x_enc=x).embeddings, expected, atol=1e-6)
    assert frozen.num_values == 82_880 and frozen.origin == str(folder)
    assert not [k for k in map_tensors(folder / "model.safetensors") if "embed_tokens" in k or k.startswith("head")]


def test_only_random_weights_are_warned_of(saved):
    assert "RANDOM ENCODER" in tiny().warnings[0] and tiny().facts["weights"] == "random, seed 0"
    learned = tiny(weights=str(saved[0]))
    assert learned.warnings == () and learned.facts["weights"] == str(saved[0])
    assert learned.facts["weights_sha256"] != tiny().facts["weights_sha256"]
    stirred(learned)


def test_random_weights_depend_on_their_seed_alone():
    first = load_frozen("tiny", "random", 1)
    load_frozen.cache_clear()
    torch.manual_seed(99)
    assert load_frozen("tiny", "random", 1).sha256 == first.sha256 == digest(first.pipeline)
    assert load_frozen("tiny", "random", 2).sha256 != first.sha256


def test_the_file_is_mapped_not_read(run_cache):
    load_frozen.cache_clear()
    parameters = list(load_frozen("tiny", "random", 0).pipeline.parameters())
    path = str(weights_folder("tiny", "random", 0).resolve() / "model.safetensors")
    mapped = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(path)]
    spans = [tuple(int(address, 16) for address in span.split("-")) for span in mapped]
    assert spans and parameters
    assert all(any(first <= p.data_ptr() < end for first, end in spans) for p in parameters)


# Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["nowhere", "./no/such", "/no/such/folder"])
def test_no_such_folder(weights):
    with pytest.raises(UserError, match=r"no such folder.*config\.json and model\.safetensors.*'random'"):
        load_frozen("tiny", weights, 0)


def test_an_unreachable_hub_says_what_else_can_be_done(monkeypatch):
    import huggingface_hub

    def refuse(name, file, revision):
        raise OSError("offline\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(UserError, match=r"'AutonLab/MOMENT-1-small'.*\(offline\).*give its folder"):
        load_frozen("small", "hub", 0)


def test_an_empty_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(UserError, match=r"config\.json is missing or not MOMENT's"):
        load_frozen("tiny", str(tmp_path), 0)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"KeyError\('t5_config'\)"):
        load_frozen("tiny", str(tmp_path), 0)


def test_a_checkpoint_of_another_size(saved):
    with pytest.raises(UserError, match=r"describes .*'d_model': 64.*expected .*'d_model': 512.*backbone\.size"):
        load_frozen("small", str(saved[0]), 0)


def test_a_checkpoint_with_missing_keys(saved):
    path = saved[0] / "model.safetensors"
    tensors = {k: t.clone() for k, t in load_file(path).items()}
    del tensors["encoder.block.1.layer.0.SelfAttention.q.weight"]
    tensors["encoder.final_layer_norm.weight"] = torch.ones(3)
    save_file(tensors, path)
    with pytest.raises(
        UserError, match=r"1 tensors are missing \(encoder\.block\.1.*q\.weight\), 1 have another shape"
    ):
        load_frozen("tiny", str(saved[0]), 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"t5_config": "x"}, r"config\.json is missing or not MOMENT's \(TypeError\(.t5_config is 'x'"),
        ({"t5_config": None}, "t5_config is None"),
        ({"d_model": 512}, r"patches of 8, d_model 512; expected .*'d_model': 64"),
        ({"d_model": None, "transformer_backbone": "nobody/knows"}, "momentfm cannot build an encoder.*d_model"),
        ({"transformer_type": "sideways"}, "momentfm cannot build an encoder"),
    ],
    ids=str,
)
def test_a_configuration_that_momentfm_cannot_use(saved, changes, said):
    path = saved[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=said):
        load_frozen("tiny", str(saved[0]), 0)


@pytest.mark.parametrize("key", ["d_model", "seq_len", "patch_stride_len"])
def test_a_configuration_without_a_key(saved, key):
    path = saved[0] / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != key}))
    with pytest.raises(UserError, match=f"momentfm cannot build an encoder.*{key}"):
        load_frozen("tiny", str(saved[0]), 0)


def test_the_hubs_own_d_model_is_null(saved):
    path = saved[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"d_model": None}))
    assert load_frozen("tiny", str(saved[0]), 0).num_values == 82_880


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda w: (100 * w).to(torch.int8),
            r"1 tensors are no finite floating-point numbers \(.*q\.weight: torch\.int8",
        ),
        (lambda w: torch.where(w == w.max(), torch.nan, w), r"q\.weight: torch\.float32"),
        (lambda w: torch.where(w == w.max(), torch.inf, w), r"not quantised and without NaN"),
    ],
    ids=["int8", "nan", "inf"],
)
def test_weights_that_are_no_finite_numbers(saved, spoil, said):
    path = saved[0] / "model.safetensors"
    tensors = {k: t.clone() for k, t in load_file(path).items()}
    name = "encoder.block.1.layer.0.SelfAttention.q.weight"
    save_file(tensors | {name: spoil(tensors[name])}, path)
    with pytest.raises(UserError, match=said):
        load_frozen("tiny", str(saved[0]), 0)


def test_half_precision_weights_are_widened(saved):
    path = saved[0] / "model.safetensors"
    save_file({k: t.to(torch.bfloat16) for k, t in load_file(path).items()}, path)
    frozen = load_frozen("tiny", str(saved[0]), 0)
    assert {p.dtype for p in frozen.pipeline.parameters()} == {torch.float32}


def test_a_damaged_file(saved):
    (saved[0] / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_frozen("tiny", str(saved[0]), 0)
    (saved[0] / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        load_frozen("tiny", str(saved[0]), 0)


def test_patches_of_another_length(saved):
    path = saved[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"patch_len": 16}))
    with pytest.raises(UserError, match=r"patches of 16, d_model 64; expected .* patches of 8"):
        load_frozen("tiny", str(saved[0]), 0)


def test_without_momentfm_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "momentfm", None)
    with pytest.raises(UserError, match=r"pip install --no-deps momentfm==0\.1\.4"):
        encoder.require_momentfm()


def test_a_momentfm_that_breaks_on_import_is_no_fault_of_ours(tmp_path, monkeypatch):
    (tmp_path / "momentfm.py").write_text("raise AttributeError('module torch has no attribute gone')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "momentfm")
    with pytest.raises(UserError, match=r"cannot be imported \(AttributeError\('module torch.*gone'\)\).*pip install"):
        encoder.require_momentfm()


def test_out_of_memory_is_said_in_words():
    with (
        pytest.raises(UserError, match=r"not enough memory to load the encoder.*runtime\.num_hosts"),
        enough_memory("small"),
    ):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="something else"), enough_memory("small"):
        raise RuntimeError("something else")


# Which version of the hub's ------------------------------------------------------------------------------------------


@pytest.fixture
def hub(saved, tmp_path, monkeypatch):
    """A cache in the hub's own layout, which serves without a network: two commits, ``main`` is the second."""
    import huggingface_hub
    import huggingface_hub.constants

    place = tmp_path / "hub" / "models--owner--name"
    for commit, factor in (("a" * 40, 1.0), ("b" * 40, 2.0)):
        folder = place / "snapshots" / commit
        shutil.copytree(saved[0], folder)
        tensors = {k: factor * t for k, t in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("b" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(place.parent))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_revision_of_the_hub_is_obeyed_and_recorded(hub):
    newest, first = tiny(weights="owner/name"), tiny(weights="owner/name", revision="a" * 40)
    assert newest.facts["weights_revision"] == "b" * 40 and first.facts["weights_revision"] == "a" * 40
    assert newest.facts["weights_sha256"] != first.facts["weights_sha256"]
    for backbone, revision in ((newest, None), (first, "a" * 40)):
        config = MomentConfig(size="tiny", weights="owner/name", revision=revision)
        assert config.frozen_here() == {"weights_sha256": backbone.facts["weights_sha256"]}
    with pytest.raises(UserError, match="the hub did not deliver revision 'v9'"):
        load_frozen("tiny", "owner/name", 0, "v9")
    assert MomentConfig(size="tiny", weights="owner/name", revision="v9").frozen_here() == {}


def test_a_revision_of_what_is_not_from_the_hub_is_refused(saved):
    for weights in ("random", str(saved[0])):
        with pytest.raises(UserError, match=r"backbone\.revision='v1': is a version at the hub, but .* is not from"):
            load_frozen("tiny", weights, 0, "v1")


def test_nothing_is_known_of_weights_that_are_not_here_or_not_usable(saved, tmp_path, run_cache):
    folder = saved[0]
    assert MomentConfig(size="tiny", weights_seed=77).frozen_here() == {}, "nothing is drawn to look at it"
    assert not list(run_cache.rglob("*-77-*"))
    known = MomentConfig(size="tiny", weights=str(folder))
    before = known.frozen_here()
    assert before == {"weights_sha256": tiny(weights=str(folder)).facts["weights_sha256"]}
    save_file({k: t + 1 for k, t in load_file(folder / "model.safetensors").items()}, folder / "new.safetensors")
    (folder / "new.safetensors").replace(folder / "model.safetensors")
    assert known.frozen_here().keys() == before.keys() and known.frozen_here() != before
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert known.frozen_here() == {} == MomentConfig(weights=str(tmp_path / "gone")).frozen_here()
