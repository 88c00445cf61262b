"""The state file: the format's own bytes, made without a copy of what is written."""

import pytest
import safetensors.torch
import torch

from relief_ray.records.checkpoint import DTYPES, tensor_pieces


def every_type():
    make = torch.Generator().manual_seed(0)
    names = ("b", "a", "\N{LATIN SMALL LETTER E WITH ACUTE}/x", "client.10/A", 'client.9/z"q\\')
    tensors = {f"{n}.{i}": (5 * torch.randn(3, 4, generator=make)).to(d) for i, d in enumerate(DTYPES) for n in names}
    return tensors | {"scalar": torch.ones(()), "none": torch.empty(0, dtype=torch.int64), "flat": torch.empty(2, 0)}


def joined(tensors):
    return b"".join(bytes(piece) for piece in tensor_pieces(tensors))


def test_the_bytes_are_those_of_safetensors():
    tensors = every_type()
    assert joined(tensors) == safetensors.torch.save(tensors)
    assert joined({}) == safetensors.torch.save({})


def test_views_of_one_vector_and_a_tensor_named_twice_are_written_as_they_are():
    """The library refuses both; a copy of each would make the same file."""
    flat = torch.arange(12.0)
    tensors = {"head": flat[:5], "tail": flat[5:], "again": flat[:5], "columns": flat.view(3, 4).T}
    assert joined(tensors) == safetensors.torch.save({k: t.contiguous().clone() for k, t in tensors.items()})


def test_nothing_is_copied():
    tensor = torch.zeros(1000)
    _, piece = tensor_pieces({"a": tensor})
    tensor += 1.0
    assert bytes(piece) == torch.ones(1000).numpy().tobytes()


def test_a_type_that_the_format_lacks_is_named():
    with pytest.raises(ValueError, match=r"tensors of \['torch.complex64'\], expected one of \['torch.int64'"):
        joined({"a": torch.zeros(2, dtype=torch.complex64)})
