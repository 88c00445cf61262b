"""The same tensors under another configuration are another encoder: what MOMENT's is, and what is refused."""

import json

import pytest

from relief_ray.models.moment.encoder import SIZES, plain_config, read_config
from relief_ray.models.moment.weights import load_frozen
from relief_ray.support.errors import UserError
from tests.models.tiny_moment import windows

# Keys that published files carry beside those which decide anything, and their null.
PUBLISHED = {"d_model": None, "device": "cpu", "model_kwargs": {}, "torch_dtype": "float32", "mask_ratio": 0.3}
PUBLISHED_T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "n_positions": 512,
    "num_decoder_layers": 2,
    "output_past": True,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 50,
}


@pytest.fixture
def saved(tmp_path):
    """A folder as momentfm writes one, with all the keys that published files have."""
    from momentfm import MOMENTPipeline

    config = plain_config(SIZES["tiny"]) | PUBLISHED
    config["t5_config"] |= PUBLISHED_T5
    MOMENTPipeline(config, model_kwargs={}).save_pretrained(tmp_path)
    return tmp_path


def change(folder, t5=None, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["t5_config"] |= t5 or {}
    path.write_text(json.dumps(config | changes))


def drop(folder, name):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["t5_config"][name]
    path.write_text(json.dumps(config))


def test_published_keys_are_read_and_change_nothing(saved):
    config = read_config(saved, SIZES["tiny"])
    assert config["device"] == "cpu" and config["t5_config"]["tie_word_embeddings"] is False
    x = windows()["acc"]
    before = load_frozen("tiny", str(saved), 0)
    change(saved, t5={"dropout_rate": 0.5, "initializer_factor": 3.0}, mask_ratio=0.9, revin_affine=None)
    load_frozen.cache_clear()
    after = load_frozen("tiny", str(saved), 0)
    assert before.pipeline.embed(x_enc=x).embeddings.equal(after.pipeline.embed(x_enc=x).embeddings)


@pytest.mark.parametrize(
    ("t5", "said"),
    [
        ({"layer_norm_epsilon": 1.0}, r"t5_config\.layer_norm_epsilon is 1\.0, expected 1e-06"),
        ({"feed_forward_proj": "gated-silu"}, "t5_config.feed_forward_proj is 'gated-silu', expected 'gated-gelu'"),
        ({"dense_act_fn": "relu"}, "t5_config.dense_act_fn is 'relu', expected 'gelu_new'"),
        ({"is_gated_act": False}, "t5_config.is_gated_act is False, expected True"),
        ({"relative_attention_max_distance": 20}, "relative_attention_max_distance is 20, expected 128"),
        ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16, expected 32"),
        ({"is_decoder": True}, "t5_config.is_decoder is True, expected False"),
        ({"num_hidden_layers": 1}, "t5_config.num_layers is 1, as transformers reads it, expected 2"),
        ({"head_dim": 16, "num_attention_heads": 4}, "t5_config.d_kv is 16, as transformers reads it, expected 32"),
        ({"layer_norm_epsilon": "tiny"}, "transformers cannot read t5_config .*layer_norm_epsilon"),
    ],
    ids=str,
)
def test_another_function_of_the_transformer_is_refused(saved, t5, said):
    change(saved, t5=t5)
    with pytest.raises(UserError, match=said) as caught:
        load_frozen("tiny", str(saved), 0)
    assert str(saved) in str(caught.value) and "config.json" in str(caught.value)


def test_an_absent_field_means_transformers_default(saved):
    drop(saved, "layer_norm_epsilon")
    assert load_frozen("tiny", str(saved), 0).num_values == 82_880, "1e-6 is the default"
    drop(saved, "feed_forward_proj")
    with pytest.raises(UserError, match="feed_forward_proj is 'relu', as transformers reads it, expected 'gated-gelu'"):
        read_config(saved, SIZES["tiny"])


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("patch_stride_len", 4, "8"),
        ("patch_stride_len", 8.0, "8"),
        ("revin_affine", True, "False"),
        ("value_embedding_bias", True, "False"),
        ("add_positional_embedding", False, "True"),
        ("add_positional_embedding", None, "True"),
    ],
)
def test_another_function_of_the_pipeline_is_refused(saved, name, value, wanted):
    change(saved, **{name: value})
    with pytest.raises(UserError, match=f"{name} is {value!r}, expected {wanted}.*published with the weights"):
        load_frozen("tiny", str(saved), 0)
