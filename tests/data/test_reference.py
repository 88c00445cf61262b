"""A dataset by name: other machines find or parse the same signal, and say where it is another."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from relief_ray.data import DataConfig, Dataset, federate, load_dataset, num_clients
from relief_ray.data import dataset as cached
from relief_ray.data import dataset as loading
from relief_ray.data.dataset import DataReference, SignalAbsent, find_signal
from relief_ray.data.fetch import synth
from relief_ray.support.errors import UserError
from relief_ray.support.files import sha256_file
from tests.loaders import write_lab
from tests.own import Write


def reference_of(dataset: Dataset) -> DataReference:
    return DataReference(name=dataset.spec.name, key=dataset.digest, signal_sha256=dataset.signal_sha256)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process on another machine: an empty cache and no data."""
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "data"))
    return tmp_path


def test_a_machine_with_an_empty_cache_parses_the_shipped_excerpt(mini: Dataset, elsewhere: Path) -> None:
    path = find_signal(reference_of(mini), "board")
    assert path.is_relative_to(elsewhere) and path != mini.signal_path
    assert sha256_file(path) == mini.signal_sha256


def test_a_run_names_its_data(mini: Dataset) -> None:
    config = DataConfig(stride_s=10.0)
    data = federate(mini, config, [mini.spec.names] * num_clients(mini, config))
    assert data.reference == replace(reference_of(mini), settings=config.deciding())


def test_a_parsed_signal_is_enough(mhealth_root: Path, elsewhere: Path) -> None:
    dataset = load_dataset("mhealth", mhealth_root)
    assert find_signal(reference_of(dataset), "board") == dataset.signal_path, "no raw file is in RELIEF_DATA"


def test_a_loader_of_ones_own_parses_there_too(
    write: Write, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_lab(write, tmp_path, monkeypatch)
    dataset = load_dataset(name)
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "board"))
    path = find_signal(reference_of(dataset), "board")
    assert path.is_relative_to(tmp_path / "board") and sha256_file(path) == dataset.signal_sha256


def test_a_dataset_that_is_not_here(mini: Dataset, elsewhere: Path) -> None:
    missing = replace(reference_of(mini), name="pamap2")
    with pytest.raises(SignalAbsent, match=f"dataset 'pamap2' not found.*{elsewhere / 'data'}"):
        find_signal(missing, "board")


def test_other_raw_files_are_refused_with_both_digests(
    mhealth_root: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference_of(load_dataset("mhealth", mhealth_root))
    synth("mhealth", elsewhere / "data", seed=2, scale=0.01)
    monkeypatch.setenv("RELIEF_CACHE", str(elsewhere / "other"))
    theirs = load_dataset("mhealth").signal_sha256
    with pytest.raises(
        UserError, match=rf"'mhealth' on board: .*{theirs[:12]}.*{expected.signal_sha256[:12]}"
    ) as error:
        find_signal(expected, "board")
    assert not isinstance(error.value, SignalAbsent), "rows may replace what is missing, not what differs"


def test_an_altered_signal_is_refused(mini: Dataset, elsewhere: Path) -> None:
    path = find_signal(reference_of(mini), "board")
    altered = bytearray(path.read_bytes())
    altered[-1] ^= 1
    path.write_bytes(altered)
    with pytest.raises(UserError, match=f"'dsa_mini' on board: {path}: damaged .*delete the folder {path.parent}"):
        find_signal(reference_of(mini), "board")
    shutil.rmtree(path.parent)
    assert find_signal(reference_of(mini), "board") == path, "as the message says"


def test_each_array_is_read_through_once_by_a_process(
    mini: Dataset, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests, read = [], cached.crc32_file

    def counted(path: Path) -> int:
        digests.append(path.name)
        return read(path)

    path = find_signal(reference_of(mini), "board")
    monkeypatch.setattr(cached, "_CHECKED", {})
    monkeypatch.setattr(cached, "crc32_file", counted)
    assert find_signal(reference_of(mini), "board") == find_signal(reference_of(mini), "board") == path
    assert digests == ["signal.npy", "labels.npy", "bouts.npy", "filled.npy"], "by no other digest, and not again"


def test_one_of_several_at_once_parses(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, all_begun, parse = [], threading.Barrier(3), loading.parse_source

    def counted(*args: object) -> object:
        parsed.append(threading.get_ident())
        return parse(*args)

    def load() -> None:
        all_begun.wait(10.0)
        paths.append(load_dataset("dsa_mini").signal_path)

    paths: list[Path] = []
    monkeypatch.setattr("relief_ray.data.dataset.parse_source", counted)
    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(parsed) == 1 and len(paths) == 3 and len(set(paths)) == 1
