"""Addresses that a record names: whoever began the run is not asked, anybody else names them once more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relief_ray.studies.plan import Plan
from relief_ray.support.errors import UserError
from relief_ray.support.files import cache_root
from tests.actors.conftest import SMALL, Invoke
from tests.actors.grids.tiny_plans import tiny_plan
from tests.sealed import page, put_page, put_run

ADDRESSES = {
    "runtime.mirror": "file://{victim}/copy",
    "tracking.uri": "sqlite:///{victim}/store.db",
    "runtime.address": "127.0.0.1:9",
}
MORE = {"tracking.uri": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, invoke: Invoke) -> Path:
    out = tmp_path_factory.mktemp("sent") / "study"
    words = ["run", "quick", "--strategies", "fedavg", "--rounds", 1, "--out", out, *SMALL]
    made = invoke(*words, "--set=tracking.enabled=false")
    assert made.exit_code == 0, made.output
    return out


def sent(base: Path, tmp_path: Path, key: str, address: str) -> tuple[Path, Path]:
    """The study of somebody else whose records name an address, and a folder of this user's."""
    study, victim = tmp_path / "study", tmp_path / "victim"
    shutil.copytree(base, study)
    victim.mkdir()
    part, _, name = key.partition(".")
    run, plan = page(study / "fedavg-s0" / "run.json"), page(study / "plan.json")
    for config in (run["config"], plan["cells"][0]["config"]):
        changed = config.get(part, {}) | {name: address.format(victim=victim)}
        config[part] = changed | ({"enabled": True} if part == "tracking" else {})
    put_run(study / "fedavg-s0", run)
    put_page(study / "plan.json", plan)
    return study, victim


@contextmanager
def another_user() -> Iterator[None]:
    """Inside the block nothing is known of what was begun here."""
    begun, aside = cache_root() / "begun", cache_root() / "aside"
    begun.mkdir(parents=True, exist_ok=True)
    shutil.move(begun, aside)
    try:
        yield
    finally:
        shutil.rmtree(begun, ignore_errors=True)
        shutil.move(aside, begun)


@pytest.mark.ci
@pytest.mark.parametrize(("key", "address"), [*ADDRESSES.items(), *MORE.items()])
def test_nothing_goes_to_an_address_that_only_a_record_names(
    base: Path, tmp_path: Path, invoke: Invoke, key: str, address: str
) -> None:
    study, victim = sent(base, tmp_path, key, address)
    tried = [("resume", study), ("resume", study / "fedavg-s0")]
    for words in [*tried, *([("sync", study)] if key == "tracking.uri" else [])]:
        result = invoke(*words)
        said = " ".join(result.output.split())
        assert result.exit_code == 2 and f"{key} = " in said and "expected one that you name" in said, said
        assert ("--uri" if words[0] == "sync" else f"--set {key}=") in said, said
    assert not [*victim.iterdir()] and not (study / ".mirror.json").exists()
    # Without it the records are gone on with.
    off = "tracking.enabled=false" if key == "tracking.uri" else f"{key}=null"
    result = invoke("resume", study, "--set", off)
    assert result.exit_code == 0 and not [*victim.iterdir()], result.output


def test_a_report_is_not_copied_there(base: Path, tmp_path: Path, invoke: Invoke) -> None:
    study, victim = sent(base, tmp_path, "tracking.uri", ADDRESSES["tracking.uri"])
    result = invoke("report", study)
    assert result.exit_code == 0 and "not copied to MLflow: tracking.uri = " in result.output, result.output
    assert not [*victim.iterdir()]


def test_whoever_typed_it_is_not_asked_again(tmp_path: Path, invoke: Invoke) -> None:
    study, mirror = tmp_path / "study", tmp_path / "mirror"
    words = ["run", "quick", "--strategies", "fedavg", "--rounds", 1, "--out", study, *SMALL]
    made = invoke(*words, "--set=tracking.enabled=false", "--mirror", f"file://{mirror}")
    assert made.exit_code == 0, made.output
    assert invoke("resume", study).exit_code == 0
    with another_user():
        assert invoke("resume", study).exit_code == 2
        # Another address than the record's is this user's own word, and no more than that.
        other = f"--set=runtime.mirror=file://{tmp_path / 'other'}"
        assert invoke("resume", study, other).exit_code == 0 and (tmp_path / "other").exists()
        assert invoke("resume", study).exit_code == 2
        assert invoke("resume", study, "--set", f"runtime.mirror=file://{mirror}").exit_code == 0
        assert invoke("resume", study).exit_code == 0
        # Of this run alone.
        plan = page(study / "plan.json")
        plan["cells"][0]["config"]["seed"] = 1
        put_page(study / "plan.json", plan)
        shutil.rmtree(study / "fedavg-s0")
        assert "runtime.mirror" in invoke("resume", study).output


def test_cells_and_searches_of_a_foreign_grid_name_no_address(tmp_path: Path, invoke: Invoke) -> None:
    tiny_plan(tmp_path, methods=("fedavg",)).write()
    plan = page(tmp_path / "plan.json")
    for cell in plan["cells"]:
        cell["config"]["runtime"]["mirror"] = f"file://{tmp_path}/victim"
    put_page(tmp_path / "plan.json", plan)
    with pytest.raises(UserError, match=r"runtime\.mirror = .*/victim: only the record"):
        tiny_plan(tmp_path, methods=("relief",)).write()
    assert invoke("grid", "status", tmp_path).exit_code == 0, "reading asks for nothing"
    assert "runtime.mirror" in invoke("grid", "resume", tmp_path, "--dry-run").output
    search = {"sampler": "optuna", "tries": 1, "seed": 0, "target": "search_lr", "bounds": {}}
    settings = {"settings": [f"runtime.mirror=file://{tmp_path}/victim"]}
    put_page(tmp_path / "plan.json", plan | {"cells": [], "search": search | settings})
    result = invoke("grid", "resume", tmp_path, "--dry-run")
    assert result.exit_code == 2 and "runtime.mirror" in result.output, result.output
    assert Plan.read(tmp_path, kind="grid").cells == ()
