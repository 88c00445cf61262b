"""Writer of safetensors files: piece by piece, without a copy of the tensors in memory.

The library's own writer takes all tensors as one string of bytes first. Files are read by the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

# In the order of the safetensors format: types with the strictest alignment come first in a file.
DTYPES: Mapping[torch.dtype, str] = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_ALIGNMENT = 8


def tensor_pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file piece by piece, without copies: the header, then each tensor.

    They are those of ``safetensors.torch.save``. The tensors must not change meanwhile.

    Raises:
        ValueError: a tensor of a type that the format, or this list, does not have.
    """
    if unknown := {str(t.dtype) for t in tensors.values()} - {str(d) for d in DTYPES}:
        raise ValueError(f"tensors of {sorted(unknown)}, expected one of {[str(d) for d in DTYPES]}")
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    order = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name.encode()))
    yield _header({name: tensors[name] for name in order})
    for name in order:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    facts: dict[str, dict[str, str | list[int]]] = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        facts[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
