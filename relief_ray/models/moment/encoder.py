"""MOMENT's encoder: its stages as modules, and momentfm's pipeline without token table, head and dropout, frozen.

Every channel is a sequence of its own; a feature is the mean over channels and observed patches.

Legend for shapes: B batch, C channels, T samples, P patches of 8 samples, D features, H heads.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from relief_ray.core.groups import all_finite
from relief_ray.support.errors import UserError
from relief_ray.support.files import cache_root
from relief_ray.support.text import install, pip

Size = Literal["small", "tiny"]

# Samples of a patch, and rows of MOMENT's table of positions: no series has more patches.
PATCH = 8
POSITIONS = 5000
LONGEST = PATCH * POSITIONS

_INSTALL = f"{install('moment')} && {pip('--no-deps momentfm==0.1.4')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """An encoder's shape, in the terms of its T5 configuration.

    Attributes:
        d_model: width of the hidden states D.
        d_ff: inner width of the feed-forward networks.
        d_kv: width of a head's keys and values.
        num_heads: attention heads H.
        num_layers: transformer blocks.
        vocab_size: rows of the token table, which is never used.
    """

    d_model: int
    d_ff: int
    d_kv: int
    num_heads: int
    num_layers: int
    vocab_size: int


SIZES: Mapping[Size, Dimensions] = {
    "small": Dimensions(d_model=512, d_ff=1024, d_kv=64, num_heads=6, num_layers=8, vocab_size=32128),
    "tiny": Dimensions(d_model=64, d_ff=128, d_kv=32, num_heads=2, num_layers=2, vocab_size=0),
}


def observed(window: int, pad_to: int | None) -> Tensor:
    """Mask of an encoder's input (``pad_to`` or, without it, ``window`` samples): ones for the window's.

    The padding is before them, as in MOMENT.

    Raises:
        UserError: no whole patches, padded to less than the window, or more than MOMENT has positions for.
    """
    if window % PATCH:
        below = window - window % PATCH
        raise UserError(
            f"backbone moment_lora: windows of {window} samples; expected a multiple of the patch length {PATCH}, "
            "which no backbone.pad_to makes of them (padding stands before the window, in whole patches); set "
            f"data.window_s so that windows have {f'{below} or ' if below else ''}{below + PATCH} samples (samples "
            "divided by the dataset's rate), or take backbone=cnn"
        )
    if pad_to is not None and pad_to < window:
        raise UserError(
            f"backbone moment_lora: backbone.pad_to={pad_to} is below the windows' {window} samples; expected {window} "
            "or more; raise it or remove it"
        )
    if window > LONGEST:
        raise UserError(
            f"backbone moment_lora: windows of {window} samples; expected at most {LONGEST}, where MOMENT's table of "
            f"{POSITIONS} positions ends; set a shorter data.window_s, or take backbone=cnn"
        )
    mask = torch.zeros(pad_to or window)
    mask[-window:] = 1.0
    return mask


class Patches(nn.Module):
    """Normalises each channel of a window, cuts it into patches and embeds them."""

    def __init__(self, pipeline: nn.Module, mask_T: Tensor) -> None:
        """Share the frozen parameters of ``pipeline``; ``mask_T``: see ``observed``."""
        super().__init__()
        names = ("normalizer", "tokenizer", "patch_embedding")
        self.normalizer, self.tokenizer, self.embedding = (pipeline.get_submodule(name) for name in names)
        self.register_buffer("mask_T", mask_T)

    def forward(self, x_BCT: Tensor) -> Tensor:
        """(B, C, window) -> (B, C, P, D)."""
        mask: Tensor = self.get_buffer("mask_T")
        padded = nn.functional.pad(x_BCT, (len(mask) - x_BCT.shape[2], 0))
        mask_BT = mask.expand(len(x_BCT), -1)
        normal = self.normalizer(x=padded, mask=mask_BT, mode="norm")
        patches = self.tokenizer(x=torch.nan_to_num(normal, nan=0.0, posinf=0.0, neginf=0.0))
        embedded: Tensor = self.embedding(patches, mask=mask_BT)
        return embedded


class EncoderBlock(nn.Module):
    """One T5 block: self-attention and feed-forward network, with the adapters injected into them."""

    def __init__(self, block: nn.Module, bias_1HPP: Tensor) -> None:
        """``bias_1HPP``: the frozen position bias of all blocks, the lowest float32 at padded patches."""
        super().__init__()
        self.attention, self.feed_forward = block.get_submodule("layer.0"), block.get_submodule("layer.1")
        self.register_buffer("bias_1HPP", bias_1HPP)

    def forward(self, h_BCPD: Tensor) -> Tensor:
        """(B, C, P, D) -> (B, C, P, D)."""
        rows = h_BCPD.flatten(0, 1)
        mixed: Tensor = self.attention(rows, attention_mask=None, position_bias=self.get_buffer("bias_1HPP"))[0]
        out: Tensor = self.feed_forward(mixed)
        return out.view(h_BCPD.shape)


class Feature(nn.Module):
    """``h_m``: the last normalisation, the mean over channels and observed patches."""

    def __init__(self, norm: nn.Module, mask_T: Tensor) -> None:
        """``norm``: the encoder's frozen final layer norm."""
        super().__init__()
        self.norm = norm
        seen = mask_T.view(-1, PATCH).amin(1)
        self.register_buffer("weight_P1", (seen / seen.sum())[:, None])

    def forward(self, h_BCPD: Tensor) -> Tensor:
        """(B, C, P, D) -> (B, D)."""
        normal: Tensor = self.norm(h_BCPD)
        return (normal.mean(1) * self.get_buffer("weight_P1")).sum(1)


