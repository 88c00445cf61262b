"""A run that was stopped, and whose ledger's last line has changed since: what commands say, and how it goes on."""

import shutil
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_rounds
from tests.actors.conftest import Invoke
from tests.sealed import change_run


@pytest.mark.ci
def test_a_damaged_last_line_is_named_by_every_reader_and_resume_goes_on_with_the_same_bits(
    invoke: Invoke, runs: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(runs, tmp_path / "quick"))
    folder = out / "fedavg-s0"
    change_run(folder, status="interrupted")
    data = bytearray((folder / "rounds.jsonl").read_bytes())
    data[-200] ^= 4
    (folder / "rounds.jsonl").write_bytes(data)
    for command in (("compare", folder), ("compare", out), ("explain", folder, "--round", 1, "--client", 0)):
        done = invoke(*command)
        shown = " ".join(done.output.split())
        assert done.exit_code == 2 and "rounds.jsonl: line 2, the last one, is damaged" in shown, command
    assert invoke("report", out, "--out", tmp_path / "page").exit_code == 0
    assert any("the last one, is damaged" in page.read_text() for page in (tmp_path / "page").glob("*.html"))
    done = invoke("resume", out)
    assert done.exit_code == 0, done.output
    assert "repaired: rounds.jsonl: line 2 was damaged; it was cut off" in " ".join(done.output.split())
    before = [r.model_sha256 for r in read_rounds(runs / "fedavg-s0")]
    assert [r.model_sha256 for r in read_rounds(folder)] == before
