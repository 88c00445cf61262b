"""Commands that train nothing: every figure they show is one of the library's."""

import json
import re
import sys
from pathlib import Path

import pytest

from relief_ray.models.moment.weights import load_frozen
from relief_ray.records.run_folder import read_rounds
from relief_ray.strategies import PRESETS

SMALL = [f"--set=backbone.{key}=2" for key in ("conv1", "conv2", "steps", "fusion")]


def test_model_describe_counts_the_papers_backbone(invoke) -> None:
    shown = invoke("model", "describe", "demo")
    said = " ".join(shown.stdout.split())
    assert "G = 11 groups = 3 fusion blocks + 1 shared fusion part + 6 encoder layers + 1 head layer" in said
    assert "3.606 MiB in all" in said and "encoder: a layer of a sensor's encoder" in said
    facts = json.loads(invoke("model", "describe", "demo", "--json").stdout)
    assert facts["values"] == sum(g["values"] for g in facts["groups"]) == 945_176
    assert [g["clients"] for g in facts["groups"][:3]] == [6, 4, 2]
    lora = invoke("model", "describe", "demo", "--set=backbone=moment_lora", "--set=backbone.size=tiny")
    assert "8 x LoRA r=8" in lora.stdout
    assert all(len(line) <= 80 for line in [*shown.stdout.splitlines(), *lora.stdout.splitlines()])


@pytest.mark.slow
def test_model_describe_counts_the_papers_second_backbone_without_its_data(
    invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path))
    args = ("model", "describe", "pamap2", "--set=backbone=moment_lora")
    text = " ".join(invoke(*args).stdout.split())
    assert "G = 39 groups = 4 fusion blocks + 1 shared fusion part + 32 encoder layers + 2 head layers" in text
    assert (
        "Frozen: 4 x 18,887,872 encoder values" in text
        and "never loaded: 4 x 16,449,536 values; an encoder with its own has 35,337,408" in text
    )
    assert "Trained: 1.82 % of encoders and trained values, 0.98 % if the token tables are counted" in text
    assert "RANDOM ENCODER" in text
    assert "Values of an encoder's groups: acc 311,296, gyro 311,296, mag 311,296, hr 311,296" in text
    assert "all sensors trains 1,400,076 values, 1,396,992 without the last layer of the head" in text
    facts = json.loads(invoke(*args, "--json").stdout)
    sizes = {g["group"]: g["values"] for g in facts["groups"]}
    assert [
        sum(n for j, n in sizes.items() if j.startswith(f"encoder.{m}.")) for m in ("acc", "gyro", "mag", "hr")
    ] == ([311_296] * 4)
    assert facts["values"] - sizes["head.2"] == 1_396_992 and sizes["head.2"] == 3_084
    assert facts["subtotals"] == {
        "encoders": dict.fromkeys(("acc", "gyro", "mag", "hr"), 311_296),
        "full_client": 1_400_076,
        "full_client_without_last_layer": 1_396_992,
    }
    assert facts["frozen"]["encoder_values"] + facts["frozen"]["token_table_values"] == 35_337_408


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("rank=0", "backbone.rank = 0: expected a whole number, at least 1"),
        ("weights=./nowhere", "backbone.weights='./nowhere': no such folder; give a folder with config.json"),
        ("pad_to=500", "is no multiple of the patch length 8; take 504"),
        ("pad_to=64", "backbone.pad_to=64 is below the windows' 128 samples; expected 128 or more"),
        ("size=large", "expected one of small, tiny"),
    ],
)
def test_model_describe_refuses_what_backbone_2_cannot_be(invoke, setting: str, expected: str) -> None:
    args = ("--set=backbone=moment_lora", "--set=backbone.size=tiny", f"--set=backbone.{setting}")
    result = invoke("model", "describe", "demo", *args)
    assert result.exit_code == 2 and expected in " ".join(result.stderr.split())


def test_model_describe_tells_a_methods_own_groups_from_the_backbones(invoke) -> None:
    args = ("model", "describe", "demo", "--json", *SMALL)
    plain, added = (json.loads(invoke(*args, f"--set=strategy={s}").stdout) for s in ("fedavg", "pilot"))
    assert added["values"] > plain["values"] == plain["subtotals"]["full_client"]
    assert added["subtotals"] == plain["subtotals"]


