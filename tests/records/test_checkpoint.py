from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relief_ray.records
from relief_ray.core.messages import ServerState
from relief_ray.records import checkpoint
from relief_ray.records.checkpoint import Checkpoint
from relief_ray.records.identity import state_sha256, tensors_sha256
from relief_ray.support.errors import UserError
from tests.sealed import page, put_page

NAMES = st.text(min_size=1, max_size=8)
TENSORS = st.sampled_from(
    [
        torch.tensor([1.5, -0.0, float("inf")]),
        torch.arange(6, dtype=torch.int64).view(2, 3),
        torch.tensor(2.0, dtype=torch.float64),
        torch.empty(0),
        torch.tensor([True, False]),
        torch.arange(8.0)[::2],
        torch.tensor([1.25], dtype=torch.bfloat16),
    ]
)
GROUPS = st.dictionaries(NAMES, TENSORS, max_size=3)
FACTS = st.dictionaries(NAMES, st.floats() | st.integers() | st.lists(st.text(max_size=3)) | st.none(), max_size=3)


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, GROUPS, max_size=3), GROUPS, FACTS, st.dictionaries(st.integers(0, 99), GROUPS, max_size=3)
)
def test_any_state_comes_back_with_its_bits_names_and_order(
    tmp_path_factory, scenario, models, tensors, facts, clients
):
    path = tmp_path_factory.mktemp("any")
    state = ServerState(models=models, tensors=tensors, facts=facts)
    checkpoint.save(path, Checkpoint(round=7, state=state, clients=clients), scenario.BINDING)
    loaded = checkpoint.load(path, scenario.BINDING)
    assert (loaded.round, loaded.skipped) == (7, ())
    assert state_sha256(loaded.state) == state_sha256(state)
    assert json.dumps(loaded.state.facts) == json.dumps(facts)
    assert {c: tensors_sha256(p) for c, p in loaded.clients.items()} == {
        c: tensors_sha256(p) for c, p in clients.items()
    }
    assert list(loaded.state.models) == list(models) and list(loaded.clients) == list(clients)
    assert [list(p) for p in loaded.state.models.values()] == [list(p) for p in models.values()]


@pytest.mark.parametrize("facts", [{"a": (1, 2)}, {"a": {1: 2}}, {"a": torch.tensor(1.0)}])
def test_facts_that_json_would_change_are_refused(scenario, tmp_path, facts):
    state = replace(scenario.first_state(), facts=facts)
    with pytest.raises(ValueError, match="facts"):
        checkpoint.save(tmp_path, Checkpoint(round=0, state=state), scenario.BINDING)
    assert checkpoint.load(tmp_path, scenario.BINDING) is None


def test_views_of_one_vector_are_saved(scenario, tmp_path):
    flat = torch.arange(10.0)
    state = ServerState(models={"global": {"a": flat[:4], "b": flat[4:]}})
    checkpoint.save(tmp_path, Checkpoint(round=0, state=state), scenario.BINDING)
    assert state_sha256(checkpoint.load(tmp_path, scenario.BINDING).state) == state_sha256(state)


def test_two_generations_are_kept(finished):
    assert [p.name for p in checkpoint.generations(finished)] == ["round-000004", "round-000003"]
    assert sorted(p.name for p in (finished / "checkpoints").iterdir()) == ["round-000003", "round-000004"]


