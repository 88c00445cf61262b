"""Reads the ``config.json`` beside an encoder's tensors; it must describe the chosen size and MOMENT's function.

An encoder's hash covers its tensors alone; the same tensors under another normalisation, activation or position rule
are another function. Every field that decides the function must therefore have MOMENT's value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from relief_ray.models.moment.encoder import PATCH, Dimensions, plain_config
from relief_ray.support.errors import UserError

CONFIG = "config.json"
SHAPE = ("d_model", "d_ff", "d_kv", "num_heads", "num_layers")
# Compared as transformers reads them: with its defaults, and its alternative names (hidden_size, num_hidden_layers).
_T5_FIELDS = (
    *SHAPE,
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "layer_norm_epsilon",
    "feed_forward_proj",
    "dense_act_fn",
    "is_gated_act",
    "is_decoder",
)
# momentfm's defaults of absent keys; it has none for `patch_stride_len`.
_PIPELINE_FIELDS: Mapping[str, int | bool] = {
    "patch_stride_len": PATCH,
    "revin_affine": False,
    "value_embedding_bias": False,
    "add_positional_embedding": True,
}


def read_config(folder: Path, expected: Dimensions, repair: str = "fetch the weights again") -> dict[str, object]:
    """Read ``config.json`` and check it against the chosen size and MOMENT's function.

    ``repair``: advice in error messages on how to get a sound file.

    Raises:
        UserError: no such file, no JSON, or another encoder.
    """
    path = folder / CONFIG
    try:
        config: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
        t5 = config["t5_config"]
        if not isinstance(t5, dict):
            raise TypeError(f"t5_config is {t5!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"backbone.weights={folder}: {CONFIG} is missing or not MOMENT's ({error!r}); "
            f"expected a folder that momentfm's save_pretrained wrote: {CONFIG} and model.safetensors; {repair}"
        ) from error
    wanted = {k: getattr(expected, k) for k in SHAPE}
    shape = {k: t5.get(k) for k in wanted}
    # In the hub's files the pipeline's d_model is null and T5's counts.
    if shape != wanted or config.get("patch_len") != PATCH or config.get("d_model") not in (None, expected.d_model):
        raise UserError(
            f"backbone.weights={folder}: {CONFIG} describes {shape}, patches of {config.get('patch_len')}, d_model "
            f"{config.get('d_model')}; expected {wanted}, patches of {PATCH}; take the weights of this size or change "
            "backbone.size"
        )
    _refuse_other_functions(folder, config, t5, expected)
    return config


def _refuse_other_functions(
    folder: Path, config: Mapping[str, object], t5: Mapping[str, object], expected: Dimensions
) -> None:
    if other := [*_pipeline_differs(config), *_t5_differs(folder, t5, expected)]:
        raise UserError(
            f"backbone.weights={folder}: {CONFIG}: {'; '.join(other)}. With these tensors that is another function "
            f"than MOMENT's, under the same sha256; take the {CONFIG} that was published with the weights (an encoder "
            "that was trained otherwise cannot be used here)"
        )


def _pipeline_differs(config: Mapping[str, object]) -> Iterator[str]:
    for name, wanted in _PIPELINE_FIELDS.items():
        value = config.get(name, wanted)
        # momentfm reads a switch's truth value, and computes with the stride.
        is_same = bool(value) is wanted if isinstance(wanted, bool) else type(value) is int and value == wanted
        if not is_same:
            yield f"{name} is {value!r}, expected {wanted!r}"


def _t5_differs(folder: Path, t5: Mapping[str, object], expected: Dimensions) -> Iterator[str]:
    expected_t5 = plain_config(expected)["t5_config"]
    assert isinstance(expected_t5, dict)
    actual, wanted = _as_read(folder, t5), _as_read(folder, expected_t5)
    for name in _T5_FIELDS:
        if actual[name] != wanted[name]:
            how = "" if t5.get(name) == actual[name] else ", as transformers reads it"
            yield f"t5_config.{name} is {actual[name]!r}{how}, expected {wanted[name]!r}"


def _as_read(folder: Path, t5: Mapping[str, object]) -> Mapping[str, object]:
    from transformers import T5Config

    try:
        read = T5Config.from_dict(dict(t5))
        return {name: getattr(read, name) for name in _T5_FIELDS}
    except Exception as error:  # its checks have exceptions of their own, which differ between versions
        raise UserError(
            f"backbone.weights={folder}: {CONFIG}: transformers cannot read t5_config "
            f"({' '.join(str(error).split())}); expected the one that momentfm's save_pretrained wrote"
        ) from error
