"""Test that errors of calls speak of keywords: unknown ones, those of sections, the command line's options."""

import inspect
from pathlib import Path

import pytest

import relief_ray as rr
from relief_ray.data.config import DataConfig
from relief_ray.studies.request import KEYWORDS, config_of
from relief_ray.support.errors import Setting, UserCodeFailed, in_python, option
from relief_ray.support.text import resumed
from tests.studies.conftest import SMALL

RAISES = """
from functools import partial

import torch
import relief_ray as rr


class Faulty(rr.StrategyConfig):
    where: str = "aggregate"

    def build(self):
        reduction = self.reduction()
        return rr.Strategy(
            name="faulty",
            allocate=partial(allocate, self.where),
            client=rr.ClientProgram(objective=partial(objective, self.where)),
            reduction=reduction,
            aggregate=partial(aggregate, self.where, reduction),
        )


def allocate(where, state, context):
    return 1 / 0 if where == "allocate" else rr.allocate_everything(state, context)


def objective(where, step):
    return 1 / 0 if where == "objective" else torch.nn.functional.cross_entropy(step.logits, step.labels)


def aggregate(where, reduction, state, reduced, tools):
    return 1 / 0 if where == "aggregate" else rr.average(reduction, state, reduced, tools)
"""


def test_the_words_are_those_of_run():
    assert tuple(inspect.signature(rr.run).parameters) == ("experiment", *KEYWORDS, "settings")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rouds": 3}, r"run\(rouds=3\): unknown keyword; did you mean rounds=3\?"),
        ({"learnig_rate": 0.1}, r"keyword; write training=\{'lr': 0.1\} or server=\{'lr': 0.1\}"),
        ({"lr": 0.1}, r"run\(lr=0.1\): unknown keyword; write training=\{'lr': 0.1\} or server=\{'lr': 0.1\}"),
        ({"epochs": 2}, r"write training=\{'epochs': 2\}$"),
        ({"folder": "runs/x"}, r"did you mean out='runs/x'\?"),
        ({"zzzz": 1}, "expected one of strategies, seeds, .*, or a section of the configuration: name, strategy, data"),
        (
            {"n_jobs": 2},
            r"^n_jobs=2: unknown keyword; expected jobs=2, which .*, or on='ray', runtime=\{'num_hosts': 2\}, which",
        ),
        ({"jobs": 0}, "^jobs: found 0, expected a number of runs at a time, e.g. jobs=2$"),
        ({"jobs": "two"}, "^jobs: found 'two', expected a number"),
        ({"metrics": [len]}, r"^metrics: found builtin_function_or_method .*; expected a function of a confusion"),
        ({"on": "rai"}, "on: found 'rai', expected one of 'here', 'ray'"),
        ({"name": 3}, "name: found 3, expected a text"),
        ({"out": 3}, "out: found 3, expected a path"),
        ({"claims": []}, r"claims: found \[\], expected a path"),
        ({"training": rr.CostConfig()}, "training: found a CostConfig, expected a TrainingConfig, or a mapping"),
        ({"set": {"seeds": 3}}, r"set=\{'seeds': 3\}: no key of the configuration; write seeds=3 beside set"),
        ({"seeds": [0], "set": {"seed": 1}}, r"^seeds and set=\{'seed': 1\}: choose the same"),
        ({"seeds": [0], "seed": 1}, r"^seeds and seed=1: choose the same"),
        ({"folds": [0]}, r"^folds=\[0\]: .* expected set=\{'data.split': 'held_out_subject'\} with it, or no folds$"),
        ({"set": {"rounds.x": 3}}, r"^set=\{'rounds.x': 3\}: 'rounds' is "),
        ({"strategies": "fedavg,relief", "set": {"strategy.gamma": 3}}, r"^set=\{'strategy.gamma': 3\}: fedavg has no"),
    ],
)
def test_a_wrong_word_is_answered_in_python(words, message):
    with pytest.raises(rr.UserError, match=message) as error:
        rr.run("quick", quiet=True, **words)
    assert "--" not in str(error.value)


