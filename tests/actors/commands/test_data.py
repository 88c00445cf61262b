"""`data ...` on the shipped excerpt and on small synthetic files."""

import json
import re
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_run
from relief_ray.strategies import PRESETS

# With two channels DarkDistill's distances between features that nearly coincide have gradients beyond float32.
SMALL = [f"--set=backbone.{key}=4" for key in ("conv1", "conv2", "steps", "fusion")]


def test_list_says_what_is_here(invoke) -> None:
    datasets = {d["name"]: d for d in json.loads(invoke("data", "list", "--json").stdout)}
    assert datasets["dsa_mini"]["origin"] == "real" and datasets["pamap2"]["origin"] is None
    assert "relief-ray data fetch" in invoke("data", "list").stdout


def test_describe_and_verify_the_excerpt(invoke) -> None:
    facts = json.loads(invoke("data", "describe", "dsa_mini", "--json", "--stride-s=10").stdout)
    text = invoke("data", "describe", "dsa_mini", "--stride-s=10").stdout
    assert f"{facts['num_rows']:,} rows at 25 Hz, 8 subjects" in text and "CC BY 4.0" in text
    assert f"{facts['windows']['train']} training" in text
    assert "structure as expected" in invoke("data", "verify", "dsa_mini").stdout
    assert json.loads(invoke("data", "verify", "dsa_mini", "--json").stdout)["ok"] is True


def test_a_preset_is_described_by_the_windows_of_its_runs(invoke) -> None:
    text = " ".join(invoke("data", "describe", "quick").stdout.split())
    assert "every 10 s" in text and "data.stride_s = 10: as set here" in text
    assert "others in demo (data.split=held_out_subject, data.stride_s=5), moment_tiny" in text
    preset, dataset = (
        json.loads(invoke("data", "describe", name, "--stride-s=5", "--json").stdout) for name in ("quick", "dsa_mini")
    )
    assert preset == dataset


@pytest.mark.ci
def test_what_run_refuses_describe_refuses_and_each_remedy_helps(invoke, tmp_path: Path) -> None:
    skewed = ["--set=data.partition=dirichlet", "--set=data.num_clients=30"]
    said = [
        " ".join(invoke(*words, *skewed).stderr.split()).partition(": the smallest")[2]
        for words in (("run", "quick", "--out", tmp_path / "runs"), ("data", "describe", "quick"))
    ]
    assert said[0] == said[1] and "lower data.stride_s (here 10 s: more windows) or data.num_clients" in said[0]
    least = re.search(r"set (data.min_partition_size=\d+)", said[0])
    assert least is not None
    for remedy in (least[1], "data.stride_s=1", "data.num_clients=5", "data.dirichlet_alpha=100"):
        assert invoke("data", "describe", "quick", *skewed, f"--set={remedy}").exit_code == 0, remedy


@pytest.mark.parametrize("settings", [[], ["--set=data.partition=dirichlet", "--set=data.dirichlet_alpha=0.1"]])
def test_a_description_fits_a_terminal(invoke, settings) -> None:
    shown = invoke("data", "describe", "dsa_mini", *settings).stdout.splitlines()
    assert [line for line in shown if len(line) > 80 and not line.startswith("  files")] == []


def test_synthetic_files_are_called_so_everywhere(invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = invoke("data", "synth", "mhealth", "--out", tmp_path, "--scale=0.05")
    assert made.exit_code == 0 and "SYNTHETIC" in made.stdout and f"RELIEF_DATA={tmp_path}" in made.stdout
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    datasets = {d["name"]: d for d in json.loads(invoke("data", "list", "--json").stdout)}
    assert datasets["mhealth"]["origin"] == "SYNTHETIC"
    assert json.loads(invoke("data", "verify", "mhealth", "--json").stdout)["origin"] == "SYNTHETIC"


@pytest.mark.slow
def test_a_run_on_synthetic_files_says_so(invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("data", "synth", "mhealth", "--out", tmp_path, "--scale=1")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    result = invoke("run", "quick", "--out", tmp_path / "runs", "--set=data.name=mhealth", "--set=rounds=1")
    assert result.exit_code == 0, result.output
    assert "(SYNTHETIC)" in result.stdout
    assert read_run(tmp_path / "runs" / "relief-s0").data_origin == "SYNTHETIC"


def test_fetch_from_a_folder_of_ones_own(invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("data", "synth", "mhealth", "--out", tmp_path / "download", "--scale=0.05")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "data"))
    result = invoke("data", "fetch", "mhealth", "--from", tmp_path / "download" / "mhealth_SYNTHETIC")
    # Shortened activities are not the dataset's: taken over, but reported.
    assert result.exit_code == 2 and "problem(s) in its structure" in " ".join(result.stderr.split())
    assert (tmp_path / "data" / "mhealth").is_dir()


def test_a_shard_of_one_client(invoke, tmp_path: Path) -> None:
    held_out = ["--set=data.split=held_out_subject", "--set=data.stride_s=10"]
    made = invoke("data", "shard", "dsa_mini", "--client=4", "--out", tmp_path / "client 4", *held_out)
    assert made.exit_code == 0, made.output
    assert "training windows of client 4 (held_out_subject)" in made.stdout
    assert f"RELIEF_DATA='{tmp_path / 'client 4'}' before" in made.stdout, "to be typed as it is"
    facts = json.loads(invoke("data", "shard", "dsa_mini", "--client=4", "--out", tmp_path / "2", "--json").stdout)
    assert (facts["client"], facts["split"], facts["settings"]["stride_s"]) == (4, "within_subject", 1.0)
    assert sorted(path.name for path in (tmp_path / "client 4").iterdir()) == ["rows.npy", "shard.json", "windows.npz"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["shard", "dsa_mini", "--client=8", "--out=x"], "--client 8: expected 0 to 7"),
        (["describe", "dsa_minni"], "dataset 'dsa_minni' is unknown"),
        (["describe", "dsa_mini", "--stride-s=-1"], "stride_s = -1.0"),
        (["verify", "pamap2"], "dataset 'pamap2' not found"),
        (["fetch", "dsa_mini"], "has no download address"),
        (["synth", "dsa", "--scale=2"], "expected 0 < scale <= 1"),
    ],
)
def test_refusals(invoke, args: list[str], expected: str) -> None:
    result = invoke("data", *args)
    assert result.exit_code == 2 and expected in " ".join(result.stderr.split())


@pytest.mark.ci
def test_accept_trains_every_strategy_and_leaves_a_receipt(invoke, tmp_path: Path) -> None:
    result = invoke("data", "accept", "dsa_mini", "--stride-s=30", "--out", tmp_path, *SMALL)
    assert result.exit_code == 0, result.output
    receipt = json.loads((tmp_path / "accept-dsa_mini.json").read_text())
    assert [row["strategy"] for row in receipt["strategies"]] == list(PRESETS)
    assert all(0 <= row["f1"] <= 1 and row["loss"] > 0 for row in receipt["strategies"])
    assert receipt["origin"] == "real" and receipt["verification"]["ok"]
    assert "Receipt:" in result.stdout
