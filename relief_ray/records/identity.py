"""Content hashes of configurations, sources, layouts and models, and facts about the machine."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import ServerState
from relief_ray.plugins.load import ONLY_A_RECORD, OWN_CODE, digests, modules_of
from relief_ray.records.schema import Machine, RunFacts, config_value
from relief_ray.support.errors import UserError, clipped
from relief_ray.support.files import cache_root, sha256_of
from relief_ray.support.masking import mask_text, redact
from relief_ray.support.process import num_cores, text_in

PACKAGES = ("relief_ray", "actors")
# Keys of a configuration that decide no result: ids and comparisons of cells leave them out.
NOT_DECIDING = frozenset({"name", "runtime", "tracking", "choice", "replicate"})

# Keys of addresses.
_ADDRESSES = ("runtime.address", "runtime.mirror", "tracking.uri")
_SOURCE_SUFFIXES = frozenset({".py", ".json", ".yaml", ".toml"})


def _canonical_json(value: JsonValue) -> str:
    """Write a JSON value in the form that is hashed: sorted keys, no blanks.

    Raises:
        UserError: NaN or infinity, which JSON cannot hold.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UserError(f"configuration: {error}, expected plain JSON; replace NaN or infinity by a number") from error


def config_hash(config: Mapping[str, JsonValue]) -> str:
    """Hash a configuration's identity (sha256), credentials masked first: they are no part of an experiment."""
    return sha256_of(_canonical_json(redact(config)))


def cell_id(config: Mapping[str, JsonValue], data_digest: str) -> str:
    """Return the id of a result: 16 hexadecimal digits of configuration and data."""
    return sha256_of(f"{config_hash(config)}\n{data_digest}")[:16]


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Hash the sources of the installed packages (``PACKAGES``, where present), once per process."""
    return digest_files((name, root) for name in PACKAGES if (root := _package_root(name)) is not None)


def digest_files(roots: Iterable[tuple[str, Path]]) -> str:
    """Hash names and contents of all source files below each ``(label, folder)``."""
    total = hashlib.sha256()
    for label, root in roots:
        for path in sorted(p for p in root.rglob("*") if p.suffix in _SOURCE_SUFFIXES and p.is_file()):
            content = path.read_bytes()
            total.update(f"{label}/{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def _package_root(name: str) -> Path | None:
    # find_spec of a top-level package does not import it: the library must not load the runtime.
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def other_program(run: RunFacts) -> str | None:
    """Describe how this program differs from the one that began the run, where that can change bits; None: not at all.

    ``sources 1a2b3c4d5e6f there, 6f5e4d3c2b1a here; torch ...``.
    """
    before, now = run.own_sources, _files_here(run.config)
    pairs = {
        "sources": (run.source_digest[:12], source_digest()[:12]),
        "torch": (run.machine.torch, str(torch.__version__)),
        "architecture": (run.machine.architecture, platform.machine()),
        **{file: (before.get(file, "nothing")[:12], now.get(file, "nothing")[:12]) for file in before | now},
    }
    lines = [f"{name} {there} there, {here} here" for name, (there, here) in pairs.items() if there != here]
    return "; ".join(lines) or None


def note_begun(settings: Mapping[str, JsonValue], own_sources: Mapping[str, str]) -> None:
    """Note in the cache that this user began a run with these settings and files of code (sha256 by name).

    The addresses that the settings name are noted too.
    """
    addresses = ({key: address} for key, address in addresses_in(settings).items())
    for named in filter(None, (own_sources, *addresses)):
        path = _note_of(settings, named)
        with suppress(OSError):  # a resume then asks for `--own-code`, or for the address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def _note_of(settings: Mapping[str, JsonValue], named: Mapping[str, str]) -> Path:
    deciding: JsonValue = {key: value for key, value in redact(settings).items() if key not in NOT_DECIDING}
    return cache_root() / "begun" / sha256_of(_canonical_json([deciding, dict(named)]))


def verdict_note(target: str, own_sources: Mapping[str, str]) -> Path:
    """The file in the cache for conformance's last verdict on an import path, while its file has this sha256.

    Its first line: the files that were judged, with their sha256s; then the verdict.
    """
    code = own_sources.get(f"{target.partition(':')[0].replace('.', '/')}.py")
    return cache_root() / "conformance" / sha256_of(_canonical_json([target, code]))


def verdict_on(target: str, own_sources: Mapping[str, str]) -> str:
    """Conformance's last verdict on an import path whose files are all among these; empty where there is none."""
    with suppress(OSError, ValueError):
        judged, _, verdict = verdict_note(target, own_sources).read_text(encoding="utf-8").partition("\n")
        return verdict if json.loads(judged).items() <= own_sources.items() else ""
    return ""


def addresses_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """Addresses that a configuration names, without credentials, by key: runs or records go there."""
    named = {key: config_value(settings, key) for key in _ADDRESSES}
    return {key: mask_text(address) for key, address in named.items() if isinstance(address, str)}


