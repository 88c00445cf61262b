"""Reasons for the death of the process that runs rounds, as far as they are known; out of memory only with evidence."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from relief_ray.records.lock import LOCK_FILE

# What Ray writes where its own memory monitor ended a process. Its text on any other death lists the kernel's
# out-of-memory killer among things that may have happened, which shows nothing.
_BY_RAY: Final = ("OutOfMemoryError", "NODE_OUT_OF_MEMORY", "node running low on memory")
_COUNTERS: Final = Path("/proc/vmstat")
_MAX_TAIL = 3


def count_kills(counters: Path = _COUNTERS) -> int | None:
    """Processes that the kernel's out-of-memory killer has ended on this node since it started; None: not counted."""
    with suppress(OSError):
        counted = re.search(r"^oom_kill (\d+)$", counters.read_text(encoding="ascii"), flags=re.M)
        return int(counted[1]) if counted else None
    return None


def describe_death(folder: Path, trouble: str, kills_before: int | None, *, died: str, fewer: str) -> str:
    """Say why a run's process died, and those that tried again, as far as that is known, and where to look.

    Args:
        folder: the run's, which that process held.
        trouble: what Ray said.
        kills_before: ``count_kills`` before the run began.
        died: the deaths in words, such as ``died twice``.
        fewer: advice that leaves more memory to each process.
    """
    pid, kills = _pid(folder), count_kills()
    who = "its process" if pid is None else f"its process {pid}"
    if any(sign in trouble for sign in _BY_RAY):
        return f"{who} was ended by Ray because this node ran low on memory; {fewer}, or give the node more"
    if kills is not None and kills_before is not None and kills > kills_before:
        return (
            f"{who} died, and the kernel's out-of-memory killer ended {kills - kills_before} processes on this node "
            f"since the start (dmesg names them); {fewer}, or give the node more memory"
        )
    memory = "not known whether memory ran out" if kills is None else "no sign of a lack of memory on this node"
    tail = _last_words(pid)
    looked = f"its last words: {tail}" if tail else "it left no last words; see `dmesg` and Ray's logs of this node"
    return f"{who} {died} ({_brief(trouble)}); {memory}; {looked}"


def _pid(folder: Path) -> int | None:
    """The process that last held the folder's lock."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / LOCK_FILE).read_text(encoding="utf-8"))["pid"])
    return None


def _brief(trouble: str) -> str:
    """Ray's own name for the end of a process, else the last line of what it said."""
    if exit_type := re.search(r"Worker exit type: (\w+)", trouble):
        return f"Ray: {exit_type[1]}"
    lines = [line.strip() for line in trouble.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "Ray gave no reason"


def _last_words(pid: int | None) -> str:
    """The last lines that a process of this node wrote to its standard error, in Ray's logs."""
    import ray  # not before a command has set what Ray reads once

    node = getattr(ray._private.worker, "_global_node", None)
    if pid is None or node is None:
        return ""
    lines: list[str] = []
    for path in Path(node.get_logs_dir_path()).glob(f"worker-*-{pid}.err"):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            lines += [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(":")]
    return " / ".join(lines[-_MAX_TAIL:])
