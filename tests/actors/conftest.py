"""Tiny runs in this process: two rounds, ten-second strides, a backbone of a few hundred values."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from typer.testing import CliRunner, Result

from actors.cli.main import app

ROOT = Path(__file__).parents[2]
SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]
Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True, scope="session")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIEF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RELIEF_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def invoke() -> Iterator[Invoke]:
    """Runs a command line in this process."""

    def run(*args: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in args], prog_name="relief-ray")

    with pytest.MonkeyPatch.context() as patch:
        # Typer builds every command anew for each line, which takes longer than most lines themselves.
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield run


def hear_signals() -> None:
    """Undo `nohup` and the shell's `&` in a new process: one that begins with a signal ignored ignores it for good."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command line as a process of its own; what is left at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []
    # A process that starts a Ray cluster keeps its token: one started here would take it for a token of the user's.
    mine = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

    def begin(*args: object, preexec: Callable[[], None] = lambda: None) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "actors.cli.main", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k not in mine}
            | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: (hear_signals(), preexec()),
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def runs(invoke: Invoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs of four strategies on a fleet so slow that RELIEF has to refuse groups."""
    out = tmp_path_factory.mktemp("runs") / "quick"
    result = invoke(
        "run", "quick", "--out", out, "--strategies", "fedavg,relief,v1,v3", *SMALL, "--set=costs.utilisation=3e-7"
    )
    assert result.exit_code == 0, result.output
    return out
