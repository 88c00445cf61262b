"""Test scalars of YAML against an independent reader of YAML 1.2, and settings against the types of their keys."""

import math
import random
import re
import shlex
from functools import cache

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from relief_ray.config.experiment import assign, parse, read_as, read_settings
from relief_ray.devices.fleet import owners_lines
from relief_ray.support.errors import Setting, UserError, value_text
from relief_ray.support.user_yaml import read_setting
from tests.pages import PAGES, ROOT

# Names that are something else where they stand plain in YAML, alone, in a list or as a key.
NAMES = (
    "no", "on", "true", "Null", "~", "", "10", "1e3", ".5", "-.5", "0x1F", "0o7", ".inf", "a: b", "x:", "a,b", "[x]",
    "a]b", "{", " x", "x ", "#a", "a #b", "a#b", "*x", "-", "- a", "?", "? a", "a?b", "<<", "'q'", '"q"', "%a", "@a",
    "`a", "!a", "|", "2026-01-02", "1:30", "acc+gyro", "mine:Mine", "new\nline", "tab\tx", "back\\slash", "é", "漢",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_advised_is_read_back_as_it_was(name):
    for value in (name, [name, "z"], {"A": [name], name: 1}):
        assert read_setting(value_text(value), "x") == value
        _, typed = shlex.split(str(Setting("fleet.types", value)))
        assert [(s.path, s.value) for s in read_settings([typed])] == [("fleet.types", value)]
    line = owners_lines([name, f"{name}2"], 3)[-1]
    (read,) = read_settings(shlex.split(line)[1:])
    assert read.value == {"B": {"sensors": [name]}, "C": {"sensors": name}}


@pytest.mark.parametrize("value", [0.1, 1e-7, 2 / 3, 0.123456789, 1234567.5, 1e300, 5e-324, 1e22, -1.5, 123456789.0])
def test_a_number_that_is_advised_is_that_number_to_the_last_bit(value):
    _, typed = shlex.split(str(Setting("training.lr", value)))
    (read,) = read_settings([typed])
    assert float(read.value) == value and str(float(read.value)) == str(value)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("seed=010", "seed=10"),
        ("training.lr=1e3", "training.lr=1000"),
        ("training.lr=1E-3", "training.lr=0.001"),
        ("seed=0x1F", "seed=31"),
        ("seed=0o17", "seed=15"),
        ("rounds=+5", "rounds=5"),
        ("costs.utilisation=~", "costs.utilisation=null"),
        ("data.subjects=[01, 2]", "data.subjects=[1, 2]"),
        ("fleet.types={A: 0x10}", "fleet.types={A: 16}"),
        ("training.lr=1e-7", ""),
        ("training.lr=1e10", ""),
        ("training.lr=1.0", ""),
        ("training.lr=0.123456789", ""),
        ("strategy.mandatory=True", ""),
        ("name='010'", ""),
        ("name=1_000", ""),
        ("fleet.types={B: [acc,gyro],C: 'acc'}", ""),
        ("fleet.types={B: [acc", ""),
    ],
)
def test_what_was_read_is_told_where_it_is_written_otherwise(typed, told):
    assert read_as(read_settings([typed])) == told


@pytest.mark.parametrize(
    ("typed", "value"),
    [("!!int 1_0", None), ("!!int 0b1", None), ("!!float 1_0", None), ("!!float 1:30", None), ("!!bool yes", None),
     ("!!bool on", None), ("!!int 0o17", 15), ("!!float 1", 1.0), ("!!float .inf", math.inf), ("!!bool TRUE", True)],
)  # fmt: skip
def test_a_written_tag_makes_no_number_of_another_version_of_yaml(typed, value):
    assert read_setting(typed, "x") == (typed if value is None else value)


def test_every_value_that_the_documentation_sets_is_read_as_yaml_1_2_says():
    """Whether its key takes it is tried with the commands themselves."""
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    values = {
        quoted or plain for quoted, plain in re.findall(r"--set[ =](?:'[^'=]+=([^']*)'|[\w.]+=([^\s`'|)]*))", pages)
    }
    assert len(values) > 60
    assert not {value for value in values if not same(read_setting(value, "here"), reference(value))}


# A key of each kind: whole numbers, numbers, truth values, texts, choices, lists; alone or with null.
KEYS = {
    "rounds": int, "seed": int, "replicate": int, "training.epochs": int, "training.stack": int, "data.fold": int,
    "training.lr": float, "participation": float, "data.window_s": float, "strategy.gamma": float,
    "strategy.mandatory": bool, "runtime.physical": bool, "name": str, "tracking.uri": str,
}  # fmt: skip
WORDS = (
    "yes no on off y n Y N Yes NO On OFF true True TRUE false False FALSE tRUE null Null NULL ~ nULL none None .inf "
    "-.inf +.INF .Inf .nan .NaN .NAN +.nan nan inf 0o17 0o8 0x1F 0xg 0b11 0O7 0X1f 017 08 00 +1 -1 +-1 1_000 1:30 1. "
    ".5 . +. -.5 1e3 1E3 1e+3 1e-3 1.e3 .e3 .5e3 e3 1e 1e3.5 0e0 2026-01-02 2026-1-2 190:20:30 1,000 0.1.2 = <<"
).split()


def scalars(number):
    draw = random.Random(20261128)
    made = list(WORDS)
    while len(made) < number + len(WORDS):
        kind = draw.choice(
            ["0123456789", "0123456789.", "0123456789.eE+-", "01xX9f", "01oO7", "0123456789_:", "nulNtrueT~"]
        )
        made.append("".join(draw.choice(kind) for _ in range(draw.randint(1, 7))))
    return [text for text in dict.fromkeys(made) if not OWN.fullmatch(text) and ":" not in text[-1]]


def same(one, two):
    return type(one) is type(two) and (one == two or (isinstance(one, float) and math.isnan(one) and math.isnan(two)))


# What ruamel.yaml reads beyond or short of the core schema (section 10.3.2): `1_000`, `0b11`, `=`, `<<`, dates; `.5e3`.
OWN = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*|[-+]?0b[01]+|[0-9]{4}-[0-9]+-[0-9]+\S*|[-+]?\.[0-9]+[eE][-+]?[0-9]+|=|<<")


@cache
def reference(text):
    return YAML(typ="safe", pure=True).load(f"- {text}")[0]


def test_scalars_are_what_yaml_1_2_says():
    wrong = []
    assert len(scalars(4100)) >= 3000
    for text in scalars(4100):
        try:
            expected = reference(text)
        except YAMLError:
            continue
        if not same(found := read_setting(text, "here"), expected):
            wrong.append((text, expected, found))
    assert not wrong


@pytest.mark.ci
@pytest.mark.parametrize("key", KEYS)
def test_what_a_key_takes_is_that_value_and_of_its_type(key):
    taken = 0
    for text in scalars(4100):
        try:
            config = parse(assign({"strategy": "relief"}, read_settings([f"{key}={text}"])))
        except UserError:
            continue
        value = config
        for part in key.split("."):
            value = getattr(value, part)
        expected = reference(text)
        taken += 1
        if value is not None or expected is not None:
            assert isinstance(value, KEYS[key]) and not (KEYS[key] is int and isinstance(value, bool)), (text, value)
            assert value == expected and isinstance(expected, bool) == (KEYS[key] is bool), (text, value, expected)
    assert taken
