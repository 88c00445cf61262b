"""Write a run's files by hand, sealed as the platform seals them: for tests that change what a run left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relief_ray.records.ledger import LineFormat
from relief_ray.records.run_folder import read_run
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.support import files
from relief_ray.support.files import LINE, sealed


def put_page(path: Path, content: object) -> None:
    """Write a sealed JSON file: a plan, an error, results."""
    path.write_bytes(files.page(json.dumps(content)))


def page(path: Path) -> Any:
    """Read a sealed JSON file without its seal."""
    return files.values_in(path.read_bytes())


def put_run(folder: Path, run: RunRecord | Mapping[str, object]) -> None:
    """Write ``run.json``."""
    text = run.model_dump_json() if isinstance(run, RunRecord) else json.dumps(run)
    (folder / "run.json").write_bytes(files.page(text))


def change_run(folder: Path, **changes: object) -> None:
    """Change fields of ``run.json``."""
    run = json.loads((folder / "run.json").read_text())
    run.pop("sha256")
    put_run(folder, run | changes)


def put_rounds(folder: Path, rounds: Iterable[RoundRecord | Mapping[str, object]]) -> None:
    """Write ``rounds.jsonl``, each line after the one before: records, or what lines hold beside their chain."""
    line_format = LineFormat.of(read_run(folder))
    end, lines = line_format.begin, list[bytes]()
    for each in rounds:
        if isinstance(each, RoundRecord):
            lines.append(line_format.line(each, end._replace(next_round=each.round)))
        else:
            lines.append(line_of({"run": line_format.run, "before": end.digest, **each}))
        end = line_format.after(lines[-1], end)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines))


def line_of(content: Mapping[str, object]) -> bytes:
    """A sealed line of any content."""
    return sealed(json.dumps(content, separators=(",", ":")).encode(), LINE) + b"\n"


def change_rounds(folder: Path, **changes: object) -> None:
    """Change fields of every line of ``rounds.jsonl``; a mapping is merged into the field that stands there."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in rounds:
        for name in ("sha256", "run", "before"):
            line.pop(name)
        for key, value in changes.items():
            line[key] = {**line.get(key, {}), **value} if isinstance(value, Mapping) else value
    put_rounds(folder, rounds)
