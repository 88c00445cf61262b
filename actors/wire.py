"""What travels between processes: one flat numpy array per element type, never torch tensors.

Ray hands numpy arrays to the receiver without copying them (and read-only); tensors it copies. The bits survive.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
Flat = NDArray[np.generic]
# Where a tensor starts decides how its products are summed: aligned as torch's own allocations, results are the same.
ALIGN_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a tensor lies in the flat array of its element type."""

    dtype: str
    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed(Generic[T]):
    """A value whose tensors lie in ``arrays``; ``body`` holds the rest."""

    body: bytes
    places: tuple[Place, ...]
    arrays: Mapping[str, Flat]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return len(self.body) + sum(a.nbytes for a in self.arrays.values())


class _Packer(pickle.Pickler):
    """Takes tensors out and leaves numbers; the same tensor gets the same number."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: object) -> int | None:
        """The number of a tensor; everything else stays where it is."""
        if not isinstance(obj, Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpacker(pickle.Unpickler):
    """Puts tensors back."""

    def __init__(self, body: bytes, tensors: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(body))
        self._tensors = tensors

    def persistent_load(self, pid: object) -> Tensor:
        """The tensor of that number."""
        assert isinstance(pid, int)
        return self._tensors[pid]


def pack(value: T) -> Packed[T]:
    """Prepares a value of plain data and CPU tensors for the wire."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    arrays = [t.detach().contiguous().numpy() for t in packer.tensors]
    places, sizes = _places(arrays)
    flat: dict[str, Flat] = {name: np.zeros(size, np.dtype(name)) for name, size in sizes.items()}
    for place, array in zip(places, arrays, strict=True):
        flat[place.dtype][place.start : place.start + array.size] = array.reshape(-1)
    return Packed(body=file.getvalue(), places=tuple(places), arrays=flat)


def _places(arrays: Sequence[Flat]) -> tuple[list[Place], dict[str, int]]:
    sizes: dict[str, int] = {}
    places = []
    for array in arrays:
        start = sizes.get(array.dtype.name, 0)
        places.append(Place(dtype=array.dtype.name, start=start, shape=array.shape))
        step = max(1, ALIGN_BYTES // array.itemsize)
        sizes[array.dtype.name] = -(-(start + array.size) // step) * step
    return places, sizes


def unpack(packed: Packed[T], own: bool = False) -> T:
    """The value again. Its tensors look into the received, read-only arrays; with ``own`` each has its own memory."""
    with warnings.catch_warnings():
        # Torch has no read-only tensors and warns; receivers copy out of these and never write.
        warnings.simplefilter("ignore")
        flat = {name: torch.from_numpy(array) for name, array in packed.arrays.items()}
    tensors = []
    for place in packed.places:
        tensor = flat[place.dtype][place.start : place.start + prod(place.shape)].view(place.shape)
        tensors.append(tensor.clone() if own else tensor)
    return cast(T, _Unpacker(packed.body, tensors).load())
