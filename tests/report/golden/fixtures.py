"""What the golden pages are of: results that the repository holds, and small runs that are computed for them.

Everything goes by the command line, so that the pages outlive the modules behind it. A computed run is short and trains
in this process; its figures are the same on every processor to the digits that are kept.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[3]
# A small network that learns in few steps, on devices so slow that RELIEF has to leave groups out.
SMALL = (*(f"--set=backbone.{key}=4" for key in ("conv1", "conv2", "steps", "fusion")),
         "--set=training.lr=0.03", "--set=training.batch_size=16", "--set=costs.utilisation=3e-7")  # fmt: skip
QUICK = ("run", "quick", *SMALL)
NARROW, WIDE = 80, 120
# Significant digits of figures that nothing but Python's arithmetic made of committed ones.
EXACT = 6

# Methods that end as they are told, in their second round: by an error, or as Ctrl-C ends a run.
ENDING = """
from dataclasses import replace

from my_method import MyMethod

import relief_ray as rr


class Failing(MyMethod):
    def build(self):
        return replace(super().build(), name="failing", allocate=fail)


class Stopping(MyMethod):
    def build(self):
        return replace(super().build(), name="stopping", allocate=stop)


def fail(state, context):
    if context.round == 2:
        raise RuntimeError("no more")
    return rr.allocate_everything(state, context)


def stop(state, context):
    if context.round == 2:
        raise KeyboardInterrupt
    return rr.allocate_everything(state, context)
"""


def relief_ray(*arguments: str, columns: int = WIDE, expect: int = 0) -> str:
    """What a command line prints on both streams; it is looked up where the installed program finds it."""
    entry = re.search(r'^relief-ray = "([\w.]+):', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert entry is not None
    app = importlib.import_module(entry[1]).app
    done = CliRunner().invoke(app, list(arguments), prog_name="relief-ray", env={"COLUMNS": str(columns)})
    assert done.exit_code == expect, f"relief-ray {' '.join(arguments)}: {done.exit_code}\n{done.output}"
    return done.output


@contextmanager
def place(folder: Path) -> Iterator[None]:
    """Make the folder current, with a cache of its own; nothing is drawn, which takes most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        patch.setenv("RELIEF_CACHE", str(folder / "cache"))
        patch.setenv("RELIEF_DATA", str(folder / "data"))
        patch.setitem(sys.modules, "matplotlib", None)
        try:
            yield
        finally:
            for name in ("my_data", "my_method", "ending"):
                sys.modules.pop(name, None)


def committed(*names: str) -> Callable[[], list[str]]:
    """Results that the repository holds, under short paths."""

    def link() -> list[str]:
        for name in names:
            Path(name).symlink_to(ROOT / "results" / name)
        return list(names)

    return link


def demo() -> list[str]:
    """The demo, shortened: three methods, claims, two folds, three replicates."""
    relief_ray("run", "demo", "--out=demo", "--folds=0-1", "--set=replicates=[0,1,2]", "--rounds=2", *SMALL, *_INLINE)
    return ["demo"]


_INLINE = ("--set=runtime.mode=inline", "--set=tracking.enabled=false", "--set=data.stride_s=10",
           "--set=training.epochs=1", "--set=evaluation.every=1")  # fmt: skip


def demo_committed() -> list[str]:
    """The same, as `report --commit` keeps it."""
    relief_ray("report", *demo(), "--out=full", "--commit=small", "--title=The demo, shortened")
    return ["small"]


def quick() -> list[str]:
    """Two methods and seeds within subjects."""
    relief_ray(*QUICK, "--out=quick", "--strategies=fedavg,relief", "--seeds=0,1")
    return ["quick"]


def own() -> list[str]:
    """A data set and a method of a user's own, beside FedAvg and two bounds; none has a bootstrap round."""
    relief_ray("new", "dataset", "my_data")
    relief_ray("new", "method", "my_method")
    relief_ray("data", "synth", "my_data:MY_DATA", "--out=data", "--scale=0.45")
    methods = "fedavg,my_method:MyMethod,full_only,central"
    data = ("--set=data.name=my_data:MY_DATA", "--set=data.stride_s=1", "--set=training.epochs=4")
    relief_ray(*QUICK, "--out=own", *data, f"--strategies={methods}", "--seeds=0,1")
    return ["own"]