@torch.no_grad()
def position_bias(pipeline: nn.Module, mask_T: Tensor) -> Tensor:
    """(1, H, P, P): T5's relative position bias, which block 0 holds for all, and the padding mask."""
    seen = mask_T.view(-1, PATCH).amin(1)
    first: Any = pipeline.get_submodule("encoder.block.0.layer.0.SelfAttention")
    bias: Tensor = first.compute_bias(len(seen), len(seen))
    return (bias + torch.where(seen > 0, 0.0, torch.finfo(torch.float32).min)).contiguous()


def repair_advice(folder: Path) -> str:
    """Advice on how to replace a folder's damaged encoder."""
    return f"delete {folder}: it is drawn again" if is_drawn_here(folder) else "fetch the weights again"


def is_drawn_here(folder: Path) -> bool:
    """Whether the folder is the cache's place of a drawn encoder, whatever is left of its files."""
    in_cache = folder.resolve().parent == (cache_root() / "moment").resolve()
    return in_cache and re.fullmatch(r"(?:small|tiny)-random-\d+-.*", folder.name) is not None


def assemble(config: Mapping[str, object], tensors: Mapping[str, Tensor], source: Path) -> nn.Module:
    """Build the pipeline on top of memory-mapped tensors, all frozen.

    ``source``: the tensors' file, for messages.

    Raises:
        UserError: momentfm cannot use the configuration; tensors are missing, have other shapes, or are not finite
            floating-point numbers.
    """
    pipeline, repair = _on_meta(config, source), repair_advice(source.parent)
    expected = pipeline.state_dict()
    missing = [k for k in expected if k not in tensors]
    wrong = [k for k in expected if k in tensors and tensors[k].shape != expected[k].shape]
    if missing or wrong:
        raise UserError(
            f"{source}: {len(missing)} tensors are missing ({', '.join(missing[:3])}), {len(wrong)} have "
            f"another shape ({', '.join(wrong[:3])}); expected all {len(expected)} of an encoder; {repair}"
        )
    if strange := [f"{k}: {tensors[k].dtype}" for k in expected if not _is_usable(tensors[k])]:
        raise UserError(
            f"{source}: {len(strange)} tensors are no finite floating-point numbers ({', '.join(strange[:3])}); "
            f"expected the weights as they were trained, not quantised and without NaN; {repair}"
        )
    kept = {k: tensors[k].to(torch.float32) for k in expected}
    pipeline.load_state_dict(kept, assign=True)
    return pipeline.requires_grad_(False)