def test_files_and_then_their_folder_are_on_disk_before_they_get_their_name(finished, scenario, tmp_path, monkeypatch):
    """A crash after the rename would otherwise leave a generation whose files have no names, or no bytes."""
    point, done = checkpoint.load(finished, scenario.BINDING), []
    fsync, rename = os.fsync, os.replace

    def synced(handle: int) -> None:
        fsync(handle)
        done.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{handle}')).relative_to(tmp_path)}")

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        done.append(f"rename {Path(source).relative_to(tmp_path)}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    checkpoint.save(tmp_path, point, scenario.BINDING)
    beside = "checkpoints/.saving"
    assert done == [
        f"fsync {beside}/state.safetensors",
        f"fsync {beside}/manifest.json",
        f"fsync {beside}",
        f"rename {beside}",
        "fsync checkpoints",
    ]


def test_saving_a_round_again_takes_its_place_and_drops_later_ones(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    other = Checkpoint(round=3, state=replace(scenario.first_state(), facts={"other": True}))
    checkpoint.save(path, other, scenario.BINDING)
    assert checkpoint.load(path, scenario.BINDING).state.facts == {"other": True}
    assert [p.name for p in (path / "checkpoints").iterdir()] == ["round-000003"]


def flips(size: int) -> list[tuple[int, int]]:
    generator = random.Random(0)
    return [(at, 1 << generator.randrange(8)) for at in range(size)]


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_a_flipped_bit_anywhere_is_never_loaded(finished, scenario, tmp_path, name):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    intact = checkpoint.load(path, scenario.BINDING)
    data = (newest / name).read_bytes()
    caught = 0
    for at, bit in flips(len(data)):
        (newest / name).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        loaded = checkpoint.load(path, scenario.BINDING)
        if loaded.skipped:
            assert loaded.round == 3 and "round-000004" in loaded.skipped[0]
            caught += 1
        else:  # a blank between two JSON tokens became another blank
            assert state_sha256(loaded.state) == state_sha256(intact.state) and loaded.round == 4
    assert caught == len(data) if name == "state.safetensors" else caught >= len(data) - 5


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_a_truncated_generation_gives_the_previous_one(finished, scenario, tmp_path, name):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    size = (newest / name).stat().st_size
    for length in [*range(0, size - 1, 7), None]:
        if length is None:
            (newest / name).unlink()
        else:
            shutil.copy(finished / "checkpoints" / newest.name / name, newest / name)
            os.truncate(newest / name, length)
        loaded = checkpoint.load(path, scenario.BINDING)
        assert loaded.round == 3 and name in loaded.skipped[0]


def test_a_run_goes_on_from_the_previous_generation_to_the_same_bits(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    (newest / "state.safetensors").write_bytes(b"")
    scenario.drive(path)
    assert scenario.outcome(path) == scenario.outcome(finished)


@pytest.mark.parametrize("field", ["config_hash", "layout_digest", "engine"])
def test_a_checkpoint_of_something_else_is_refused(finished, scenario, field):
    with pytest.raises(UserError, match=rf"{field} is .*, expected 'other': a resume continues the same computation"):
        checkpoint.load(finished, scenario.BINDING.model_copy(update={field: "other"}))


def reseal(path: Path, **changes: object) -> None:
    put_page(path, {**page(path), **changes})


@pytest.mark.parametrize(("version", "fix"), [(0, "release that wrote it"), (5, "upgrade relief-ray")])
def test_another_schema_version_is_refused_not_skipped(finished, scenario, tmp_path, version, fix):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    reseal(newest / "manifest.json", schema_version=version)
    with pytest.raises(UserError, match=rf"manifest\.json: schema_version is {version}, expected 4; .*{fix}"):
        checkpoint.load(path, scenario.BINDING)


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return (Path.touch, (self.mark,))


def test_a_pickle_in_place_of_the_state_is_never_unpickled(finished, scenario, tmp_path):
    """Even an attacker who signs it: the file is read as safetensors or not at all."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    payloads = [pickle.dumps(Bomb(tmp_path / "exploded"))]
    torch.save({"x": Bomb(tmp_path / "exploded")}, tmp_path / "bomb.pt")
    payloads.append((tmp_path / "bomb.pt").read_bytes())
    for payload in payloads:
        (newest / "state.safetensors").write_bytes(payload)
        reseal(newest / "manifest.json", state_sha256=hashlib.sha256(payload).hexdigest())
        loaded = checkpoint.load(path, scenario.BINDING)
        assert loaded.round == 3 and "state.safetensors" in loaded.skipped[0]
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tensors": ["missing"]}, "lacks 'tensors/missing'"), ({"round": "x"}, "round"), ({"surplus": 1}, "surplus")],
)
def test_a_manifest_that_does_not_fit_its_state_is_skipped(finished, scenario, tmp_path, changes, message):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    reseal(newest / "manifest.json", **changes)
    loaded = checkpoint.load(path, scenario.BINDING)
    assert loaded.round == 3 and message in loaded.skipped[0]


def test_a_manifest_that_is_no_object_is_skipped(finished, scenario, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (newest, *_) = checkpoint.generations(path)
    for text in ("[]", "3", '{"sha256": 1}'):
        (newest / "manifest.json").write_text(text)
        assert checkpoint.load(path, scenario.BINDING).round == 3


def test_no_module_here_reads_pickles():
    sources = [p.read_text() for p in Path(relief_ray.records.__file__).parent.glob("*.py")]
    assert len(sources) > 10
    assert not any(
        re.search(r"import pickle|(?<!safetensors\.)torch\.(load|save)\(|np\.load\(", text) for text in sources
    )