def gaps() -> list[str]:
    """Runs that failed, were stopped by the user, were never begun, lost a file, or were never tested."""
    relief_ray("new", "method", "my_method")
    Path("ending.py").write_text(ENDING)
    relief_ray(*QUICK, "--out=gaps/plain", "--strategies=fedavg,relief,v1", "--seeds=0,1")
    shutil.rmtree("gaps/plain/v1-s1")
    Path("gaps/plain/relief-s1/run.json").write_text("{")
    relief_ray(*QUICK, "--out=gaps/failed", "--strategies=ending:Failing", expect=7)
    relief_ray(*QUICK, "--out=gaps/stopped", "--strategies=ending:Stopping,v3", expect=130)
    relief_ray(*QUICK, "--out=gaps/untested", "--strategies=v2", "--set=evaluation.parts=[validation]")
    return ["gaps"]


def testbed() -> list[str]:
    """The paper's testbed on made-up PAMAP2: its fleet, two of its boards, and other gaps between devices."""
    relief_ray("data", "synth", "pamap2", "--out=data", "--scale=0.12")
    usual = (*QUICK, "--set=data.name=pamap2", "--rounds=1", "--set=data.stride_s=5")
    relief_ray(*usual, "--out=testbed/fleet", "--set=fleet.preset=testbed", "--strategies=fedavg,relief,fedicu")
    boards = ("--set=fleet.preset=testbed", "--set=fleet.types={A: {share: 1}, B: {share: 0}, C: {share: 1}}")
    relief_ray(*usual, "--out=testbed/boards", *boards, "--strategies=fedavg")
    relief_ray(*usual, "--out=testbed/usual", "--strategies=fedavg,relief,v1")
    relief_ray(*usual, "--out=testbed/gap", "--set=fleet.gap=100", "--strategies=fedavg")
    return ["testbed"]


def search() -> list[str]:
    """Tries of a search, the values that were chosen, and the usual ones beside them."""
    methods = "--strategies=fedavg,relief"
    tried = ("--set=evaluation.parts=[validation]", "--set=choice={kind: try, parameters: [training.lr]}")
    for rate in ("0.003", "0.01", "0.03"):
        relief_ray(*QUICK, f"--out=search/{rate}", methods, *tried, f"--set=training.lr={rate}")
    frozen = "--set=choice={kind: tuned, parameters: [training.lr], at_edge: [training.lr], num_tries: 3}"
    relief_ray(*QUICK, "--out=search/tuned", methods, frozen, "--set=training.lr=0.01")
    relief_ray(*QUICK, "--out=search/usual", methods)
    return ["search"]


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """Results that are reported.

    Attributes:
        make: puts them into the current folder and names those to report.
        compared: what `compare` is given, if anything else; empty: it is not tried.
        pages: the outputs whose text is kept, beside all numbers.
        digits: significant digits of unrounded figures; fewer where training computes them.
        is_long: takes seconds.
    """

    make: Callable[[], list[str]]
    compared: tuple[str, ...] | None = None
    pages: tuple[str, ...] = ("report.md", "compare.txt")
    digits: int = EXACT
    is_long: bool = False

    @property
    def is_computed(self) -> bool:
        """Whether its runs are computed for it."""
        return self.digits < EXACT


EVERYTHING = (
    "report.txt", "report.json", "report.md", "index.txt",
    "compare.txt", "compare-narrow.txt", "compare-wide.txt", "comparison.md",
)  # fmt: skip
FIXTURES: Mapping[str, Fixture] = {
    "study": Fixture(make=committed("dsa_study"), is_long=True),
    "methods": Fixture(make=committed("dsa_methods"), pages=(), compared=(), is_long=True),
    "sensitivity": Fixture(make=committed("dsa_sensitivity"), pages=(), compared=()),
    "tuned": Fixture(make=committed("dsa_short", "dsa_tuned"), pages=(), compared=()),
    "backbone2": Fixture(make=committed("moment"), pages=(), compared=()),
    "frontier": Fixture(make=committed("frontier_test"), pages=("compare.txt",), is_long=True),
    "demo": Fixture(make=demo, pages=("report.txt", "report.md", "compare.txt"), digits=4, is_long=True),
    "quick": Fixture(make=quick, pages=EVERYTHING, digits=4),
    "own": Fixture(make=own, digits=4, is_long=True),
    "gaps": Fixture(
        make=gaps, compared=("gaps/plain/fedavg-s0", "gaps/plain/relief-s0", "gaps/stopped"), digits=4, is_long=True
    ),
    "testbed": Fixture(make=testbed, compared=(), pages=(), digits=4, is_long=True),
    "search": Fixture(make=search, compared=(), pages=(), digits=4, is_long=True),
}
