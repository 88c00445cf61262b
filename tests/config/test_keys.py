"""The table of configuration keys: complete, as the classes have it, and quick to answer a wrong key."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig, all_keys, assign, parse, read_settings
from relief_ray.config.keys import Key, in_words, nearest_keys, unknown_key
from relief_ray.models.registry import BACKBONES
from relief_ray.strategies import PRESETS
from relief_ray.support.errors import UserError
from relief_ray.support.frozen import FrozenConfig
from tests.config.test_experiment import ALL_KEYS
from tests.own import METHOD
from tests.plans import override

# Words that say nothing about a key by themselves.
EMPTY = frozenset("a an the of or and its is this for in to by value key setting option number".split())


def test_the_table_has_every_key_of_the_tree():
    known = {key.key for key in all_keys()}
    sections = {
        "data",
        "fleet",
        "training",
        "transfer",
        "server",
        "evaluation",
        "costs",
        "record",
        "runtime",
        "tracking",
        "choice",
    }
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
        ("training.beta", ["training.momentum"]),
        ("batchsize", ["training.batch_size"]),
        ("batchSize", ["training.batch_size"]),
        ("num_rounds", ["rounds"]),
        ("training.num_rounds", ["rounds"]),
        ("n_clients", ["data.num_clients", "fleet.num_clients"]),
        ("local_epochs", ["training.epochs"]),
        ("data.alpha", ["data.dirichlet_alpha"]),
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
    assert nearest_keys(wrong, all_keys()) == right


@pytest.mark.parametrize(
    ("wrong", "near", "with_", "typed"),
    [
        ("training.beta", "training.momentum", "training.optimizer=sgd", "0.5"),
        ("training.schedul_end", "training.schedule_end", "training.schedule=cosine or linear", "0.5"),
        ("server.beta_2", "server.beta2", "server.optimizer=fedadam or fedyogi", "0.5"),
        ("data.alpha", "data.dirichlet_alpha", "data.partition=dirichlet or quantity", "0.7"),
        ("evaluation.windw", "evaluation.window", "evaluation.average=tail", "3"),
    ],
)
def test_a_suggestion_that_is_refused_alone_says_with_what_it_is_taken(wrong, near, with_, typed):
    assert unknown_key(wrong, all_keys()).endswith(f" (did you mean {near!r}, with {with_}?)")
    setting = f"{near}={typed}"
    with pytest.raises(UserError, match=f"which does not read it; expected one of the two: set {with_} or remove"):
        parse(override({}, [setting]))
    parse(override({}, [setting, with_.partition(" or ")[0]]))


def test_a_key_of_another_method_is_not_suggested():
    def near(path, method):
        return nearest_keys(path, [key for key in all_keys() if key.of in ("", method)])

    assert "strategy.beta" in {key.key for key in all_keys()} and nearest_keys("strategy.beta", all_keys()) == []
    assert near("strategy.gama", "fedavg") == [] and near("strategy.gama", "relief") == ["strategy.gamma"]


def test_whole_sections_are_set_before_their_keys():
    values = override({}, ["rounds=2", "strategy.gamma=0.5", "data.name=dsa", "strategy=relief", "rounds=3"])
    assert values == {"strategy": {"name": "relief", "gamma": 0.5}, "rounds": 3, "data": {"name": "dsa"}}
    assert override({}, ["a.b.c=1", "a.b={}", "a={x: 2}"]) == {"a": {"x": 2, "b": {"c": 1}}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fleet": {"types": {"C": 3}}}, r"fleet.types.C = 3: expected a mapping from text to whole number, or"),
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


# Settings that a message tells to write; and what may be wrong with one that has the right form: the data lack it.
ADVISED = re.compile(
    r"(?:write|e\.g\.|set|take) (?:--set )?'?([a-z_]+(?:\.\w+)*=.+?)'?(?: \(the default\)|;| or |$)", re.M
)
ELSEWHERE = re.compile(r"\] unknown, dsa_mini has|only 'dsa' has selectable units|which does not read it")
SLIPS = (
    "wrong", "[[]]", "-1", "0", "1.5", "3", "10000000000", "{a: {b: 1}}", "[1", "[a]", "null", "true", "''", ".nan",
    "a b", "no", "1e3", "[1, [2]]",
)  # fmt: skip


@pytest.mark.ci
def test_every_advised_setting_is_taken_when_it_is_typed():
    """With each key, whatever was written for it."""
    counts, refused = Counter(), []
    for key in all_keys():
        section = key.key.partition(".")[0]
        first = {section: key.of} if key.of else {}
        first |= {"choice": {"kind": "try", "parameters": ["rounds"]}} if section == "choice" else {}
        for slip in SLIPS:
            typed = f"{key.key}={slip}"
            try:
                parse(assign(first, read_settings([typed])))
            except UserError as error:
                advised = ADVISED.findall(str(error))
            else:
                continue
            counts[bool(advised)] += 1
            for line in advised:  # in the place of what was typed, or beside it
                settings = [line] if line.startswith(key.key) else [typed, line]
                try:
                    parse(assign(first, read_settings(settings)))
                except UserError as error:
                    if not ELSEWHERE.search(str(error)):
                        refused.append((typed, line, str(error)))
    assert not refused and counts[True] > 2000 > 4 * counts[False]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("data.subjects=true", "e.g. data.subjects=[] (the default)"),
        ("data.subjects=1", "write data.subjects=[1]"),
        ("evaluation.parts=validation", "write evaluation.parts=[validation]"),
        ("evaluation.parts=wrong", "e.g. evaluation.parts=[test] (the default)"),
        ("data.units='on, off'", 'write data.units=["on, off"]'),
        ("data.units=[T", "e.g. data.units=[] (the default)"),
    ],
)
def test_brackets_are_advised_around_what_a_list_may_hold(typed, said):
    with pytest.raises(UserError) as told:
        parse(assign({}, read_settings([typed])))
    assert str(told.value).endswith(said)


def test_the_help_loads_no_library():
    line = "import sys; sys.argv = ['relief-ray', '--help']; import actors.cli.main as c\n"
    line += "try: c.main()\nexcept SystemExit: print(*{'torch', 'ray', 'numpy', 'pydantic'} & {*sys.modules}, '.')"
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines()[-1] == ".", "none of the four was imported"


def test_every_section_of_the_tree_is_a_class_that_explains_its_fields():
    undescribed = [
        f"{kind.__name__}.{name}"
        for kind in {type(value) for value in vars(ExperimentConfig()).values() if isinstance(value, BaseModel)}
        for name, field in kind.model_fields.items()
        if not field.description and name != "name"
    ]
    assert not undescribed


def test_types_in_words():
    kinds = {key.key: key.type for key in all_keys()}
    assert kinds["participation"] == "number, above 0, at most 1"
    assert kinds["data.subjects"] == "list of whole numbers"
    assert kinds["strategy.depth_by_type"] == "mapping from text to whole number, at least 1"
    assert kinds["evaluation.parts"] == "list of test, validation, not empty"
    assert kinds["strategy.clusters"] == "one of size, dominant, or whole number, above 0"
    assert all(kinds.values()) and in_words({"type": "string", "format": "date"}) == in_words({}) == ""


FIELDS = """
from datetime import date

