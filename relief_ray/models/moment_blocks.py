"""The stages of one MOMENT encoder: momentfm's own modules, one transformer block each, batch first.

Legend for shapes: B batch, C channels, T samples, P patches of 8 samples, D features. Every channel is a sequence of
its own; what leaves the encoder is the mean over channels and observed patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relief_ray.errors import UserError
from relief_ray.models.moment_encoder import LONGEST, PATCH, POSITIONS


def samples(window: int, pad_to: int | None) -> int:
    """How many samples an encoder is given: the window's own, or those of the padded one.

    Raises:
        UserError: no whole patches, padded to less than there is, or more than MOMENT has positions for.
    """
    if window % PATCH:
        below = window - window % PATCH
        raise UserError(
            f"backbone moment_lora: windows of {window} samples; expected a multiple of the patch length {PATCH}, "
            "which no backbone.pad_to makes of them (padding stands before the window, in whole patches); take a "
            f"dataset whose windows have {f'{below} or ' if below else ''}{below + PATCH} samples, or backbone=cnn"
        )
    if pad_to is not None and pad_to < window:
        raise UserError(
            f"backbone moment_lora: backbone.pad_to={pad_to} is below the windows' {window} samples; expected {window} "
            "or more; raise it or remove it"
        )
    if window > LONGEST:
        raise UserError(
            f"backbone moment_lora: windows of {window} samples; expected at most {LONGEST}, where MOMENT's table of "
            f"{POSITIONS} positions ends; take a dataset with shorter windows, or backbone=cnn"
        )
    return pad_to or window


def observed(window: int, length: int) -> Tensor:
    """(length,) ones where a window of ``window`` samples lies; the padding stands before it, as MOMENT has it."""
    mask = torch.zeros(length)
    mask[length - window :] = 1.0
    return mask


class Patches(nn.Module):
    """Normalises each channel of a window, cuts it into patches and embeds them."""

    def __init__(self, pipeline: nn.Module, mask_T: Tensor) -> None:
        """``mask_T``: ``observed``; shares the pipeline's frozen parameters."""
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
    """One T5 block: self-attention and feed-forward network, with whatever adapters sit in it."""

    def __init__(self, block: nn.Module, bias_1HPP: Tensor) -> None:
        """``bias_1HPP``: the frozen position bias of all blocks, minus infinity where a padded patch would be read."""
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