def test_a_runtime_that_is_not_installed_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("relief_ray.studies.loop.entry_points", lambda **_: ())
    with pytest.raises(rr.UserError, match=r"^on='ray': this runtime is not installed; install the extra `server`"):
        rr.run("quick", on="ray")
    with pytest.raises(rr.UserError, match=r"^jobs=2: several .* not installed; install .*, or leave jobs out$"):
        rr.run("quick", jobs=2)
    monkeypatch.undo()
    monkeypatch.setattr("actors.launch.find_spec", lambda name: None)
    with pytest.raises(rr.UserError, match=r"^on='ray': this runtime is not installed"):
        rr.run("quick", on="ray")


@pytest.mark.parametrize(
    ("setting", "typed", "python"),
    [
        (Setting("replicates", [1, 2]), "--set 'replicates=[1, 2]'", "set={'replicates': [1, 2]}"),
        (Setting("training.lr", 0.1), "--set training.lr=0.1", "training={'lr': 0.1}"),
        (Setting("training.lr", 0.1, "--set training.lr=1e-1"), "--set training.lr=1e-1", "training={'lr': 0.1}"),
        (Setting("backbone", "my_net:MyNet"), "--set backbone=my_net:MyNet", "set={'backbone': 'my_net:MyNet'}"),
        (Setting("data.subjects", (1, 2)), "--set 'data.subjects=[1, 2]'", "set={'data.subjects': [1, 2]}"),
        (Setting("tracking.uri", ...), "--set tracking.uri=..", "set={'tracking.uri': ..}"),
        (Setting("runtime.mirror", None), "--set runtime.mirror=null", "set={'runtime.mirror': None}"),
        (Setting("seeds", (0, 1), "--seeds 0-1"), "--seeds 0-1", "seeds=[0, 1]"),
    ],
)
def test_a_setting_is_worded_for_whoever_wrote_it(setting, typed, python):
    assert str(setting) == f"{setting}" == typed
    with in_python(["training", "seeds"]):
        assert str(setting) == python
    assert str(setting) == typed


def test_an_option_is_a_keyword_in_python():
    def words():
        return option("out", "DIR"), option("other_code", True), option("folds"), resumed(Path("x"), "rerun_stale")

    assert words() == ("--out DIR", "--other-code", "--folds", "relief-ray resume x --rerun-stale")
    with in_python():
        assert words() == ("out='DIR'", "other_code=True", "folds", "rerun_stale=True")


@pytest.mark.ci
@pytest.mark.parametrize("where", ["allocate", "objective", "aggregate"])
def test_an_error_of_the_users_own_names_its_function_file_and_line(write, run_cache, tmp_path, where):
    name = write(RAISES)
    words = {"strategies": {"name": f"{name}:Faulty", "where": where}, "backbone": SMALL, "rounds": 1, "quiet": True}
    line = next(n for n, text in enumerate(RAISES.splitlines(), 1) if f'where == "{where}"' in text)
    with pytest.raises(
        rr.UserCodeFailed, match=rf"ZeroDivisionError: .*{name}.py, line {line}, in {where}: return 1"
    ) as error:
        rr.run("quick", out=tmp_path / "faulty", **words)
    assert error.type is UserCodeFailed and isinstance(error.value.__cause__, Exception)


def test_an_error_of_this_project_stays_as_it_is(monkeypatch):
    monkeypatch.setattr("relief_ray.studies.loop.plan_of", len)
    with pytest.raises(TypeError, match="takes exactly one argument"):
        rr.run("quick", quiet=True)


def test_a_message_is_not_buried_in_a_traceback():
    with pytest.raises(rr.UserError) as caught:
        rr.run("quick", rouds=3)
    assert [entry.name for entry in caught.traceback] == ["test_a_message_is_not_buried_in_a_traceback", "run"]
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_an_object_replaces_the_section_of_data_as_any_other():
    data = DataConfig(name="dsa_mini", stride_s=10.0)
    assert config_of(None, {}, {"data": data}).data == data
