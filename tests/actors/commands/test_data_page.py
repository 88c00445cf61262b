"""docs/data.md: its own dataset, executed as it stands there, and its commands on skewed partitions."""

import os
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

from relief_ray.conformance.datasets import DATA_RULES
from relief_ray.data import load_dataset
from relief_ray.data.config import _ADDED
from relief_ray.records.run_folder import read_run
from relief_ray.support.errors import UserError

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
FILES = dict(re.findall(r"```python\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))
OWN, WALKS, BAND, SKEWED, SHARD, _ = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shell(write, invoke, monkeypatch: pytest.MonkeyPatch):
    """Runs the page's lines in this process, in a folder with the page's files."""
    for name, text in FILES.items():
        write(text, name.removesuffix(".py"))
    monkeypatch.setenv("PWD", str(Path.cwd()))
    monkeypatch.delenv("RELIEF_DATA", raising=False)

    def run(lines: str) -> str:
        return "".join(one(shlex.split(os.path.expandvars(line))) for line in lines.strip().splitlines())

    def one(words: list[str]) -> str:
        if words[0] == "relief-ray":
            done = invoke(*words[1:])
            assert done.exit_code == 0, done.output
            return done.stdout
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        else:
            assert words[0] == "python"
            runpy.run_path(words[1], run_name="__main__")
        return ""

    return run


def test_the_page_has_all_rules_and_settings() -> None:
    for rule in DATA_RULES:
        assert f"| `{rule}` |" in PAGE
    for key in _ADDED:
        assert f"`data.{key}`" in PAGE


@pytest.mark.ci
def test_own_data_from_loader_to_run(shell) -> None:
    assert len([line for line in FILES["my_steps.py"].splitlines() if line]) <= 30
    printed = shell(OWN)
    assert f"my_steps:STEPS: keeps {len(DATA_RULES)} rules" in printed
    run = read_run(Path("runs/steps/relief-s0"))
    assert run.status == "done" and run.config["data"]["name"] == "my_steps:STEPS"
    assert list(run.own_sources) == ["my_steps.py"]
    assert re.search(r"wrist % +hip %", shell("relief-ray compare runs/steps --wide")), "sensors in the loader's order"


def test_a_heading_and_labels_in_words(shell) -> None:
    printed = shell(WALKS)
    assert f"walks:WALKS: keeps {len(DATA_RULES)} rules" in printed
    assert "others in quick (data.stride_s=10)" in printed, "the preset that own data are tried with"
    dataset = load_dataset("walks:WALKS")
    labels = np.bincount(dataset.labels[dataset.labels >= 0])
    assert labels.tolist() == [4 * 1600] * 3 and (dataset.labels < 0).sum() == 4 * 200
    rows = np.loadtxt("walks/walks_1.csv", np.float32, delimiter=",", skiprows=1, usecols=range(1, 7))
    np.testing.assert_array_equal(dataset.signal()[: len(rows)], rows)


def test_a_word_that_is_no_class_is_named(shell) -> None:
    shell("python make_walks.py\nexport RELIEF_DATA=$PWD/walks")
    path = Path("walks/walks_2.csv")
    path.write_text(path.read_text().replace("limp", "hop"))
    with pytest.raises(UserError, match=r"walks_2\.csv, line 3402: activity 'hop'; expected one of \['none', 'stroll'"):
        load_dataset("walks:WALKS")


def test_two_files_of_two_rates_are_one_signal(shell) -> None:
    printed = shell(BAND)
    assert f"two_files:BAND: keeps {len(DATA_RULES)} rules" in printed
    assert (
        "36,000 rows at 50 Hz, 4 subjects" in printed
        and "fleet.types={B: {sensors: [acc]}, C: {sensors: acc}}" in printed
    )
    assert printed.count("subject 4: lacks heart, has acc") == 2, "at the end of both commands"
    dataset = load_dataset("two_files:BAND")
    assert np.isnan(dataset.signal()[-9000:, 3]).all() and np.isfinite(dataset.signal()[:-9000]).all()
    heart, seconds = dataset.signal()[:9000, 3].reshape(180, 50), np.loadtxt("band/band1_heart.csv", np.float32)
    np.testing.assert_array_equal(heart, np.repeat(seconds[:, None], 50, axis=1))


def test_skewed_partitions(shell) -> None:
    printed = shell(SKEWED)
    assert "Training windows of each client (dirichlet, alpha 0.1, seed 0)" in printed
    run = read_run(Path("runs/skewed/relief-s0"))
    assert run.status == "done"
    sizes = [sum(c["train"]) for c in run.coverage["clients"]]
    assert len(sizes) == 5 and min(sizes) >= 10 and max(sizes) > 2 * min(sizes)
    assert {c["subject"] for c in run.coverage["clients"]} == {"mixed"}


def test_a_shard(shell) -> None:
    assert "training windows of client 3 (within_subject)" in shell(SHARD)
    assert Path("shards/3/shard.json").is_file()
