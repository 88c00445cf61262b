"""Random encoders: drawn once for everybody, known as such wherever they are copied, and what goes wrong on the way."""

import json
import os
import resource
import shutil
import stat

import pytest
from safetensors.torch import load_file, save_file

from relief_ray.models.moment import weights as moment_random
from relief_ray.models.moment.weights import DRAWN, MARK, load_frozen, random_folder, random_target
from relief_ray.support.errors import UserError
from tests.models.tiny_moment import tiny, windows


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of each test's own; no encoder of an earlier test is still in memory."""
    monkeypatch.setenv("RELIEF_CACHE", str(tmp_path / "cache"))
    load_frozen.cache_clear()
    yield tmp_path / "cache"
    load_frozen.cache_clear()


def unmarked(folder):
    """Takes the mark off."""
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != MARK}))
    return folder


def test_random_weights_are_written_once(monkeypatch):
    folder = random_folder("tiny", 3)
    monkeypatch.setattr(moment_random, "build_pipeline", None)
    assert random_folder("tiny", 3) == folder == random_target("tiny", 3)
    assert not list(folder.parent.glob("*.part")), "nothing half-made is left"


def test_everybody_may_read_them():
    previous = os.umask(0o077)
    try:
        folder = random_folder("tiny", 0)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o644}


# What they are -------------------------------------------------------------------------------------------------------


def test_a_random_encoder_is_called_random_by_whatever_name_it_comes(tmp_path):
    drawn, own = tiny(weights_seed=5), random_folder("tiny", 5)
    copy = shutil.copytree(own, tmp_path / "copied")
    for folder in (own, copy):
        again = tiny(weights=str(folder))
        assert again.warnings == drawn.warnings and "RANDOM ENCODER" in drawn.warnings[0]
        assert "seed 5" in again.warnings[0]
        assert again.facts["weights_sha256"] == drawn.facts["weights_sha256"]


def test_the_mark_changes_neither_the_encoder_nor_what_momentfm_reads():
    from momentfm import MOMENTPipeline

    folder, x = random_folder("tiny", 1), windows()["acc"]
    before = load_frozen("tiny", "random", 1)
    plain = MOMENTPipeline.from_pretrained(folder, model_kwargs={"task_name": "embedding"})
    plain.init()
    out = plain.eval().embed(x_enc=x).embeddings
    assert out.allclose(before.pipeline.embed(x_enc=x).embeddings, atol=1e-6)
    assert json.loads((folder / "config.json").read_text())[MARK] == 1
    unmarked(folder)
    load_frozen.cache_clear()
    assert load_frozen("tiny", "random", 1).sha256 == before.sha256


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_a_damaged_one_is_to_be_deleted_not_fetched():
    folder = random_folder("tiny", 0)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    for weights in ("random", str(folder)):
        with pytest.raises(UserError, match="cannot be read as safetensors") as caught:
            load_frozen("tiny", weights, 0)
        assert f"delete {folder}" in str(caught.value) and "fetch" not in str(caught.value)
    (folder / "model.safetensors").write_bytes(whole)
    tensors = dict(list(load_file(folder / "model.safetensors").items())[1:])
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=f"1 tensors are missing.*; delete {folder}: it is drawn again"):
        load_frozen("tiny", "random", 0)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=f"config.json is missing.*delete {folder}"):
        load_frozen("tiny", "random", 0)
    shutil.rmtree(folder)
    assert load_frozen("tiny", "random", 0).num_values == 82_880


def flipped(folder):
    """Flips the lowest bit of one drawn value, in the file itself."""
    path = folder / "model.safetensors"
    whole = bytearray(path.read_bytes())
    header = int.from_bytes(whole[:8], "little")
    tensor = json.loads(whole[8 : 8 + header])["encoder.block.1.layer.0.SelfAttention.q.weight"]
    whole[8 + header + tensor["data_offsets"][0]] ^= 1
    path.write_bytes(whole)


def test_a_flipped_bit_is_refused_and_never_another_encoder(tmp_path):
    folder = random_folder("tiny", 4)
    before = load_frozen("tiny", "random", 4).sha256
    copy = shutil.copytree(folder, tmp_path / "copied")
    for place, weights in ((folder, "random"), (copy, str(copy))):
        flipped(place)
        load_frozen.cache_clear()
        with pytest.raises(UserError, match="not the random encoder that was drawn") as caught:
            load_frozen("tiny", weights, 4)
        said = str(caught.value)
        assert said.startswith(f"{place}/model.safetensors: ") and f"expected {before[:12]} " in said
        assert (f"delete {place}: it is drawn again" in said) == (place == folder)
        assert (f"remove {MARK} and {DRAWN} from its config.json" in said) == (place == copy)
    shutil.rmtree(folder)
    assert load_frozen("tiny", "random", 4).sha256 == before
    path = copy / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k not in (MARK, DRAWN)}))
    trained = load_frozen("tiny", str(copy), 4)
    assert trained.random_seed is None and trained.sha256 != before


def test_an_encoder_of_the_cache_without_its_digest_is_drawn_again():
    path = random_folder("tiny", 0) / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != DRAWN}))
    with pytest.raises(UserError, match=f"expected one that is missing .*; delete {path.parent}: it is drawn again"):
        load_frozen("tiny", "random", 0)


def test_a_cache_that_cannot_be_written_is_named(cache, monkeypatch):
    cache.write_text("a file")
    for place in (cache, cache / "below"):
        monkeypatch.setenv("RELIEF_CACHE", str(place))
        said = r"the random encoder cannot be written \(Not a directory\).*RELIEF_CACHE"
        with pytest.raises(UserError, match=said) as caught:
            load_frozen("tiny", "random", 0)
        assert str(place) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_of_another_user_is_named(cache):
    cache.mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"cannot be written \(Permission denied\)"):
        load_frozen("tiny", "random", 0)


@pytest.fixture
def small_files():
    """No file of this process may grow beyond 100 kB: the system refuses it as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_said_in_words(cache, small_files):
    with pytest.raises(UserError, match=r"(?s)the random encoder cannot be written.*free some space"):
        load_frozen("tiny", "random", 0)
    assert not list((cache / "moment").iterdir()), "nothing half-made is left"
