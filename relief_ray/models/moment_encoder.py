"""momentfm's encoder as Backbone 2 holds it: no token table, no head, no dropout, nothing trainable."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from relief_ray.errors import UserError
from relief_ray.groups import all_finite

Size = Literal["small", "tiny"]
PATCH = 8
# Rows of MOMENT's table of positions: no series has more patches.
POSITIONS = 5000
LONGEST = PATCH * POSITIONS
INSTALL = "pip install 'relief-ray[moment]' && pip install --no-deps momentfm==0.1.4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """An encoder's shape, in the words of its T5 configuration; ``vocab_size`` is the unused token table's length."""

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


def require_momentfm() -> None:
    """Fails with the command that helps where one of the packages is absent or broken."""
    try:
        import momentfm
        import peft  # noqa: F401
    except ImportError as error:
        raise UserError(f"backbone moment_lora needs momentfm and PEFT ({error}); install them: {INSTALL}") from None
    except Exception as error:  # what a package of another version runs into while it is imported
        raise UserError(
            f"backbone moment_lora: momentfm or PEFT is installed, but cannot be imported ({error!r}); install them "
            f"anew: {INSTALL}"
        ) from error
    assert momentfm.MOMENTPipeline


@contextmanager
def enough_memory(size: Size) -> Iterator[None]:
    """Turns an allocation that failed into words."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("memory|alloc", str(error), re.I):
            raise
        raise UserError(
            f"backbone.size={size}: not enough memory to load the encoder ({error}); "
            "lower runtime.num_hosts or take backbone.size=tiny"
        ) from error


def plain_config(dimensions: Dimensions) -> dict[str, object]:
    """A pipeline's configuration as the hub's ``config.json`` has it, for weights of our own."""
    t5: dict[str, object] = {
        "model_type": "t5",
        "d_model": dimensions.d_model,
        "d_ff": dimensions.d_ff,
        "d_kv": dimensions.d_kv,
        "num_heads": dimensions.num_heads,
        "num_layers": dimensions.num_layers,
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


def build_pipeline(config: Mapping[str, object]) -> nn.Module:
    """Momentfm's pipeline without token table, dropout and gradient checkpointing, ready to embed."""
    from momentfm import MOMENTPipeline

    given = config["t5_config"]
    assert isinstance(given, Mapping)
    # One row instead of 32,128: a series of patches never looks a token up.
    t5 = {**given, "vocab_size": 1, "pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0}
    whole = {**config, "t5_config": t5, "enable_gradient_checkpointing": False, "randomly_initialize_backbone": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a head is not pretrained: there is none
        pipeline = MOMENTPipeline(whole, model_kwargs={"task_name": "embedding"})
        pipeline.init()
    pipeline.encoder.embed_tokens = nn.Identity()
    # The counter knows matrix products; the fused kernel's name differs between versions.
    pipeline.encoder.config._attn_implementation = "eager"
    built: nn.Module = pipeline.eval()
    return built


def assemble(
    config: Mapping[str, object], tensors: Mapping[str, Tensor], source: str, again: str = "fetch the weights again"
) -> nn.Module:
    """The pipeline on top of mapped tensors, all frozen. ``again``: how to come by sound ones.

    Raises:
        UserError: momentfm cannot use the configuration; tensors are missing, have other shapes, or are not finite
            floating-point numbers.
    """
    pipeline = _on_meta(config, source, again)
    expected = pipeline.state_dict()
    missing = [k for k in expected if k not in tensors]
    wrong = [k for k in expected if k in tensors and tensors[k].shape != expected[k].shape]
    if missing or wrong:
        raise UserError(
            f"{source}: {len(missing)} tensors are missing ({', '.join(missing[:3])}), {len(wrong)} have "
            f"another shape ({', '.join(wrong[:3])}); expected all {len(expected)} of an encoder; {again}"
        )
    if strange := [f"{k}: {tensors[k].dtype}" for k in expected if not _is_usable(tensors[k])]:
        raise UserError(
            f"{source}: {len(strange)} tensors are no finite floating-point numbers ({', '.join(strange[:3])}); "
            f"expected the weights as they were trained, not quantised and without NaN; {again}"
        )
    kept = {k: tensors[k].to(torch.float32) for k in expected}
    pipeline.load_state_dict(kept, assign=True)
    return pipeline.requires_grad_(False)


def _on_meta(config: Mapping[str, object], source: str, again: str) -> nn.Module:
    try:
        with torch.device("meta"):
            return build_pipeline(config)
    except (AttributeError, KeyError, TypeError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"{source}: momentfm cannot build an encoder from the config.json beside it ({error!r}); expected the one "
            f"that its save_pretrained wrote; {again}"
        ) from error


def _is_usable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and all_finite(tensor)
