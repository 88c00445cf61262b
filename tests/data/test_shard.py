"""Shards: a client's windows with the bits of the whole dataset, and refusals that name what to do."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from relief_ray.data import DataConfig, Dataset, FederatedData, federate, num_clients, open_dataset
from relief_ray.data.shard import FACTS_FILE, Shard, find_shards, open_shard, shard_command, shards_here, write_shard
from relief_ray.support.errors import UserError

CONFIG = DataConfig(stride_s=5.0)


def data_of(dataset: Dataset, config: DataConfig) -> FederatedData:
    return federate(dataset, config, [dataset.spec.names] * num_clients(dataset, config))


@pytest.fixture(scope="module")
def data(mini: Dataset) -> FederatedData:
    return data_of(mini, CONFIG)


@pytest.fixture
def shard(mini: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """Client 3's on a device, found there."""
    write_shard(mini, CONFIG, 3, tmp_path / "shard")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    ((shard,),) = find_shards("dsa_mini").values()
    return shard


def test_a_shard_holds_the_windows_of_one_client(shard: Shard, data: FederatedData) -> None:
    assert (shard.facts.client, shard.facts.split, shard.facts.num_windows) == (3, CONFIG.split, len(data.clients[3]))
    assert shard.facts.settings == CONFIG.deciding() and data.reference is not None
    windows = open_shard([shard], data.clients[3], data.reference, "board")
    for name, block in data.clients[3].load().items():
        np.testing.assert_array_equal(windows.load()[name], block, strict=True)
    assert (
        windows.rows is not None and len(windows.rows) == shard.facts.num_rows < len(np.load(data.test.signal_path)) / 8
    )


def test_it_is_found_as_the_data_folder_itself_too(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIEF_DATA", str(shard.folder))
    assert find_shards("dsa_mini") == {3: (shard,)} and find_shards("dsa") == {}
    assert shards_here() == {"dsa_mini": (3,)}


def test_other_settings_are_refused_with_the_command_that_writes_it(
    shard: Shard, mini: Dataset, tmp_path: Path
) -> None:
    held_out = DataConfig(stride_s=2.5, split="held_out_subject", fold=1)
    other = data_of(mini, held_out)
    assert other.reference is not None
    with pytest.raises(UserError, match=r"client 3.*data.split 'within_subject', here 'held_out_subject'") as error:
        open_shard([shard], other.clients[3], other.reference, "board")
    command = shard_command(other.reference, 3)
    assert f"`{command}`" in str(error.value)
    settings = [s for s in shlex.split(command) if s.startswith("data.")]
    assert settings == ["data.split=held_out_subject", "data.fold=1", "data.stride_s=2.5"]
    write_shard(open_dataset(held_out), held_out, 3, tmp_path / "new")
    both = find_shards("dsa_mini")[3]
    assert len(both) == 2, "one for each setting"
    opened = open_shard(both, other.clients[3], other.reference, "board")
    np.testing.assert_array_equal(opened.load()["acc"], other.clients[3].load()["acc"], strict=True)


def test_damaged_rows_are_refused(shard: Shard, data: FederatedData) -> None:
    rows = shard.folder / "rows.npy"
    rows.write_bytes(rows.read_bytes()[:-1] + b"\x01")
    assert data.reference is not None
    with pytest.raises(UserError, match=r"its rows have the sha256 .*write it anew"):
        open_shard([shard], data.clients[3], data.reference, "board")
    rows.unlink()
    with pytest.raises(UserError, match="damaged"):
        open_shard([shard], data.clients[3], data.reference, "board")
    (shard.folder / FACTS_FILE).write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        find_shards("dsa_mini")


@pytest.mark.parametrize(("client", "expected"), [(8, "expected 0 to 7"), (-1, "expected 0 to 7"), (0, "is not empty")])
def test_what_cannot_be_written(client: int, expected: str, mini: Dataset, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(UserError, match=expected):
        write_shard(mini, CONFIG, client, tmp_path)
