"""`conformance` and `data describe|verify` on a user's loader: judged by rules, refused with both numbers."""

import json
from functools import partial

import pytest

from relief_ray.conformance.datasets import DATA_RULES
from relief_ray.data import DataConfig, open_dataset
from relief_ray.data.describe import describe
from tests.actors.conftest import SMALL
from tests.loaders import BROKEN, ODD, ODDITIES, write_lab


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


def words(text: str) -> str:
    return " ".join(text.split())


def test_datasets_are_judged_rule_by_rule(lab, invoke) -> None:
    result = invoke("conformance", lab(BROKEN["labels"][0]))
    assert result.exit_code == 1
    assert "BROKEN      labels" in result.stdout and "fix:   let DatasetSpec.labels list every code" in result.stdout
    facts = json.loads(invoke("conformance", lab(), "--set=data.window_s=2.56", "--json").stdout)
    assert facts["keeps"] and [row["rule"] for row in facts["rules"]] == list(DATA_RULES)


def test_settings_of_other_sections_are_refused(lab, invoke) -> None:
    for args in (("conformance", lab()), ("data", "describe", lab())):
        wrong = invoke(*args, "--set=rounds=3")
        assert wrong.exit_code == 2 and "--set rounds=..: expected" in words(wrong.stderr), wrong.output


def test_describe_shows_windows_shares_and_oddities(lab, invoke) -> None:
    path = lab(BROKEN["constant"][0])
    shares = ("--set=data.partition=dirichlet", "--set=data.num_clients=3", "--set=data.window_s=2.56")
    text = invoke("data", "describe", path, "--stride-s=2", *shares).stdout
    assert "26 samples (2.56 s) every 2 s" in text and "DOI" not in text
    assert "data.window_s: as set here; data.stride_s = 2: as set here" in text
    assert "warning   hip: column 2 is 7 in all 5200 rows" in text
    assert "null      400 of 5,200 rows have code 0" in text and text.count("warning") == 1
    assert "Training windows of each client (dirichlet, alpha 0.5, seed 0)" in text
    facts = json.loads(invoke("data", "describe", path, "--stride-s=2", *shares, "--json").stdout)
    assert [len(c["train"]) for c in facts["coverage"]["clients"]] == [3, 3, 3]
    assert sum(sum(c["train"]) for c in facts["coverage"]["clients"]) == facts["windows"]["train"]


@pytest.mark.ci
def test_a_run_shows_once_what_is_odd_about_its_data(lab, invoke, tmp_path) -> None:
    path = lab(ODD)
    words = (
        "--strategies=fedavg,v1",
        "--set=rounds=1",
        "--set=fleet.types={A: {sensors: [wrist, hip, ankle]}, B: {sensors: wrist}, C: {sensors: wrist}}",
    )
    done = invoke("run", "quick", f"--set=data.name={path}", *words, *SMALL, "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    for text in ODDITIES:
        assert done.stdout.count(f"WARNING: data {path}: {text}") == 1


def test_describe_counts_the_windows_that_a_run_cuts_by_default(lab, invoke) -> None:
    path = lab()
    config = DataConfig(name=path)
    windows = describe(open_dataset(config), config)["windows"]
    assert json.loads(invoke("data", "describe", path, "--json").stdout)["windows"] == windows
    text = invoke("data", "describe", path).stdout
    assert f"every 1 s: {windows['train']} training" in text and config.stride_s == 1.0
    assert "data.window_s: the dataset's own; data.stride_s = 1: the default" in text


def test_describe_and_conformance_end_with_who_has_which_sensors(lab, invoke) -> None:
    setting = "  --set 'fleet.types={B: {sensors: [wrist, hip]}, C: {sensors: wrist}}'"
    lead = (
        "A run must say in fleet.types which sensors each device type has (A 2 clients, B 1 client, C 1 client), e.g."
    )
    for command in (("data", "describe"), ("conformance", "--set=data.window_s=2.56")):
        assert invoke(*command, lab()).stdout.splitlines()[-2:] == [lead, setting]
    lines = invoke("data", "describe", "dsa_mini").stdout.splitlines()
    assert lines[-4:-1] == ["  A  3 clients: acc + gyro + mag", "  B  3 clients: acc + gyro", "  C  2 clients: acc"]


@pytest.mark.parametrize("command", ["describe", "verify"])
def test_a_loader_that_contradicts_its_files_is_refused(command: str, lab, invoke) -> None:
    result = invoke("data", command, lab(BROKEN["labels"][0]))
    assert result.exit_code == 2, result.output
    assert "code 3 in 1600 rows of 5200" in words(result.stderr) and "labels lists [0, 1, 2]" in words(result.stderr)
    assert "fix: let DatasetSpec.labels list every code" in words(result.stderr)


def test_a_sound_loader_without_limits_is_verified(lab, invoke) -> None:
    result = invoke("data", "verify", lab())
    assert result.exit_code == 0 and "structure as expected" in result.stdout and "warning" not in result.stdout
