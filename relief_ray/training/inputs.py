"""Windows as the first stage reads them, prepared once and kept as far as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, zero_input

# A client's prepared windows where they are too many to hold: read, standardised and prepared when rows are asked for.
#
# Standardising and preparing treat every window on its own, so the values do not depend on which rows come together.


Prepare = Callable[[str, Tensor], Tensor]

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LazyRows:
    """One modality of ``windows`` as the first stage reads it (n, ...); indexing computes the rows on ``device``."""

    windows: WindowSet
    modality: str
    prepare: Prepare
    device: torch.device = CPU

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Rows by slice or index (b,), float32 and contiguous."""
        index = torch.arange(len(self))[rows if isinstance(rows, slice) else rows.cpu()]
        (raw,) = self.windows.take(index.numpy()).load([self.modality]).values()
        # A copy in torch's own memory: kernels see the alignment that the gathered rows of a held tensor have.
        prepared = self.prepare(self.modality, torch.from_numpy(raw))
        return prepared.clone(memory_format=torch.contiguous_format).to(self.device)


Rows = Tensor | LazyRows


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientInputs:
    """A client's windows, ready for the first stage: modality -> (n, ...) float32, and labels (n,) int64."""

    inputs: Mapping[str, Rows]
    labels: Tensor


def held_bytes(rows: Rows) -> int:
    """Memory that rows take between two uses."""
    return rows.numel() * rows.element_size() if isinstance(rows, Tensor) else 0


MIB = 2**20


class InputCache:
    """Prepared windows by name, at most ``limit_mib`` of them.

    Rounds visit the same clients in about the same order (hosts ask for work, so it is not exactly the same): what was
    used last is likely to be needed last, and makes room.
    """

    def __init__(self, limit_mib: int) -> None:
        """An empty cache."""
        self.limit_bytes = limit_mib * MIB
        self._items: OrderedDict[str, ClientInputs] = OrderedDict()
        self._used = 0

    def get(self, name: str, nbytes: Callable[[], int], load: Callable[[], ClientInputs]) -> ClientInputs:
        """The cached item, or a fresh one; it will take ``nbytes``, and room for them is made before it is loaded."""
        if name in self._items:
            self._items.move_to_end(name)
            return self._items[name]
        needed = nbytes()
        while self._items and self._used + needed > self.limit_bytes:
            self._used -= _nbytes(self._items.popitem()[1])
        item = load()
        self._items[name] = item
        self._used += _nbytes(item)
        return item


def _nbytes(item: ClientInputs) -> int:
    return sum(held_bytes(x) for x in item.inputs.values())


def held_of(windows: WindowSet, modalities: Sequence[str], backbone: Backbone, limit_bytes: int | None = None) -> int:
    """Bytes that ``prepare`` will hold of them: all, or none above the limit."""
    nbytes = len(windows) * sum(held_bytes(zero_input(backbone, m)) for m in modalities)
    return nbytes if limit_bytes is None or nbytes <= limit_bytes else 0


def prepare(
    windows: WindowSet, modalities: Sequence[str], backbone: Backbone, limit_bytes: int | None = None
) -> ClientInputs:
    """Standardised windows of ``modalities``, turned into the first stage's input.

    All of them now, or where that would take more than ``limit_bytes``, those of a batch when it is drawn: same values.
    """
    device = backbone.device
    labels = torch.from_numpy(windows.labels.astype("int64")).to(device)
    if len(windows) and not held_of(windows, modalities, backbone, limit_bytes):
        lazy = {m: LazyRows(windows=windows, modality=m, prepare=backbone.prepare, device=device) for m in modalities}
        return ClientInputs(inputs=lazy, labels=labels)
    loaded = windows.load(modalities)
    inputs = {m: backbone.prepare(m, torch.from_numpy(x)).contiguous().to(device) for m, x in loaded.items()}
    return ClientInputs(inputs=inputs, labels=labels)
