"""What the table of keys refuses alone: never anything that the configuration's classes would take."""

import pytest

from relief_ray.config.experiment import override, parse
from relief_ray.config.keys import all_keys, refuse_wrong_run, refuse_wrong_values, value_text, whole_first
from relief_ray.support.errors import UserError
from tests.own import METHOD

VALUES = ["null", "-1", "0", "0.3", "1", "2.5", "1e12", ".inf", "true", "'yes'", "'3'", "dsa", "[1, 2]", "{a: 1}"]


def settings_of(key):
    chosen = [f"{key.key.partition('.')[0]}.name={key.of}"] if key.of else []
    return [[*chosen, f"{key.key}={text}"] for text in [*VALUES, value_text(key.default)]]


def test_no_value_is_refused_that_the_classes_take():
    """Every key with fourteen values and its default, judged by both."""
    refused = taken = 0
    for key in all_keys():
        for settings in settings_of(key):
            try:
                refuse_wrong_values(settings[-1:], own=())
                taken += 1
            except UserError:
                refused += 1
                with pytest.raises(UserError):
                    parse(override({}, settings))
    assert refused > 500 and taken > 500, "the table says something"


@pytest.mark.parametrize(
    "setting",
    ["strategy=relif", "strategy.name=x", "replicates=2", "fleet.owned.C=3", "training={epochs: 0}", "no sign",
     "strategy.depth_by_type.A=3", "backbone.size=[broken"],
)  # fmt: skip
def test_what_the_table_does_not_decide_is_left_to_the_classes(setting):
    refuse_wrong_values([setting], own=("backbone",))


def test_the_keys_of_a_users_own_method_are_left_to_its_class(tmp_path):
    (tmp_path / "a.yaml").write_text("strategy: {name: 'my_method:Mine', zeta: 1}\nrounds: 2\n")
    refuse_wrong_run(str(tmp_path / "a.yaml"), ["strategy.zeta=2"], None)
    refuse_wrong_run("demo", ["strategy.zeta=2"], f"fedavg,{METHOD}")
    refuse_wrong_run("demo", ["strategy=my_method:Mine", "strategy.zeta=2"], None)
    with pytest.raises(UserError, match=r"unknown key 'strategy\.zeta'"):
        refuse_wrong_run("demo", ["strategy.zeta=2"], "fedavg")
    (tmp_path / "b.yaml").write_text("trainig: {epochs: 2}\n")
    with pytest.raises(UserError, match=r"b\.yaml: unknown key 'trainig\.epochs' .*'training\.epochs'"):
        refuse_wrong_run(str(tmp_path / "b.yaml"), [], None)


def test_whole_sections_are_set_before_their_keys():
    settings = ["rounds=2", "strategy.gamma=0.5", "data.name=dsa", "strategy=relief", "rounds=3"]
    assert whole_first(settings) == ["strategy=relief", "rounds=2", "strategy.gamma=0.5", "data.name=dsa", "rounds=3"]
    config = parse(override({}, whole_first(settings[1::2])))
    assert (config.strategy.build().name, config.strategy.gamma) == ("relief", 0.5)
    assert whole_first(["a.b.c=1", "a.b={}", "a={}"]) == ["a={}", "a.b={}", "a.b.c=1"]
