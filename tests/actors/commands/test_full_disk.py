"""A disk that is full, or that is mounted anew for reading only, while a run writes: real file systems, root only."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds
from tests.actors.conftest import SMALL, Invoke, Start

DISK, ROUNDS = 4, 150
Disk = tuple[Path, Callable[[str], None]]


def can_mount() -> bool:
    """Whether a memory file system can be mounted here: root, and not in a container without that right."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_mount(), reason="mounting needs root")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounts a small file system, or changes it: its folder, and a function that takes mount's options."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)

    yield place, mount
    while subprocess.run(["umount", str(place)], capture_output=True).returncode == 0:
        pass


def words(folder: Path, rounds: int) -> list[str]:
    return ["run", "quick", "--out", str(folder), *SMALL, "--strategies=fedavg", f"--set=rounds={rounds}",
            "--set=runtime.mode=inline"]  # fmt: skip


def hashes(folder: Path) -> list[str]:
    (ledger,) = folder.glob("**/rounds.jsonl")
    return [r.model_sha256 for r in read_rounds(ledger.parent)]


def begun(start: Start, folder: Path) -> "subprocess.Popen[str]":
    """A run that has written its first round."""
    process = start(*words(folder, ROUNDS))
    until_s = time.monotonic() + 60
    while not any(ledger.stat().st_size for ledger in folder.glob("**/rounds.jsonl")):
        assert process.poll() is None and time.monotonic() < until_s, process.communicate()
        time.sleep(0.02)
    return process


def stopped(process: "subprocess.Popen[str]", reason: str) -> None:
    """It ends with the code of a disk, says why, and what to do."""
    output, error = process.communicate(timeout=60)
    told = " ".join((output + error).split())
    assert process.returncode == DISK, told
    assert reason in told and "Traceback" not in told and "resume" in told, told


def goes_on(folder: Path, invoke: Invoke, whole: Path) -> None:
    """Resumed, it has the bits of a run that nothing disturbed."""
    assert 1 <= len(hashes(folder)) < ROUNDS
    resumed = invoke("resume", folder)
    assert resumed.exit_code == 0, resumed.output
    undisturbed = invoke(*words(whole, ROUNDS))
    assert undisturbed.exit_code == 0, undisturbed.output
    assert hashes(folder) == hashes(whole)


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_space(
    disk: Disk, start: Start, invoke: Invoke, tmp_path: Path
) -> None:
    place, mount = disk
    mount("size=128m")
    process = begun(start, place / "run")
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1 << 16))
    stopped(process, "No space left on device")
    filler.unlink()
    goes_on(place / "run", invoke, tmp_path / "whole")


def test_a_disk_that_turns_read_only_is_named_and_the_run_goes_on_once_it_is_not(
    disk: Disk, start: Start, invoke: Invoke, tmp_path: Path
) -> None:
    place, mount = disk
    mount("size=128m")
    process = begun(start, place / "run")
    # A file system with files that are open for writing cannot be remounted; the same one, read-only, on top can be.
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
    stopped(process, "Read-only file system")
    subprocess.run(["umount", str(place)], check=True)
    goes_on(place / "run", invoke, tmp_path / "whole")