def _on_meta(config: Mapping[str, object], source: Path) -> nn.Module:
    try:
        with torch.device("meta"):
            return build_pipeline(config)
    except (AttributeError, KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{source}: momentfm cannot build an encoder from the config.json beside it ({error!r}); expected the one "
            f"that its save_pretrained wrote; {repair_advice(source.parent)}"
        ) from error


def _is_usable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and all_finite(tensor)


def build_pipeline(config: Mapping[str, object]) -> nn.Module:
    """Build momentfm's pipeline without token table, dropout and gradient checkpointing, ready to embed."""
    from momentfm import MOMENTPipeline

    t5_config = config["t5_config"]
    assert isinstance(t5_config, Mapping)
    # One row instead of 32,128: the encoder of a time series never reads the token table.
    t5 = {**t5_config, "vocab_size": 1, "pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0}
    changed = {**config, "t5_config": t5, "enable_gradient_checkpointing": False, "randomly_initialize_backbone": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it warns that a head is not pretrained; there is none
        pipeline = MOMENTPipeline(changed, model_kwargs={"task_name": "embedding"})
        pipeline.init()
    pipeline.encoder.embed_tokens = nn.Identity()
    # The FLOP counter knows matrix products; the fused kernel's name differs between versions.
    pipeline.encoder.config._attn_implementation = "eager"
    built: nn.Module = pipeline.eval()
    return built


def plain_config(dimensions: Dimensions) -> dict[str, object]:
    """A pipeline's configuration with the fields of the hub's ``config.json``, for randomly drawn weights."""
    t5: dict[str, object] = {
        "model_type": "t5",
        **{name: getattr(dimensions, name) for name in SHAPE},
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
    }
    return {
        "task_name": "reconstruction",
        "model_name": "MOMENT",
        "transformer_type": "encoder_only",
        "transformer_backbone": "google/flan-t5-small",
        "d_model": dimensions.d_model,
        "seq_len": 512,
        "patch_len": PATCH,
        "patch_stride_len": PATCH,
        "t5_config": t5,
    }


def require_momentfm() -> None:
    """Check that momentfm and PEFT can be imported.

    Raises:
        UserError: one is absent or broken; the message has the install command.
    """
    try:
        import momentfm
        import peft  # noqa: F401
    except ImportError as error:
        raise UserError(f"backbone moment_lora needs momentfm and PEFT ({error}); install them: {_INSTALL}") from None
    except Exception as error:  # what a package of another version runs into while it is imported
        raise UserError(
            f"backbone moment_lora: momentfm or PEFT is installed, but cannot be imported ({error!r}); install them "
            f"anew: {_INSTALL}"
        ) from error
    assert momentfm.MOMENTPipeline


@contextmanager
def enough_memory(size: Size) -> Iterator[None]:
    """Turn a failed allocation into a ``UserError`` that says what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("memory|alloc", str(error), re.I):
            raise
        raise UserError(
            f"backbone.size={size}: not enough memory to load the encoder ({error}); "
            "lower runtime.num_hosts or take backbone.size=tiny"
        ) from error


# Reads the ``config.json`` beside an encoder's tensors; it must describe the chosen size and MOMENT's function.
#
# An encoder's hash covers its tensors alone; the same tensors under another normalisation, activation or position rule
# are another function. Every field that decides the function must therefore have MOMENT's value.


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


def read_config(folder: Path, expected: Dimensions) -> dict[str, object]:
    """Read ``config.json`` and check it against the chosen size and MOMENT's function.

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
            f"expected a folder that momentfm's save_pretrained wrote: {CONFIG} and model.safetensors; "
            f"{repair_advice(folder)}"
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
    if other := [*_pipeline_differs(config), *_t5_differs(folder, t5, expected)]:
        raise UserError(
            f"backbone.weights={folder}: {CONFIG}: {'; '.join(other)}. With these tensors that is another function "
            f"than MOMENT's, under the same sha256; take the {CONFIG} that was published with the weights (an encoder "
            "that was trained otherwise cannot be used here)"
        )
    return config


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