def foreign(settings: Mapping[str, JsonValue], typed: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The addresses in a record, by key, that this user neither typed, now or when he began the run, nor knows.

    ``typed``: those of today, by key.
    """
    named = addresses_in(settings).items()
    return {k: a for k, a in named if typed.get(k) != a and not _note_of(settings, {k: a}).exists()}


def why_foreign(key: str, address: str) -> str:
    """The beginning of a message on a ``foreign`` address."""
    return (
        f"{key} = {clipped(address)}: only the record names this address, you did not begin this run on this machine, "
        "expected one that you name"
    )


def why_closed(
    settings: Mapping[str, JsonValue],
    own_sources: Mapping[str, str] | None,
    *,
    here: Mapping[str, str] | None = None,
    otherwise: str | None = "",
) -> str:
    """Why the code that a record names is not imported.

    Empty where it may be: this user began a run with these settings and files on this machine, or lets the code in. A
    right hash proves nothing by itself, since whoever sent the record wrote it too.

    Args:
        settings: the record's.
        own_sources: sha256 by file of the code as it has them; None: it has none.
        here: those of the files of today, by default of the modules that ``settings`` name.
        otherwise: what to type so that other files are taken, as the end of a sentence; empty: there is nothing; None:
            they are taken.
    """
    here = _files_here(settings) if here is None else here
    there = here if own_sources is None else own_sources
    if gone := [file for file in there if not here]:
        return (
            f"no module {Path(gone[0]).stem!r} in the current folder ({Path.cwd()}) or on PYTHONPATH; start from the "
            "folder that holds it, or set PYTHONPATH to that folder"
        )
    for file in sorted({*there, *here}):
        old, new = there.get(file, "nothing")[:12], here.get(file, "nothing")[:12]
        if old != new and otherwise is not None:
            return f"the record has other code in {file}: {old} there, {new} here; put that file back{otherwise}"
    if here and (OWN_CODE.get() or _note_of(settings, there).exists()):
        return ""
    return ONLY_A_RECORD


def changed_files(run: RunFacts) -> tuple[str, ...]:
    """Return the user's own files that have changed since the run was begun; files that are not here are not judged."""
    here = _files_here(run.config)
    return tuple(name for name, digest in run.own_sources.items() if here.get(name, digest) != digest)


def other_processor(run: RunFacts) -> str | None:
    """Name both processors where they differ: ``AMD EPYC there, Intel Xeon here``; None where they do not.

    Libraries add up in another order on another processor, so bits differ; a run may go on all the same.
    """
    there, here = run.machine.cpu, machine_facts().cpu
    return None if there == here else f"{there} there, {here} here"


def _files_here(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Sha256 by file of the user's strategy, backbone, dataset, clock and metrics that a stored configuration names."""
    metrics = config.get("metrics")
    names = [
        config_value(config, key) for key in ("strategy.name", "backbone.name", "data.name", "costs.planning_time")
    ]
    return digests(modules_of([*names, *(metrics if isinstance(metrics, list) else [])]))


def machine_facts() -> Machine:
    """Describe this machine, as far as it decides bits and speed."""
    return Machine(
        cpu=cpu_name(Path("/proc/cpuinfo")),
        architecture=platform.machine(),
        system=platform.system(),
        num_cores=num_cores(),
        num_threads=torch.get_num_threads(),
        python=".".join(map(str, sys.version_info[:3])),
        torch=str(torch.__version__),
        numpy=np.__version__,
    )


def cpu_name(cpuinfo: Path) -> str:
    """Return the processor's name; for boards without one in ``cpuinfo`` the architecture."""
    lines = text_in(cpuinfo).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash names, types, shapes and bits of tensors, whatever their order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def state_sha256(state: ServerState) -> str:
    """Hash the server's whole state: models, tensors and facts."""
    parts = {f"model {name}": tensors_sha256(params) for name, params in state.models.items()}
    parts["tensors"] = tensors_sha256(state.tensors)
    parts["facts"] = json.dumps(state.facts, sort_keys=True)
    return sha256_of(json.dumps(parts, sort_keys=True))


def layout_digest(layout: GroupLayout) -> str:
    """Hash the groups, their tensors and their order: a checkpoint fits a backbone with the same digest."""
    rows = [[g.id, g.role, [[t.name, *t.shape, t.kind, t.offset] for t in g.tensors]] for g in layout]
    return sha256_of(json.dumps(rows))


def commit() -> str | None:
    """Return the commit of this program's checkout, marked where files differ from it; None outside of one."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):
        # Without this, a package inside another repository would name that one's commit.
        if (root / ".git").exists():
            changes = git("status", "--porcelain", "--untracked-files=no")
            return git("rev-parse", "--short", "HEAD") + ("+changes" if changes else "")
    return None


def flat(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The configuration's values by dotted path; lists stay one value.

    The order of a table's rows counts, as in ``fleet.types``: their names are a value beside those in the rows.
    """
    values: dict[str, JsonValue] = {}
    for key, value in sorted(config.items()):
        if not isinstance(value, dict):
            values[key] = value
            continue
        if value and all(isinstance(row, dict) for row in value.values()):
            values[key] = list(value)
        values |= {f"{key}.{path}": inner for path, inner in flat(value).items()}
    return values
