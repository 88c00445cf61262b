"""Folders from somebody else: no command writes outside of one, runs its code, hangs or crashes, whatever is in it.

The commands are those of the command line whose arguments are folders, so that a new one is tried too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import typer

from actors.cli.main import app
from actors.terminal.exit_codes import EXIT_CODES
from relief_ray.plugins.load import code_of
from tests.actors.conftest import SMALL, Invoke
from tests.sealed import change_rounds, page, put_page, put_run

# What else a command cannot do without; `{out}` is a folder that is not there yet.
NEEDED = {
    "explain": ["--round", "1", "--client", "0"],
    "fleet whatif": ["--windows", "100"],
    "model export": ["--out", "{out}"],
    "compare": ["--out", "{out}"],
    "grid freeze": ["--out", "{out}"],
    "reproduce": ["--out", "{out}"],
    "data describe": ["--stride-s", "30"],
}
# Of the processor, and of the clock: whoever waits for a pipe uses no processor.
LONGEST_S, HANGS_S = 10.0, 60.0
# Kinds that a report is written of: its figures take seconds.
REPORTED = ("plug-in as method", "f1 of 7", "names with HTML", "escapes in texts", "link as report")
# Escapes of a terminal, and marks that turn a text's direction.
# Of a report, the page's own.
SCRIPT = f"<script>\n{files('relief_ray.report.formats').joinpath('page.js').read_text(encoding='utf-8')}</script>"
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLUG_IN = """
from pathlib import Path

from relief_ray.strategies.fedavg import FedAvg

Path({mark!r}).write_text("imported")


class Mine(FedAvg):
    pass
"""


def folder_commands(command: Any = None, path: str = "") -> Iterator[str]:
    """Commands one of whose arguments is a folder of runs or of results."""
    command = typer.main.get_command(app) if command is None else command
    for name, inner in getattr(command, "commands", {}).items():
        yield from folder_commands(inner, f"{path} {name}".strip())
    words = " ".join(str(p.metavar) for p in command.params if not p.opts[0].startswith("-"))
    if any(word in words for word in ("DIR", "RUN", "RESULTS")):
        yield path


COMMANDS = sorted(set(folder_commands()))


def test_the_commands_that_take_a_folder_are_found() -> None:
    assert {"compare", "config", "explain", "fleet show", "model evaluate", "report", "resume", "sync"} <= set(COMMANDS)
    assert "strategies" not in COMMANDS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, invoke: Invoke) -> Path:
    """A study of one run, and its committed results in ``committed``."""
    out = tmp_path_factory.mktemp("sent") / "study"
    made = invoke("run", "quick", "--strategies", "fedavg", "--rounds", 1, "--out", out, *SMALL)
    assert made.exit_code == 0, made.output
    made = invoke("report", out, "--out", out.parent / "report", "--commit", out / "committed")
    assert made.exit_code == 0, made.output
    # With the store of its runs: to import MLflow and to make one takes seconds, which are no harm of a folder.
    made = invoke("sync", out)
    assert made.exit_code == 0, made.output
    return out


Change = Callable[[Path, Path], None]


def run_of(study: Path) -> Path:
    return study / "fedavg-s0"


def with_run(**changes: object) -> Change:
    def change(study: Path, outside: Path) -> None:
        run = page(run_of(study) / "run.json")
        config = run["config"] | changes.get("config", {})  # type: ignore[operator]
        put_run(run_of(study), run | changes | {"config": config})
        planned = page(study / "plan.json")
        planned["cells"][0]["config"] |= changes.get("config", {})
        put_page(study / "plan.json", planned)
        shared = page(study / "committed" / "cells.json")
        shared["cells"]["fedavg-s0"]["config"] |= changes.get("config", {})
        put_page(study / "committed" / "cells.json", shared)

    return change


def named(name: str) -> Change:
    """The only cell of the plan and of the committed results under another name."""

    def change(study: Path, outside: Path) -> None:
        planned = page(study / "plan.json")
        planned["cells"][0]["folder"] = name.format(outside=outside)
        put_page(study / "plan.json", planned)
        shared = page(study / "committed" / "cells.json")
        put_page(study / "committed" / "cells.json", shared | {"cells": {name: shared["cells"]["fedavg-s0"]}})

    return change


def written(*names: str, data: bytes) -> Change:
    def change(study: Path, outside: Path) -> None:
        for name in names:
            (study / name).write_bytes(data)

    return change


def pipe(*names: str) -> Change:
    def change(study: Path, outside: Path) -> None:
        for name in names:
            (study / name).unlink(missing_ok=True)
            os.mkfifo(study / name)

    return change


def device(name: str) -> Change:
    """A link to a device without an end."""

    def change(study: Path, outside: Path) -> None:
        (study / name).unlink()
        (study / name).symlink_to("/dev/zero")

    return change


def hole(name: str) -> Change:
    """A file with 20 GiB behind its end that take no disk."""

    def change(study: Path, outside: Path) -> None:
        os.truncate(study / name, 20 * 2**30)

    return change


def linked(name: str) -> Change:
    """A link out of the folder, in the place of a file or folder of it."""

    def change(study: Path, outside: Path) -> None:
        path, target = study / name, outside / Path(name).name
        if path.exists():
            shutil.move(path, target)
        else:
            target.mkdir()
        path.symlink_to(target)

    return change


def plug_in(section: str, key: str) -> Change:
    """A plug-in beside the record that names it, and the hash of its file there: right, as the sender wrote both."""

    def change(study: Path, outside: Path) -> None:
        source = PLUG_IN.format(mark=str(outside / "imported")).encode()
        (study.parent / "evil.py").write_bytes(source)
        own_sources = {"evil.py": hashlib.sha256(code_of(source)).hexdigest()}
        config = page(run_of(study) / "run.json")["config"][section] | {key: "evil:Mine"}
        with_run(config={section: config}, own_sources=own_sources)(study, outside)
        shared = page(study / "committed" / "cells.json")
        shared["cells"]["fedavg-s0"]["own_sources"] = own_sources
        put_page(study / "committed" / "cells.json", shared)

    return change


def suggested(study: Path, outside: Path) -> None:
    """A search whose plan names the file of its grid."""
    (study.parent / "evil.py").write_text(PLUG_IN.format(mark=str(outside / "imported")))
    search = {"sampler": "optuna", "tries": 1, "seed": 0, "target": "evil.py", "settings": [], "bounds": {}}
    put_page(study / "plan.json", page(study / "plan.json") | {"kind": "grid", "search": search})


def clock(study: Path, outside: Path) -> None:
    """A clock that the record's calibration names, not its configuration."""
    plug_in("costs", "planning_time")(study, outside)
    run = page(run_of(study) / "run.json")
    run["config"]["costs"]["planning_time"] = run["planning_model"]
    run["calibration"]["clocks"]["evil:Mine"] = {}
    put_run(run_of(study), run)


