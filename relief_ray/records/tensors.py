"""The safetensors format, written piece by piece: nothing is copied, whatever shares memory with whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

# In the format's own order: what needs the strictest alignment comes first in a file.
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
ALIGNMENT = 8


def file_pieces(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A file with ``tensors``, to be written one piece after the other: the header, then each tensor's bytes.

    The same bytes as ``safetensors.torch.save`` makes of copies. Nobody may change the tensors meanwhile.

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
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
