"""Messages between processes: numpy arrays beside a pickle, never torch tensors.

Ray copies numpy arrays once, into shared memory, and hands them to the receiver as they lie there (read-only); tensors
it would pickle. The bits survive.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
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
class Packed(Generic[T]):
    """A value whose tensors are ``arrays``, looking into their memory; ``body`` holds the rest."""

    body: bytes
    arrays: tuple[Flat, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return len(self.body) + sum(a.nbytes for a in self.arrays)


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
    """Prepare a value of plain data and CPU tensors for the wire; send it before its tensors change."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(value)
    return Packed(body=file.getvalue(), arrays=tuple(t.detach().contiguous().numpy() for t in packer.tensors))


def unpack(packed: Packed[T], copy: bool = False) -> T:
    """Restore the value. Its tensors are views of the received, read-only arrays; with ``copy`` they are copies."""
    with warnings.catch_warnings():
        # Torch has no read-only tensors and warns; receivers copy out of these and never write.
        warnings.simplefilter("ignore")
        tensors = [torch.from_numpy(a) for a in packed.arrays]
    # Ray aligns what it puts into shared memory; small messages come as they fall.
    tensors = [t.clone() if copy or t.data_ptr() % ALIGN_BYTES else t for t in tensors]
    return cast(T, _Unpacker(packed.body, tensors).load())