def scored(study: Path, outside: Path) -> None:
    change_rounds(run_of(study), metrics={"f1": 7.0})


def escapes(study: Path, outside: Path) -> None:
    """Names and words that clear a terminal, colour it, set its title and turn the direction of what follows."""
    run, text = page(run_of(study) / "run.json"), "\x1b]0;owned\x07\x1b[2J\x9b31m F1 99 %\u202e\u2066"
    method = run["method"] | {"name": text, "title": text, "kind": text}
    words = {"name": text, "method": method, "warnings": [text], "data_title": text, "note": text}
    put_run(run_of(study), run | words)
    planned = page(study / "plan.json")
    planned["name"] = text
    put_page(study / "plan.json", planned)
    put_page(run_of(study) / "error.json", {"error": text, "at": text, "traceback": text})


def html(study: Path, outside: Path) -> None:
    """Names and words with HTML in them, between backticks that mark nothing too, and with a picture of Markdown."""
    run, text = page(run_of(study) / "run.json"), "<script>alert(1)</script> ![x](http://elsewhere.invalid/y.png)"
    text = f"{text} q\\`<script>alert(1)</script>\\`"
    method = run["method"] | {"name": text, "title": text, "kind": text}
    put_run(run_of(study), run | {"name": text, "method": method, "warnings": [text], "data_title": text})


