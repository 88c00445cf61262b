"""Messages between processes: numpy arrays beside a pickle, never torch tensors.

Ray copies numpy arrays once, into shared memory, and hands them to the receiver as they lie there (read-only); tensors
it would pickle. The bits survive.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor

from relief_ray.core.codec import cut, decode, decode_rows, encode, encode_rows
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import Assignment
from relief_ray.plugins.blame import take_as_copies, take_as_users
from relief_ray.plugins.load import SourceFile, digests, sources
from relief_ray.server.reduction import Sums
from relief_ray.support.errors import UserError
from relief_ray.support.files import cache_root, disk_errors, folder_atomic, sha256_of
from relief_ray.training.forward_plan import Values
from relief_ray.training.job import Job
from relief_ray.training.local_step import Received

# Sends values that refer to a user's own classes to other processes, together with their source files.
#
# A worker needs no copy of a user's files and cannot run another version of them.


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class WithSources:
    """A pickled value and the files that it takes to read it."""

    modules: tuple[str, ...]
    files: tuple[SourceFile, ...]
    body: bytes


def put(value: T, modules: tuple[str, ...]) -> ray.ObjectRef[T]:
    """Put a value where every process finds it, with the files of the user's ``modules``; read it with ``get``."""
    files = sources(modules)
    if not files:
        return ray.put(value)
    with_sources = WithSources(modules=modules, files=files, body=cloudpickle.dumps(value))
    return cast("ray.ObjectRef[T]", ray.put(with_sources))


def get(ref: ray.ObjectRef[T]) -> T:
    """Fetch the value; the user's modules are put in place first.

    Raises:
        UserError: this process finds other modules of these names.
    """
    value: object = ray.get(ref)
    if isinstance(value, WithSources):
        install(value.modules, value.files)
        value = cloudpickle.loads(value.body)
    return cast(T, value)


