"""`bootstrap.sh edge` as it is, in an environment whose pip and torch are small stand-ins: nothing is downloaded."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENDORS = "2.8.0a0+nv25.06"
# Notes what it is told, then does what a test puts there in place of an installation.
PIP = """
import os, pathlib, sys
here = pathlib.Path(os.environ["STAND_INS"])
with (here / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
if "--editable" in sys.argv and (here / "effect.py").exists():
    exec((here / "effect.py").read_text())
"""
TORCH = """
__version__ = "{version}"
class cuda:
    @staticmethod
    def is_available():
        return {sees_gpu}
def from_numpy(array):
    return array
"""


class Board:
    """A machine's Python environment with stand-ins, and a file that makes it a Jetson."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv = folder, folder / "venv"
        venv.create(self.venv, with_pip=False)
        (self.packages,) = self.venv.glob("lib/python*/site-packages")
        self.add("pip", "__main__.py", PIP)
        self.add("numpy", "__init__.py", "def ones(n): return [1.0] * n\n")
        (folder / "tegra").touch()

    def add(self, package: str, name: str, text: str) -> None:
        (self.packages / package).mkdir(exist_ok=True)
        (self.packages / package / name).write_text(text)

    def add_torch(self, version: str, sees_gpu: bool) -> None:
        self.add("torch", "__init__.py", TORCH.format(version=version, sees_gpu=sees_gpu))
        info = self.packages / "torch-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def effect(self, code: str) -> None:
        """What the installation of our package does to the environment."""
        (self.folder / "effect.py").write_text(code)

    def run(self, tegra: bool = True) -> "subprocess.CompletedProcess[str]":
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))} | {
            "RELIEF_VENV": str(self.venv), "STAND_INS": str(self.folder),
            "RELIEF_TEGRA": str(self.folder / ("tegra" if tegra else "absent")), "PYTHON": sys.executable,
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        return subprocess.run(["sh", "bootstrap.sh", "edge"], cwd=ROOT, env=env, capture_output=True, text=True)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_the_vendors_torch_is_kept_and_the_base_part_installed(board):
    board.add_torch(VENDORS, sees_gpu=True)
    done = board.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch     {VENDORS} is installed and kept" in done.stdout and f"torch {VENDORS} sees it" in done.stdout
    assert "cluster join" in done.stdout
    (call,) = board.calls
    assert call == f"install --progress-bar off --constraint {board.venv}/constraints.txt --editable ."
    pins = (board.venv / "constraints.txt").read_text().splitlines()
    assert [p for p in pins if p.startswith("torch==")] == [f"torch=={VENDORS}"]
    # Once more: nothing to do.
    assert "up to date" in board.run().stdout and len(board.calls) == 1


def test_a_torch_that_lost_the_gpu_is_refused(board):
    """What happens where an index's build replaces the vendor's."""
    board.add_torch(VENDORS, sees_gpu=True)
    lost = TORCH.format(version="2.13.0", sees_gpu=False)
    board.effect(f"pathlib.Path({str(board.packages / 'torch' / '__init__.py')!r}).write_text({lost!r})")
    done = board.run(tegra=False)
    assert done.returncode == 1 and "sees no GPU any more" in done.stderr and "docs/jetson.md" in done.stderr
    assert "up to date" not in board.run(tegra=False).stdout, "not noted as done"


def test_a_jetson_without_a_torch_that_sees_its_gpu_is_refused_before_anything_is_installed(board):
    done = board.run()
    assert done.returncode == 1 and "this Jetson has no torch" in done.stderr
    board.add_torch("2.13.0", sees_gpu=False)
    done = board.run()
    assert done.returncode == 1 and "torch 2.13.0" in done.stderr and "not the vendor's build" in done.stderr
    assert board.calls == []


def test_a_machine_without_gpu_takes_the_tested_torch(board):
    done = board.run(tegra=False)
    (pin,) = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    assert board.calls[0] == f"install --progress-bar off {pin}" and board.calls[1].endswith("--editable .")
    # The stand-in has installed nothing, and that is noticed.
    assert done.returncode == 1 and "does not work with the numpy here" in done.stderr


def test_a_numpy_that_torch_was_not_built_for_is_refused(board):
    board.add_torch(VENDORS, sees_gpu=True)
    board.add("torch", "__init__.py", TORCH.format(version=VENDORS, sees_gpu=True) + "from_numpy = None\n")
    done = board.run()
    assert done.returncode == 1 and "numpy<2" in done.stderr


def test_the_usage_names_it():
    done = subprocess.run(["sh", "bootstrap.sh", "board"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "demo|test|slow|setup|edge" in done.stderr