HOSTILE: Mapping[str, Change] = {
    "plug-in as method": plug_in("strategy", "name"),
    "plug-in as backbone": plug_in("backbone", "name"),
    "plug-in as data": plug_in("data", "name"),
    "plug-in as clock": plug_in("costs", "planning_time"),
    "plug-in as a plain name": with_run(config={"backbone": {"name": "evil"}}),
    "clock of a calibration": clock,
    "grid of a search": suggested,
    "huge number of rounds": with_run(config={"rounds": 10**18}),
    "huge seed": with_run(config={"seed": 10**400}),
    "f1 of 7": scored,
    "names with HTML": html,
    "deep json": written(
        "plan.json", "fedavg-s0/run.json", "fedavg-s0/rounds.jsonl", "committed/cells.json", data=b"[" * 200_000
    ),
    "deep plan": written("plan.json", data=b'{"a":' * 100_000),
    "pipe as run": pipe("fedavg-s0/run.json"),
    "pipe as ledger": pipe("fedavg-s0/rounds.jsonl"),
    "pipe as plan": pipe("plan.json"),
    "pipe as results": pipe("committed/cells.json"),
    "pipe as model": pipe("fedavg-s0/checkpoints/round-000001/state.safetensors"),
    "pipe as manifest": pipe("fedavg-s0/checkpoints/round-000001/manifest.json"),
    "pipe as store": pipe("mlflow.db"),
    "pipes elsewhere": pipe(
        *("claims.yaml", ".mirror.json", "fedavg-s0/.mirror.json"), *("fedavg-s0/error.json", "fedavg-s0/sync.json")
    ),
    "device as model": device("fedavg-s0/checkpoints/round-000001/state.safetensors"),
    "device as run": device("fedavg-s0/run.json"),
    "device as store": device("mlflow.db"),
    "hole as run": hole("fedavg-s0/run.json"),
    "hole as plan": hole("plan.json"),
    "hole as ledger": hole("fedavg-s0/rounds.jsonl"),
    "hole as model": hole("fedavg-s0/checkpoints/round-000001/state.safetensors"),
    "hole as results": hole("committed/cells.json"),
    "escapes in texts": escapes,
    "name with a zero byte": named("fedavg\0s0"),
    "name that leads up": named("../fedavg-s0"),
    "name of an absolute path": named("{outside}"),
    "link as report": linked("report"),
    "link as checkpoints": linked("fedavg-s0/checkpoints"),
    "link as run": linked("fedavg-s0/run.json"),
    "link as ledger": linked("fedavg-s0/rounds.jsonl"),
    "link as lock": linked("fedavg-s0/driver.lock"),
    "link as cell": linked("fedavg-s0"),
}


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


@contextmanager
def within(longest_s: float) -> Iterator[None]:
    """End what takes longer, with an error that no command catches."""

    def late(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def lines_of(command: str, study: Path, out: Path) -> Iterator[list[str]]:
    """The command on the study, on its run and on its committed results."""
    further = [word.format(out=out) for word in NEEDED.get(command, [])]
    if command == "reproduce":
        yield ["reproduce", f"{study / 'committed'}#fedavg-s0", *further]
        return
    for folder in (study, run_of(study), study / "committed"):
        yield [*command.split(), str(folder), *further]


@pytest.mark.ci
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_command_is_harmed(
    kind: str, finished: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, here = tmp_path / "outside", tmp_path / "here"
    outside.mkdir()
    shutil.copytree(finished, here / "study")
    (outside / "kept").write_text("as it was")
    HOSTILE[kind](here / "study", outside)
    monkeypatch.chdir(here)
    left_out = () if kind in REPORTED else ("report",)
    tried, before = [c for c in COMMANDS if c not in left_out], content(outside)
    for command in tried:
        for line in lines_of(command, here / "study", tmp_path / "out" / command):
            began_s = time.process_time()
            with within(HANGS_S):
                result = invoke(*line)
            took_s = time.process_time() - began_s
            assert took_s < LONGEST_S, (line, took_s)
            assert result.exit_code in dict(EXIT_CODES) and result.exit_code not in (1, 130), (line, result.output)
            assert "Traceback" not in result.output, (line, result.output)
            assert not UNSEEN.search(result.output), (line, result.output)
            assert content(outside) == before, line
    assert "evil" not in sys.modules
    texts = [p for f in (here, tmp_path / "out") for p in f.rglob("*") if p.suffix in (".md", ".html", ".csv", ".tex")]
    assert not [path for path in texts if UNSEEN.search(path.read_text())]
    pages = [p for folder in (here, tmp_path / "out") for p in folder.rglob("*") if p.suffix in (".md", ".html")]
    # Between backticks it is shown as it is; behind a backslash a backtick is a letter.
    shown = [path.read_text().replace(SCRIPT, "", 1) for path in pages]
    assert all("<script" not in re.sub(r"(?<![`\\])`[^`]+`(?!`)", "", text) for text in shown)
