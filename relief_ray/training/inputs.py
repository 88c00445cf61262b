"""Windows as the first stage reads them, prepared once and kept as far as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone
from relief_ray.training.reuse import zero_input
from relief_ray.training.rows import ClientInputs, LazyRows, held_bytes

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