from pydantic import Field, field_validator


class Fielded(Mine):
    share: float = Field(0.2, gt=0, lt=0.5)
    gamma: int = 3
    even: int = Field(2, multiple_of=2)
    parts: tuple[int, ...] = (1, 2)
    ranks: dict[str, float] = {}
    day: date = date(2024, 1, 1)
    level: int = 0

    @field_validator("level")
    @classmethod
    def _at_ground(cls, value):
        assert value == 0, "stay on the ground"
        return value


class Needy(Mine):
    must: float = Field(ge=0)
"""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 2}, "share = 2: expected a number, above 0, below 0.5, e.g. strategy.share=0.2 (the default)"),
        ({"gamma": 1.5}, "gamma = 1.5: expected a whole number, e.g. strategy.gamma=3 (the default)"),  # not RELIEF's
        ({"parts": 3}, "parts = 3: expected a list of whole numbers; write strategy.parts=[3]"),
        ({"parts": ["a"]}, "parts.0 = 'a': expected a list of whole numbers, e.g. strategy.parts=[1, 2] (the default)"),
        ({"ranks": 3}, "ranks = 3: expected a mapping from text to number, e.g. strategy.ranks={} (the default)"),
        ({"ranks": {"C": "x"}}, "ranks.C = 'x': expected a number"),
        (
            {"even": 3},
            "even = 3: expected a whole number, a multiple of 2, e.g. strategy.even=2 (the default)",
        ),
        ({"day": "never"}, "day = 'never': Input should be a valid date in the format YYYY-MM-DD, input is too short"),
        ({"level": 1}, "level = 1: stay on the ground"),
        ({"name": "Needy"}, "must: found no value, expected a number, at least 0; set it"),
    ],
)
def test_fields_of_a_method_are_explained_as_built_in_ones(write, values, message):
    module = write(METHOD + FIELDS)
    with pytest.raises(UserError) as caught:
        parse({"strategy": {**values, "name": f"{module}:{values.get('name', 'Fielded')}"}})
    assert str(caught.value) == f"configuration: strategy.{message}"


def test_fields_of_a_backbone_are_explained_as_built_in_ones(write):
    module = write(
        "from pydantic import Field\nfrom relief_ray.models.cnn import CnnConfig\n\n\n"
        "class Wide(CnnConfig):\n    fusion: int = Field(8, ge=4)\n"
    )
    expected = r"backbone\.fusion = 3: expected a whole number, at least 4, e\.g\. backbone\.fusion=8 \(the default\)$"
    with pytest.raises(UserError, match=expected):
        parse({"backbone": {"name": f"{module}:Wide", "fusion": 3}})
