"""A seeded fuzzer of command lines: words, numbers and paths that a user might type, for commands that compute nothing.

``python -m tests.fuzzing_commands 3000`` tries more than the tests do, and prints whatever is no answer.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from actors.cli.main import app
from tests.fuzzing import SCALARS, Hang, Tally, bounded, setting

ROOT = Path(__file__).resolve().parents[1]
# What is in angle brackets is drawn. A command that would compute has words with which it does not.
COMMANDS = [
    "run <preset> --dry-run <run>", "run <preset> --dry-run <run> <run>", "run <path> --dry-run <run>",
    "grid <grid> --dry-run <run>", "grid <path> --dry-run <run>", "grid status <path>",
    "grid freeze <path> --out <new>", "config <preset> <word>", "config <path>", "config <word>", "strategies <word>",
    "strategies <word> <option>", "compare <path> <option>", "compare <path> <path> --setting <word>",
    "compare <path> --out <new>", "ls", "ls <path>", "ls <path> <option>",
    "explain <path> --round <number> --client <number>",
    "explain <path> --round <word> --client <word>", "reproduce <path>", "reproduce <path>#<word>",
    "model describe <preset>", "model describe <path>", "model export <path> --out <new>", "fleet show <preset>",
    "fleet show <path>", "fleet show <word>", "fleet whatif <path> --windows <number>",
    "fleet whatif <preset> --epochs <number>", "fleet whatif <path> --fleet <path>", "data list <option>",
    "data verify <word>", "data describe <word>", "data verify <path>",
    "data shard <word> --client <number> --out <new>", "plan-study --sd <number>",
    "plan-study --sd <number> --power <number>", "plan-study <path>", "new method <word>", "new dataset <word>",
    "new <word> <word>", "sync <path>", "resume <none>", "resume <word>", "cluster join <word> --type <word> --print",
    "cluster head --bind <word> --print", "submit --dry-run -- <word> <word>", "<word>", "<word> <word>", "<option>",
    "<command> <option>", "<command>",
]  # fmt: skip
OPTIONS = [
    "--json",
    "--wide",
    "--bibtex",
    "--version",
    "--help",
    "-h",
    "--",
    "-",
    "--bogus",
    "--set",
    "--no-json",
    "--json=x",
]
METHODS = ["relief", "fedavg", "v1", "relif", "my.module:Mine"]
NUMBERS = ["0", "1", "2", "7", "-1", "1.5", "1e9", "99999999999999999999", "nan", "inf", "0x10", "", "1_0", "٣"]
RANGES = ["0", "0-4", "[0]", "1,2", "4-0", "0-999999999", "a-b", "-1", ",", "[", "0,0", "0-1,1-2", "[0", "0--4"]


def make_places(folder: Path) -> list[str]:
    """Make files and folders for the paths: no file, wrong files, an empty folder, one whose files are damaged."""
    contents = {
        "empty.yaml": b"", "list.yaml": b"- 1\n", "bytes.yaml": bytes(range(256)), "good.yaml": b"rounds: 2\n",
        "grid.py": b"GRID = 3\n", "raises.py": b"1 / 0\n", "syntax.py": b"def (\n", "data.csv": b"a,b\n1\n",
        "cells.json": b"{}", "damaged/run.json": b"{", "other/run.json": b"[]", "blank/run.json": b"",
        "plan/plan.json": b'{"cells": 3}',
    }  # fmt: skip
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "nothing").mkdir()
    tiny = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
    done = CliRunner().invoke(app, ["run", "quick", "--out", str(folder / "runs"), *tiny])
    assert done.exit_code == 0, done.output
    shutil.copytree(ROOT / "results" / "smoke", folder / "results")
    wrong = [*contents, "damaged", "other", "blank", "plan", "nothing", "none", ".", "..", "~", "x" * 300, "damaged/"]
    wrong += ["/dev/zero", "/dev/null", "/proc/self/mem", "s3://", "file://none"]
    return [*wrong, *["runs", "runs/relief-s0", "results"] * 4]


def word_for(rng: random.Random, kind: str, places: list[str]) -> list[str]:
    """Words for a kind in angle brackets."""
    if kind == "run":
        options = ["--set", "--set", "--strategies", "--seeds", "--folds", "--rounds", "--jobs", "--placement"]
        option = rng.choice(options)
        drawn = {
            "--set": setting, "--strategies": lambda r: ",".join(r.choices([*METHODS, *SCALARS], k=r.randrange(1, 4))),
            "--seeds": lambda r: r.choice(RANGES), "--folds": lambda r: r.choice(RANGES),
        }.get(option, lambda r: r.choice(NUMBERS))  # fmt: skip
        return [option, drawn(rng)]
    if kind == "preset":
        return [rng.choice(["quick", "demo", "moment_tiny", "quik", *SCALARS])]
    pools = {
        "grid": ["smoke", "smok", *SCALARS], "path": places, "number": NUMBERS, "option": OPTIONS, "none": ["none"],
        "word": [*SCALARS, *METHODS, "training", "strategy.gamma", "dsa_mini", "a", "A", "gamma"], "new": ["made"],
        "command": sorted({line.split()[0] for line in COMMANDS if not line.startswith("<")}),
    }  # fmt: skip
    return [rng.choice(pools[kind])]


def lines_of(seed: int, number: int, places: list[str]) -> Iterator[list[str]]:
    """So many command lines."""
    rng = random.Random(seed)
    for _ in range(number):
        words: list[str] = []
        for part in rng.choice(COMMANDS).split():
            drawn = part
            if part.startswith("<") and part.endswith(">") and "#" not in part:
                words += word_for(rng, part[1:-1], places)
                continue
            for kind in ("path", "word"):
                if f"<{kind}>" in drawn:
                    drawn = drawn.replace(f"<{kind}>", word_for(rng, kind, places)[0])
            words.append(drawn)
        yield words


def fault(words: list[str]) -> tuple[str, str]:
    """Outcome of a command line, and what is wrong with its answer; empty where nothing is."""
    done = CliRunner().invoke(app, words, prog_name="relief-ray")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "tracebacks", "".join(traceback.format_exception(done.exception, limit=-4))
    if "/proc/self/mem" in " ".join(words) and done.exit_code == 4:
        return "refused", ""  # reading it is an error of a device, as far as this program can know
    if " Usage: relief-ray" in done.output:
        return ("taken" if done.exit_code == 0 else "refused"), ""  # a group alone, or help
    if "Traceback" in done.output or "internal error" in done.output:
        return "tracebacks", done.output[-1500:]
    if done.exit_code not in (0, 2, 7):
        return "codes", f"exit code {done.exit_code}: {done.output[-500:]}"
    said = done.stderr.partition("\n")[2] if done.stderr.startswith("NOTE: read as ") else done.stderr
    if done.exit_code and not said.startswith("error: "):
        return "poor refusals", done.output[-500:]
    return ("refused" if done.exit_code else "taken"), ""


def fuzz_commands(seed: int, number: int, folder: Path, limit_s: float = 15.0) -> Tally:
    """Try so many command lines in a folder, which is the working folder meanwhile."""
    tally, before, searched = Tally(), Path.cwd(), list(sys.path)
    # One level down: `..` is ours as well.
    folder = folder / "in"
    folder.mkdir()
    places = make_places(folder)
    try:
        os.chdir(folder)
        for words in lines_of(seed, number, places):
            try:
                with bounded(limit_s):
                    outcome, wrong = fault(words)
            except Hang as error:
                outcome, wrong = "hangs", str(error)
            tally.counts[outcome] += 1
            if wrong:
                tally.wrong.append(f"relief-ray {' '.join(words)[:300]!r}: {wrong}")
    finally:
        os.chdir(before)
        # A user's file becomes importable from the working folder; processes that are started later inherit that.
        sys.path[:] = searched
    return tally


def main() -> int:
    """Fuzz with the number of command lines and the seed that the command line has; 1: one has no answer."""
    number, seed = (int(word) for word in (*sys.argv[1:], "500", "0")[:2])
    with tempfile.TemporaryDirectory() as folder:
        tally = fuzz_commands(seed, number, Path(folder))
    print(dict(tally.counts))
    print("\n".join(tally.wrong[:60]))
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
