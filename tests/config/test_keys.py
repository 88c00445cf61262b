"""The table of configuration keys: complete, as the classes have it, and quick to answer a wrong key."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.config.keys import KEYS_FILE, Key, all_keys, refuse_unknown, suggested, write_keys
from relief_ray.config.table import PAGE, keys_of_all, page
from relief_ray.models.registry import BACKBONES
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError
from relief_ray.support.frozen import FrozenConfig
from tests.config.test_experiment import ALL_KEYS

# Words that say nothing about a key by themselves.
EMPTY = frozenset("a an the of or and its is this for in to by value key setting option number".split())
REGENERATE = "write the table anew: python -m relief_ray.config.table"


def test_the_table_and_the_page_are_those_of_the_classes():
    assert all_keys() == keys_of_all(), REGENERATE
    assert PAGE.read_text(encoding="utf-8") == page(keys_of_all()), REGENERATE


def test_the_table_has_every_key_of_the_tree():
    known = {key.key for key in all_keys()}
    sections = {"data", "fleet", "training", "server", "evaluation", "costs", "record", "runtime", "tracking", "choice"}
    in_tree = {".".join((*path, key)) for path, key in ALL_KEYS if not {"strategy", "backbone"} & {*path}}
    assert in_tree - known == sections & in_tree
    for section, classes in (("strategy", [type(p) for p in PRESETS.values()]), ("backbone", BACKBONES.values())):
        for kind in classes:
            assert {f"{section}.{name}" for name in kind.model_fields} - known == {f"{section}.name"}


def faults(key: Key) -> str:
    words = [word for word in "".join(c if c.isalnum() else " " for c in key.meaning.lower()).split()]
    if len(words) < 3:
        return "fewer than three words"
    name = set(key.key.rpartition(".")[2].lower().split("_"))
    return "" if set(words) - name - EMPTY else "only the name again"


def test_every_key_is_explained():
    assert not {key.key: (key.meaning, faults(key)) for key in all_keys() if faults(key)}


@pytest.mark.parametrize("meaning", ["", "Learning rate.", "The value of the lr."])
def test_a_key_without_a_meaning_is_found(meaning):
    assert faults(Key(key="training.lr", of="", type="number", default=0.1, meaning=meaning))


def test_a_field_is_described_by_the_string_under_it_of_the_class_that_has_it():
    class Base(FrozenConfig):
        depth: int | None = None
        """Number of
        layers; None: all."""
        low: float = 0.0

    class Further(Base):
        width: int = 3
        """Number of outputs."""

    told = {name: field.description for name, field in Further.model_fields.items()}
    assert told == {"depth": "Number of\nlayers; None: all.", "low": None, "width": "Number of outputs."}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("lr", ["training.lr", "server.lr"]),
        ("epochs", ["training.epochs"]),
        ("training.epoch", ["training.epochs"]),
        ("optimizer", ["training.optimizer", "server.optimizer"]),
        ("trainig.epochs", ["training.epochs"]),
        ("trainig", ["training"]),
        ("learning_rate", ["training.lr", "server.lr"]),
        ("training.learning_rate", ["training.lr"]),
        ("server.learning_rate", ["server.lr"]),
        ("strategy.learning_rate", ["training.lr", "server.lr"]),
        ("learningRate", ["training.lr", "server.lr"]),
        ("server_lr", ["server.lr"]),
        ("client_lr", ["training.lr"]),
        ("batchsize", ["training.batch_size"]),
        ("batchSize", ["training.batch_size"]),
        ("num_rounds", ["rounds"]),
        ("training.num_rounds", ["rounds"]),
        ("n_clients", ["data.num_clients", "fleet.num_clients"]),
        ("local_epochs", ["training.epochs"]),
        ("data.alpha", ["data.dirichlet_alpha", "backbone.alpha"]),
        ("data.dataset", ["data.name"]),
        ("training.dataset", ["data.name"]),
        ("num_workers", ["runtime.num_hosts"]),
        ("dropout", []),
        ("C", []),
        ("data.stride", ["data.stride_s"]),
        ("evaluation.window_x", ["evaluation.window"]),
        ("mu", ["strategy.mu"]),
        ("rank", ["backbone.rank"]),
        ("round", ["rounds"]),
        ("strategy.gama", ["strategy.gamma"]),
        ("zzz", []),
        ("training.learnig_rate", ["training.lr"]),
        ("learnig_rate", ["training.lr", "server.lr"]),
        ("server.lerning_rates", ["server.lr"]),
        ("strategy.lerningRate", ["training.lr", "server.lr"]),
        ("local_epohcs", ["training.epochs"]),
        ("algoriddm", ["strategy"]),
        ("training.fracton_fit", ["participation"]),
        ("strategy.trim", []),  # not a misspelt `tries`
        ("data.path", []),
    ],
)
def test_the_full_path_that_was_meant(wrong, right):
    assert suggested(wrong) == right


def test_a_key_of_another_method_is_not_suggested():
    assert "strategy.beta" in {key.key for key in all_keys()} and suggested("strategy.beta") == []
    assert suggested("strategy.gama", "fedavg") == [] and suggested("strategy.gama", "relief") == ["strategy.gamma"]


def test_settings_are_judged_by_their_key():
    refuse_unknown(["training.epochs=2", "fleet.owned.C=[acc]", "data={name: dsa}", "strategy.own_key=1", "no sign"])
    refuse_unknown(["seeds=3"], further=["seeds"])
    expected = (
        r"--set lr=0\.1: unknown key 'lr' \(did you mean 'training\.lr' or 'server\.lr'\?\); write --set training"
    )
    with pytest.raises(UserError, match=expected):
        refuse_unknown(["lr=0.1"])
    with pytest.raises(UserError, match=r"unknown key 'rounds\.x'"):
        refuse_unknown(["rounds.x=1"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fleet": {"owned": {"C": 3}}}, r"fleet.owned.C = 3: expected a list of text; write fleet.owned.C=\[3\]"),
        ({"data": {"units": "torso"}}, r"data.units = 'torso': expected a list of text; write data.units=\[torso\]"),
        ({"training": {"lr": "fast"}}, r"lr = 'fast': expected a number, above 0, e.g. training.lr=0.001 \(the def"),
        ({"tracking": {"enabled": "maybe"}}, r"enabled = 'maybe': expected true or false, e.g. tracking.enabled=true"),
        (
            {"data": {"num_clients": 1.5}},
            r"data.num_clients = 1.5: expected a whole number, at least 1, at most 1e\+06, or null$",
        ),
    ],
)
def test_a_wrong_value_is_answered_with_what_fits(values, message):
    with pytest.raises(UserError, match=message):
        parse(values)


def test_the_table_reads_back(tmp_path: Path):
    write_keys(all_keys(), tmp_path / "keys.json")
    assert (tmp_path / "keys.json").read_bytes() == KEYS_FILE.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--set", "lr=0.1"], "training.lr"),
        (["quick", "--set", "training.learnig_rate=0.1"], "(did you mean 'training.lr'?); write --set training.lr=0.1"),
        (["demo", "--set", "strategy.gama=1"], "unknown key 'strategy.gama' (did you mean 'strategy.gamma'?); write"),
        (["demo", "--set", "training.lr=fast"], "--set training.lr=fast: expected a number, above 0, e.g. training.lr"),
        (["demo", "--set", "strategy.gamma=1"], "--set strategy.gamma=1: expected a number, above 0, below 1"),
        (["mine.yaml"], "mine.yaml: training.epochs = 0: expected a whole number, at least 1"),
    ],
)
def test_what_is_wrong_is_answered_without_loading_the_library(tmp_path, words, message):
    (tmp_path / "mine.yaml").write_text("strategy: relief\ntraining:\n  epochs: 0\n")
    line = f"import sys; sys.argv = ['relief-ray', 'run', *{words}]; import actors.cli.main as c\n"
    line += "try: c.main()\nexcept SystemExit as end: print(end.code, *{'torch', 'ray', 'numpy'} & {*sys.modules})"
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.stdout == "2\n", "none of the three was imported"
    assert message in " ".join(done.stderr.split())


def test_every_section_of_the_tree_is_a_class_that_explains_its_fields():
    undescribed = [
        f"{kind.__name__}.{name}"
        for kind in {type(value) for value in vars(ExperimentConfig()).values() if isinstance(value, BaseModel)}
        for name, field in kind.model_fields.items()
        if not field.description and name != "name"
    ]
    assert not undescribed