def test_model_describe_names_the_command_where_momentfm_is_absent(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    load_frozen.cache_clear()
    monkeypatch.setitem(sys.modules, "momentfm", None)
    result = invoke("model", "describe", "demo", "--set=backbone=moment_lora", "--set=backbone.size=tiny")
    assert result.exit_code == 2
    assert "pip install --no-deps momentfm==0.1.4" in " ".join(result.stderr.split())


@pytest.mark.ci
def test_fleet_show_agrees_with_the_runs_records(invoke, runs: Path) -> None:
    facts = json.loads(invoke("fleet", "show", runs / "fedavg-s0", "--json").stdout)
    record = read_rounds(runs / "fedavg-s0")[-1]
    for clock, cost in record.costs.items():
        assert facts["fedavg"][clock]["round_s"] == pytest.approx(cost.round_s)
        for client, spent in zip(facts["clients"], cost.clients, strict=True):
            times = spent.times
            busy = times.forward_s + times.backward_s + times.optimizer_s + times.up_s + times.down_s
            assert client["fedavg_s"][clock] == pytest.approx(busy)
    clock = facts["planning_time"]
    assert facts["target_s"][clock] == read_rounds(runs / "relief-s0")[1].deadline_s
    text = invoke("fleet", "show", runs / "fedavg-s0").stdout
    assert "Clients that own a sensor: acc 8, gyro 6, mag 3; rare: mag" in text
    assert f"{facts['target_s'][clock]:.3f}" in text
    assert PRESETS["relief"].build().insight.deadline_text in text
    given = invoke("fleet", "show", runs / "relief-s0", "--set=strategy.deadline_s=1.5").stdout
    assert "the deadline of relief in round 1" in given


@pytest.mark.parametrize("client", range(8))
def test_explain_gives_what_the_ledger_says(invoke, runs: Path, client: int) -> None:
    args = ("explain", runs / "relief-s0", "--round", 2, "--client", client)
    facts = json.loads(invoke(*args, "--json").stdout)
    assert sorted(facts["groups"]) == sorted(facts["recorded"])
    assert facts["groups"][: len(facts["mandatory"])] == facts["mandatory"]
    ranked = [o["d_bar"] for o in facts["offers"] if o["verdict"] != "mandatory"]
    assert ranked == sorted(ranked, reverse=True)
    assert facts["fill"] == "count" and len(facts["groups"]) == facts["budget"]
    assert {o["verdict"] for o in facts["offers"]} <= {"mandatory", "chosen", "budget"}
    text = invoke(*args).stdout
    assert f"T* = {facts['target_s']:.3f} s" in text and "The record of round 2 says the same." in text
    assert all(len(line) <= 100 for line in text.splitlines() if str(runs) not in line)
    has_time = facts["planned_s"] < facts["target_s"] - 0.0005 and len(facts["groups"]) < len(facts["offers"])
    assert ("Time is left: slots were counted with the slowest link" in text) == has_time
    fits = r"\(\S+ - \S+\) / \S+ = (\S+), so (?:(1) group fits|(\d+) groups fit)\."
    found = re.search(fits, " ".join(text.split()))
    assert found is not None and float(found[1]) >= int(found[2] or found[3]), "what fits is a whole number of groups"


def test_explain_shows_prices_of_refused_groups(invoke, runs: Path) -> None:
    facts = json.loads(invoke("explain", runs / "relief-s0", "--round=2", "--client=7", "--json").stdout)
    refused = [o for o in facts["offers"] if o["verdict"] in ("time", "budget")]
    assert refused and facts["target_set_by"] in (6, 7)
    text = invoke("explain", runs / "relief-s0", "--round=2", "--client=7").stdout
    assert all(f"{o['seconds']:.3f}" in text for o in refused)


def test_explain_where_there_is_nothing_to_choose(invoke, runs: Path) -> None:
    assert "leaves nothing to explain" in invoke("explain", runs / "fedavg-s0", "--round=1", "--client=0").stdout
    assert "There is no budget" in invoke("explain", runs / "v1-s0", "--round=1", "--client=0").stdout
    assert "This round is the bootstrap" in invoke("explain", runs / "v3-s0", "--round=1", "--client=0").stdout
    random = invoke("explain", runs / "v3-s0", "--round=2", "--client=4").stdout
    assert "filled at random" in random and "The record of round 2 says the same." in random


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--round=9", "--client=0"], "round 9: no such round"),
        (["--round=1", "--client=8"], "the fleet has the clients 0 to 7"),
    ],
)
def test_explain_refuses_what_is_not_there(invoke, runs: Path, args: list[str], expected: str) -> None:
    result = invoke("explain", runs / "relief-s0", *args)
    assert result.exit_code == 2 and expected in " ".join(result.stderr.split())


def test_strategies_lists_all_and_gives_references(invoke) -> None:
    shown = invoke("strategies").stdout
    assert all(f"  {name} " in shown for name in PRESETS)
    assert set(json.loads(invoke("strategies", "--json").stdout)) == set(PRESETS)
    bibtex = invoke("strategies", "--bibtex").stdout
    assert "@inproceedings{mcmahan2017fedavg," in bibtex and "RELIEF" in bibtex


def test_version(invoke) -> None:
    from relief_ray import __version__

    assert invoke("--version").stdout == f"relief-ray {__version__}\n"


def test_model_evaluate_tests_every_run_again(invoke, runs: Path) -> None:
    shown = invoke("model", "evaluate", runs, "--sensors", "acc+mag").stdout
    assert shown.count("one for all, mean over clients, each through its own sensors:") == 4
    assert shown.count("acc+mag ") == 4
    events = [json.loads(line) for line in invoke("model", "evaluate", runs, "--json").stdout.splitlines()]
    assert [f["event"] for f in events] == ["evaluated"] * 4
    assert all(0 <= f["f1_own_sensors"] <= 1 for f in events)


def test_model_evaluate_names_the_nearest_sensor(invoke, runs: Path) -> None:
    result = invoke("model", "evaluate", runs, "--sensors", "acc+magg")
    assert result.exit_code == 2
    assert "did you mean 'mag'?" in " ".join(result.output.split())


def test_model_export_says_what_it_wrote_and_why_it_cannot(invoke, runs: Path, tmp_path: Path) -> None:
    shown = invoke("model", "export", runs / "relief-s0", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    last = read_rounds(runs / "relief-s0")[-1]
    assert last.metrics is not None and last.metrics.f1 is not None
    assert f"relief on dsa_mini after round {last.round}, F1 {100 * last.metrics.f1:.1f} %" in shown.stdout
    assert "  model.safetensors\n3 files; README.md has code that loads them" in shown.stdout
    exported = json.loads(invoke("model", "export", runs / "relief-s0", "--out", tmp_path / "json", "--json").stdout)
    assert exported["event"] == "exported" and exported["files"] == ["README.md", "export.json", "model.safetensors"]
    again = invoke("model", "export", runs / "relief-s0", "--out", tmp_path / "out")
    assert again.exit_code == 2 and "is not empty; name an empty folder" in " ".join(again.output.split())
    assert invoke("model", "export", tmp_path, "--out", tmp_path / "no").exit_code == 2
