import subprocess
from dataclasses import replace

import pytest

from benchmarks.engine import peers
from benchmarks.engine.eager import Sequential
from benchmarks.engine.full import SAME_WORK
from benchmarks.engine.product import deviation
from benchmarks.engine.scenario import Scenario, write


@pytest.mark.slow
def test_what_cannot_be_installed_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PEERS", (replace(peers.PEERS[0], requirement="no/such/folder"),))
    ready, notes = peers.install(tmp_path, ["flower"])
    assert ready == {} and notes["flower"].startswith("not installed (") and "no/such/folder" in notes["flower"]
    assert f"{tmp_path} must be a folder" in notes["flower"]
    assert peers.install(tmp_path, []) == ({}, {"flower": "left out"})
    assert peers.describe(ready, notes)["flower_version"] is None


def test_a_running_ray_is_not_seen(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    seen = peers.environment("/tmp/x")
    assert "RAY_ADDRESS" not in seen and seen["OMP_NUM_THREADS"] == "1"


def test_peers_keep_freed_memory_as_our_processes_do(scenario, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho trim $MALLOC_TRIM_THRESHOLD_ mmap $MALLOC_MMAP_THRESHOLD_ >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(RuntimeError, match="trim 134217728 mmap 33554432"):
        peers.segment(peers.Installed(peer=peers.PEERS[0], python=python, version="1"), scenario.folder, 1)


def test_children_keep_their_byte_code(monkeypatch):
    """Whoever measures with it switched off would time a compiler."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in peers.environment("/tmp/x")


def test_a_failed_run_says_why(scenario, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    python.chmod(0o755)
    broken = peers.Installed(peer=peers.PEERS[0], python=python, version="0")
    with pytest.raises(RuntimeError, match="ended with 3: broken"):
        broken.run(scenario.folder, 1)
    assert subprocess.run([python], capture_output=True).returncode == 3


@pytest.mark.slow
def test_peers_do_the_same_work(tmp_path):
    """Two epochs of one and a half batches on every client: after a round and after two the reference's weights."""
    ready, notes = peers.install(tmp_path / "peers", ("flower", "pfl"))
    if not ready:
        pytest.skip(str(notes))
    whole = write(Scenario(dataset="pamap2", num_clients=4, num_windows=48, folder=tmp_path / "scenario", epochs=2))
    oracle = Sequential(whole.folder)
    start, expected = oracle.flat, {}
    for when in ("first", "last"):
        oracle.step()
        expected[when] = oracle.flat
    for installed in ready.values():
        assert len(installed.run(whole.folder, 2)) == 2
        for when, weights in expected.items():
            peer_weights = peers.saved_weights(installed.peer, whole.folder, when)
            assert deviation(peer_weights, weights, start) < SAME_WORK / 5


def test_another_version_is_another_environment(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(peers, "_run", lambda command: ran.append(command) or str(tmp_path))
    for requirement in ("one==1", "one==1", "one==2"):
        peers._install(replace(peers.PEERS[0], requirement=requirement), tmp_path)
    assert [c[-1] for c in ran if "install" in c] == ["one==1", "one==2"]