def install(modules: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Make ``modules`` importable here, from exactly these files.

    Raises:
        UserError: other files are imported under these names, even so.
    """
    take_as_users(modules)
    wanted = {file.name: file.sha256 for file in files}
    if all(name in sys.modules for name in modules) and digests(modules) == wanted:
        return
    folder = cache_root() / "modules" / sha256_of(repr(sorted(wanted.items())))[:16]
    _write(folder, files)
    take_as_copies({str(folder / file.name): file.origin for file in files})
    for name in [name for name in sys.modules if _place_of(name) in wanted]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for name in modules:
        importlib.import_module(name)
    if (digests_here := digests(modules)) != wanted:
        places = [str(getattr(sys.modules[name], "__file__", name)) for name in modules]
        raise UserError(
            f"{', '.join(places)}: other sources ({digests_here}) than the driver's ({wanted}); rename the module"
        )


def _write(folder: Path, files: Sequence[SourceFile]) -> None:
    """Write the files into a folder that appears complete, since other workers of this node may write the same."""
    if folder.exists():
        return
    with disk_errors(folder, "write the driver's sources"), folder_atomic(folder) as part:
        for file in files:
            (part / file.name).parent.mkdir(parents=True, exist_ok=True)
            (part / file.name).write_bytes(file.content)


def _place_of(module: str) -> str:
    """Path of a loaded module's file below its import folder; empty for a module without file."""
    file, path = getattr(sys.modules[module], "__file__", None), module.replace(".", "/")
    if file is None:
        return ""
    return f"{path}/__init__.py" if Path(file).name == "__init__.py" else f"{path}.py"


# A client's own model and update as the codec writes them, where each client has a worker.


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedModel:
    """What one client receives of a server's model, and what it has beside that."""

    view: str
    payload: Tensor
    """``codec.encode`` of its download, uint8."""
    rows: Tensor
    """``codec.encode_rows`` of what comes down in place of absent sensors' networks, uint8; empty: nothing does."""
    own: Params
    """Groups of which it has values from before: its own, or the initial ones."""
    known: Values
    """Outputs of absent sensors' networks that do not come down: with ``zero_feature`` they are 0."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the outputs in ``rows``."""

    @classmethod
    def of(
        cls, job: Job, task: Assignment, start: Params, received: Received, charged: Collection[str]
    ) -> EncodedModel:
        """``start``, ``received``, ``charged``: as ``training.executor.ClientRuns`` has them."""
        layout, down = job.layout, task.down
        came = {name: received.rows[name] for name in charged}
        return cls(
            view=task.view,
            payload=_as_tensor(encode(layout, down, cut(layout, down, start), job.trainer.wire.down) if down else b""),
            rows=_as_tensor(encode_rows(came) if came else b""),
            own={j: value for j, value in start.items() if not (j in down and down[j].whole)},
            known={name: row for name, row in received.rows.items() if name not in came},
            shapes={name: tuple(row.shape) for name, row in came.items()},
        )

    def start(self, layout: GroupLayout) -> Params:
        """The client's model: what came down, over what it had."""
        params = dict(self.own)
        selection, values = decode(layout, self.payload) if len(self.payload) else ({}, {})
        for j, part in selection.items():
            if part.whole:
                params[j] = values[j]
            else:
                params[j] = self.own[j].clone()
                params[j][layout.indices(j, part)] = values[j]
        return params

    def received(self) -> Received:
        """What stands for absent sensors' networks."""
        came = decode_rows(self.rows.numpy().tobytes()) if len(self.rows) else {}
        rows = {name: row.view(self.shapes[name]) for name, row in came.items()}
        return Received(rows={**self.known, **rows}, nbytes=len(self.rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSums:
    """Sums over one client, whose values are those of its encoded update."""

    sums: Sums
    """Without values."""
    payload: Tensor
    """``codec.encode`` of the update, uint8."""

    @classmethod
    def of(cls, sums: Sums, payload: bytes) -> EncodedSums:
        """Leave the values out of a client's sums."""
        return cls(sums=_with_values(sums, defaultdict(lambda: _NOTHING)), payload=_as_tensor(payload))

    def decoded(self, layout: GroupLayout) -> Sums:
        """The sums with the values of the update."""
        return _with_values(self.sums, decode(layout, self.payload)[1])


_NOTHING = torch.empty(0)


def _with_values(sums: Sums, values: Params) -> Sums:
    return {
        bucket: {j: replace(part, plain=values[j], weighted=values[j]) for j, part in parts.items()}
        for bucket, parts in sums.items()
    }


def _as_tensor(payload: bytes) -> Tensor:
    """A payload as a tensor of bytes (n,), which ``pack`` sends beside its pickle."""
    return torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())


Flat = NDArray[np.generic]
# Where a tensor starts decides how its products are summed: aligned as torch's own allocations, results are the same.
ALIGN_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed(Generic[T]):
    """A value whose tensors' bytes are ``arrays``, looking into their memory; ``body`` holds the rest."""

    body: bytes
    arrays: tuple[Flat, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return len(self.body) + sum(a.nbytes for a in self.arrays)


class _Packer(pickle.Pickler):
    """Makes numpy arrays of tensors, which protocol 5 keeps out of the pickle; the same tensor stays one."""

    def reducer_override(self, obj: object) -> Any:
        """Everything but a tensor is pickled as it is."""
        return (torch.from_numpy, (obj.detach().contiguous().numpy(),)) if isinstance(obj, Tensor) else NotImplemented


def pack(value: T) -> Packed[T]:
    """Prepare a value of plain data and CPU tensors for the wire; send it before its tensors change.

    Raises:
        TypeError: a tensor has a type that numpy lacks (bfloat16).
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Packer(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return Packed(body=file.getvalue(), arrays=tuple(np.asarray(buffer.raw()) for buffer in buffers))


def unpack(packed: Packed[T], copy: bool = False) -> T:
    """Restore the value. Its tensors are views of the received, read-only arrays; with ``copy`` they are copies."""
    with warnings.catch_warnings():
        # Torch has no read-only tensors and warns; receivers copy out of these and never write.
        warnings.simplefilter("ignore")
        # Ray aligns what it puts into shared memory; small messages come as they fall.
        arrays = [
            torch.from_numpy(a).clone().numpy() if copy or a.ctypes.data % ALIGN_BYTES else a for a in packed.arrays
        ]
        return cast(T, pickle.loads(packed.body, buffers=arrays))
