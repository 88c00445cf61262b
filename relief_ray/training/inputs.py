"""A client's windows as the first stage reads them, prepared once and cached per worker.

Standardising and preparing treat every window on its own, so the values do not depend on which rows are prepared
together: all at once, or those of a batch when it is drawn (``LazyRows``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relief_ray.core.client import ClientContext
from relief_ray.core.groups import GroupId, Params
from relief_ray.core.messages import NO_STATE, Assignment, ClientInfo
from relief_ray.core.streams import Streams
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, noise_inputs, zero_input

MIB = 2**20
CPU = torch.device("cpu")


def prepare(
    windows: WindowSet, modalities: Sequence[str], backbone: Backbone, limit_bytes: int | None = None
) -> ClientInputs:
    """Standardise the windows of ``modalities`` and turn them into the first stage's input.

    All windows now, or, where they would take more than ``limit_bytes``, those of a batch when it is drawn: the values
    are the same.
    """
    device = backbone.device
    labels = torch.from_numpy(windows.labels.astype("int64")).to(device)
    if len(windows) and not prepared_bytes(windows, modalities, backbone, limit_bytes):
        lazy = {m: LazyRows(windows=windows, modality=m, prepare=backbone.prepare, device=device) for m in modalities}
        return ClientInputs(inputs=lazy, labels=labels)
    loaded = windows.load(modalities)
    inputs = {m: backbone.prepare(m, torch.from_numpy(x)).contiguous().to(device) for m, x in loaded.items()}
    return ClientInputs(inputs=inputs, labels=labels)


def prepared_bytes(
    windows: WindowSet, modalities: Sequence[str], backbone: Backbone, limit_bytes: int | None = None
) -> int:
    """Bytes that ``prepare`` will keep in memory: those of all windows, or 0 above the limit."""
    nbytes = len(windows) * sum(_rows_bytes(zero_input(backbone, m)) for m in modalities)
    return nbytes if limit_bytes is None or nbytes <= limit_bytes else 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LazyRows:
    """One modality of a client's windows (n, ...); indexing reads, standardises and prepares the rows.

    Attributes:
        windows: the client's windows on disk.
        modality: the modality to read.
        prepare: the backbone's ``prepare``, (modality, raw windows (b, C, T)) -> the first stage's input.
        device: where the rows are put.
    """

    windows: WindowSet
    modality: str
    prepare: Callable[[str, Tensor], Tensor]
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
    """A client's windows, ready for the first stage.

    Attributes:
        inputs: modality -> (n, ...) float32, for the modalities that the client has.
        labels: (n,) int64, on the training device.
    """

    inputs: Mapping[str, Rows]
    labels: Tensor


def noise(backbone: Backbone, present: Collection[str], num_windows: int) -> ClientInputs:
    """Seeded noise in the data's shape, on the backbone's device; its labels go through the classes in turn."""
    inputs, device = noise_inputs(backbone, backbone.shape, num_windows), backbone.device
    labels = torch.arange(num_windows, device=device) % backbone.shape.num_classes
    return ClientInputs(inputs={m: x.to(device) for m, x in inputs.items() if m in present}, labels=labels)


def lone_client(
    backbone: Backbone, data: ClientInputs, trained: Iterable[GroupId] | None, epochs: int, start: Params
) -> tuple[ClientContext, Assignment]:
    """A client with these windows, and its task: to train the groups ``trained`` (None: all) from ``start``."""
    layout, present = backbone.layout, tuple(data.inputs)
    info = ClientInfo(id=0, name="client", device="device", modalities=present, num_windows=len(data.labels))
    context = ClientContext(info=info, round=1, layout=layout, start=start, state=NO_STATE, streams=Streams(seed=0))
    chosen = layout.select(trained)
    return context, Assignment(client=0, down=layout.select(), train=chosen, up=chosen, epochs=epochs)


class InputCache:
    """Cache of prepared windows by name, at most ``limit_bytes``; evicts the most recently used item.

    Rounds train the same clients in about the same order (not exactly: workers pull their work), so the item that was
    used last is likely to be needed last. One cache may serve a process's jobs one after the other, since the cells of
    a fold have the same windows; items are named by content then.
    """

    def __init__(self) -> None:
        """An empty cache; ``begin`` sets its limit."""
        self.limit_bytes = 0
        self._items: OrderedDict[str, ClientInputs] = OrderedDict()
        self._used, self._source = 0, object()

    def begin(self, limit_mib: int, source: object) -> InputCache:
        """Serve a job; what the last one had stays where both prepare the same clients' data alike (``source``)."""
        if source != self._source:
            self._items, self._used, self._source = OrderedDict(), 0, source
        self.limit_bytes = limit_mib * MIB
        return self

    def get(self, name: str, nbytes: Callable[[], int], load: Callable[[], ClientInputs]) -> ClientInputs:
        """Return the cached item, or load it after evicting others until its ``nbytes()`` fit."""
        if name in self._items:
            self._items.move_to_end(name)
            return self._items[name]
        needed = nbytes()
        while self._items and self._used + needed > self.limit_bytes:
            self._used -= _nbytes(self._items.popitem()[1])
        item = self._items[name] = load()
        self._used += _nbytes(item)
        return item


def _nbytes(item: ClientInputs) -> int:
    return sum(_rows_bytes(x) for x in item.inputs.values())


def _rows_bytes(rows: Rows) -> int:
    """Bytes that rows occupy between two uses: none where they are read lazily."""
    return rows.nbytes if isinstance(rows, Tensor) else 0
